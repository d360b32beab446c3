//! What has happened to leases, as the API server's audit log tells it: by one clock, whoever watched or slept.

use std::{collections::BTreeMap, fmt, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use lessor_cluster::audit::Entries;
use serde_json::Value;

/// A write that the API server has accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    /// When its request came: it took effect after that.
    pub(crate) asked: Timestamp,
    /// When its answer was ready: it had taken effect before.
    pub(crate) answered: Timestamp,
}

/// The life of one lease.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) name: String,
    /// As granted last.
    pub(crate) ttl: Duration,
    pub(crate) grant: Option<Write>,
    pub(crate) renewals: Vec<Write>,
    pub(crate) end: Option<Write>,
}

impl Life {
    /// The grant or renewal that counts.
    pub(crate) fn last_renewal(&self) -> Write {
        self.renewals.last().copied().or(self.grant).expect("a lease that was granted")
    }

    /// How late the end of this lease was, by time.
    ///
    /// # Panics
    /// If it has not ended, or ended before its TTL had passed since the last grant or renewal (P1, P2).
    pub(crate) fn lateness(&self) -> SignedDuration {
        let (end, last) =
            (self.end.unwrap_or_else(|| panic!("it hasn't ended: {self:?}")), self.last_renewal());
        let ttl = SignedDuration::try_from(self.ttl).expect("a TTL for a test");
        // The operator learns of a renewal after it took effect, and sends the end after the deadline.
        assert!(end.asked >= last.asked + ttl, "it ended early: {self:?}");
        end.answered.duration_since(last.answered + ttl)
    }
}

/// The lives of all leases in `entries`, in the order of their names.
pub(crate) fn lives(entries: Entries) -> Vec<Life> {
    // By uid; then by resourceVersion, since a write that changes nothing yields the version that was there.
    let mut versions: BTreeMap<String, BTreeMap<u64, (Write, Value)>> = BTreeMap::new();
    for entry in entries.resource("lessor.dev", "leases").writes().accepted() {
        let Some(object) = entry.response_object.filter(|object| object["kind"] == "Lease") else { continue };
        let uid = object["metadata"]["uid"].as_str().expect("a uid").to_owned();
        let version = object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok());
        let write = Write { asked: entry.received, answered: entry.at };
        versions.entry(uid).or_default().entry(version.expect("a version")).or_insert((write, object));
    }
    let mut lives: Vec<Life> = versions.values().map(life).collect();
    lives.sort_by(|one, other| one.name.cmp(&other.name));
    lives
}

fn life(versions: &BTreeMap<u64, (Write, Value)>) -> Life {
    let mut life =
        Life { name: String::new(), ttl: Duration::ZERO, grant: None, renewals: Vec::new(), end: None };
    let mut before: Option<&Value> = None;
    for (write, object) in versions.values() {
        life.name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let (spec, status) = (&object["spec"], &object["status"]);
        if let Some(ttl) = status["grantedTTLSeconds"].as_u64() {
            life.ttl = Duration::from_secs(ttl);
        }
        let renews = |field| before.is_some_and(|before| before["spec"][field] != spec[field]);
        if life.grant.is_some() && (renews("renewTime") || renews("ttlSeconds")) {
            assert!(life.end.is_none(), "renewed after its end: {life:?}");
            life.renewals.push(*write);
        }
        if life.grant.is_none() && !status["specGeneration"].is_null() {
            life.grant = Some(*write);
        }
        if life.end.is_none() && !status["endTime"].is_null() {
            life.end = Some(*write);
        }
        before = Some(object);
    }
    life
}

/// The spread of some durations, to be printed.
pub(crate) struct Spread(Vec<SignedDuration>);

impl Spread {
    pub(crate) fn of(durations: impl IntoIterator<Item = SignedDuration>) -> Self {
        let mut durations: Vec<_> = durations.into_iter().collect();
        durations.sort();
        Self(durations)
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.0.len().checked_sub(1) else { return f.write_str("never") };
        let at = |share: f64| self.0[(last as f64 * share) as usize].as_millis();
        if last == 0 {
            return write!(f, "{} ms", at(0.0));
        }
        write!(f, "{} ms (median), {} ms (p90) and {} ms (at most)", at(0.5), at(0.9), at(1.0))
    }
}
