//! What happened to a lease, by the API server's audit log.

use std::{collections::BTreeMap, time::Duration};

use lessor_cluster::{audit::Entries, proxy::Seen};
use lessor_kit::world::AGENT;
use serde_json::Value;

use crate::clock::Moment;

/// A request of a client as the proxy received it.
#[derive(Clone, Debug)]
pub struct Request {
    /// When it came.
    pub at: Moment,
    /// The method.
    pub method: String,
    /// The name of the lease that it is for; empty if it's for none.
    pub lease: String,
    /// What it does.
    pub kind: Kind,
    /// The uid that it names.
    pub uid: Option<String>,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Renews a lease.
    Renewal,
    /// Deletes a lease.
    Deletion,
    /// Watches anything.
    Watch,
    /// Anything else.
    Other,
}

impl Request {
    /// This request, which comes now.
    pub fn now(seen: &Seen) -> Self {
        let body = seen.json().unwrap_or_default();
        let lease = seen.path.split_once("/leases/").filter(|_| seen.path.starts_with("/apis/lessor.dev/"));
        let lease = lease.map(|(_, name)| name.to_owned()).unwrap_or_default();
        let kind = match seen.method.as_str() {
            _ if seen.is_watch() => Kind::Watch,
            "PATCH" | "PUT" if !lease.is_empty() && mentions(&body, "renewTime") => Kind::Renewal,
            "DELETE" if !lease.is_empty() => Kind::Deletion,
            _ => Kind::Other,
        };
        let uid =
            ["/metadata/uid", "/preconditions/uid"].iter().find_map(|path| body.pointer(path)?.as_str());
        let uid = uid.map(str::to_owned).or_else(|| tested_uid(&body));
        Self { at: Moment::now(), method: seen.method.to_string(), lease, kind, uid }
    }
}

/// Whether a patch, merge or JSON, writes this field of the spec.
fn mentions(body: &Value, field: &str) -> bool {
    let operations = body.as_array().into_iter().flatten();
    body["spec"].get(field).is_some()
        || operations.into_iter().any(|operation| operation["path"] == format!("/spec/{field}").as_str())
}

/// The uid that a JSON patch tests.
fn tested_uid(body: &Value) -> Option<String> {
    let operations = body.as_array()?.iter();
    let mut tests =
        operations.filter(|operation| operation["op"] == "test" && operation["path"] == "/metadata/uid");
    tests.next()?["value"].as_str().map(str::to_owned)
}

/// A write that the API server has accepted.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// When its request came: it took effect after that.
    pub asked: Moment,
    /// When its answer was ready: it had taken effect before.
    pub answered: Moment,
    /// The TTL that counts from it.
    pub ttl: Duration,
}

/// The life of one lease.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// Its uid.
    pub uid: String,
    /// Its grant and its renewals, in order.
    pub renewals: Vec<Write>,
    /// The first deletion by a client.
    pub deleted: Option<Write>,
    /// The commit of its end.
    pub end: Option<Write>,
}

impl Life {
    /// Until when the operator can't end it by time: by the renewals that came to the API server until then.
    pub fn lives_until(&self, now: Moment) -> Option<Moment> {
        let came = self.renewals.iter().filter(|renewal| renewal.asked <= now);
        came.map(|renewal| renewal.asked + renewal.ttl).max()
    }

    /// Whether a deletion ended it.
    pub fn was_revoked(&self) -> bool {
        self.deleted.is_some_and(|deleted| self.end.is_none_or(|end| deleted.asked <= end.answered))
    }
}

/// The lives of the leases of this name, in the order of their creation.
pub fn lives(entries: Entries, name: &str) -> Vec<Life> {
    // By uid; then by resourceVersion, since a write that changes nothing yields the version that was there.
    let mut versions: BTreeMap<String, BTreeMap<u64, (Write, Value)>> = BTreeMap::new();
    let mut deletions: BTreeMap<String, Write> = BTreeMap::new();
    for entry in entries.resource("lessor.dev", "leases").writes().accepted() {
        let object = entry.response_object.unwrap_or_default();
        let (asked, answered) = (Moment::of_wall_clock(entry.received), Moment::of_wall_clock(entry.at));
        let write = Write { asked, answered, ttl: Duration::ZERO };
        let uid = object["metadata"]["uid"].as_str().or_else(|| object["details"]["uid"].as_str());
        let (Some(uid), true) = (uid, is_of(&object, name)) else { continue };
        // The operator deletes what it has released.
        if entry.verb == "delete" && !entry.user_agent.starts_with(AGENT) {
            deletions.entry(uid.to_owned()).or_insert(write);
        }
        let version = object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok());
        if let Some(version) = version {
            versions.entry(uid.to_owned()).or_default().entry(version).or_insert((write, object));
        }
    }
    let mut lives: Vec<(u64, Life)> = versions
        .into_iter()
        .map(|(uid, versions)| {
            let first = versions.keys().next().copied().unwrap_or_default();
            (first, life(deletions.get(&uid).copied(), uid, &versions))
        })
        .collect();
    lives.sort_by_key(|(first, _)| *first);
    lives.into_iter().map(|(_, life)| life).collect()
}

fn is_of(object: &Value, name: &str) -> bool {
    object["metadata"]["name"] == name || object["details"]["name"] == name
}

fn life(deleted: Option<Write>, uid: String, versions: &BTreeMap<u64, (Write, Value)>) -> Life {
    let mut life = Life { uid, deleted, ..Life::default() };
    let mut before: Option<&Value> = None;
    for (write, object) in versions.values() {
        let (spec, status) = (&object["spec"], &object["status"]);
        let changed = |field| before.is_some_and(|before| before["spec"][field] != spec[field]);
        let is_first = life.renewals.is_empty() && !status["grantedTTLSeconds"].is_null();
        if is_first || (!life.renewals.is_empty() && (changed("renewTime") || changed("ttlSeconds"))) {
            let ttl = status["grantedTTLSeconds"].as_u64().map(Duration::from_secs).unwrap_or_default();
            life.renewals.push(Write { ttl, ..*write });
        }
        if life.end.is_none() && !status["endTime"].is_null() {
            life.end = Some(*write);
        }
        before = Some(object);
    }
    life
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_renewal_is_recognized_in_every_kind_of_patch() {
        assert!(mentions(&json!({"spec": {"renewTime": "x"}}), "renewTime"));
        assert!(mentions(&json!([{"op": "add", "path": "/spec/renewTime", "value": "x"}]), "renewTime"));
        assert!(!mentions(&json!({"metadata": {"annotations": {}}}), "renewTime"));
        let patch = json!([{"op": "test", "path": "/metadata/uid", "value": "u"}]);
        assert_eq!(tested_uid(&patch).as_deref(), Some("u"));
    }
}
