//! An API server in memory: of what the real one does, all that the operator relies on.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use lessor_checker::Request;
use serde_json::{Value, json};

/// How far the two machines that this server consists of may be apart by their clocks.
const SKEW: Duration = Duration::from_millis(900);

/// What is asked of the server.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) user: String,
    pub(crate) verb: &'static str,
    pub(crate) target: Target,
    pub(crate) body: Option<Value>,
}

/// A kind of objects that this server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Lessor,
    Lease,
    ConfigMap,
    Secret,
    Event,
    /// A Lease of coordination.k8s.io.
    Heartbeat,
    Pod,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Lessor, Self::Lease, Self::ConfigMap, Self::Secret, Self::Event, Self::Heartbeat, Self::Pod];

    /// Its group, its version, its plural and its name.
    const fn names(self) -> [&'static str; 4] {
        match self {
            Self::Lessor => ["lessor.dev", "v1alpha1", "lessors", "Lessor"],
            Self::Lease => ["lessor.dev", "v1alpha1", "leases", "Lease"],
            Self::ConfigMap => ["", "v1", "configmaps", "ConfigMap"],
            Self::Secret => ["", "v1", "secrets", "Secret"],
            Self::Event => ["events.k8s.io", "v1", "events", "Event"],
            Self::Heartbeat => ["coordination.k8s.io", "v1", "leases", "Lease"],
            Self::Pod => ["", "v1", "pods", "Pod"],
        }
    }

    fn group(self) -> &'static str {
        self.names()[0]
    }

    pub(crate) fn plural(self) -> &'static str {
        self.names()[2]
    }

    /// What each object of it begins with.
    pub(crate) fn type_meta(self) -> Value {
        let [group, version, _, kind] = self.names();
        let api = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        json!({"apiVersion": api, "kind": kind})
    }

    /// Whether it is one of ours.
    fn is_ours(self) -> bool {
        matches!(self, Self::Lessor | Self::Lease)
    }

    pub(crate) fn is_attachable_or_lease(self) -> bool {
        matches!(self, Self::Lease | Self::ConfigMap | Self::Secret)
    }

    /// Whether our leases can follow its objects, beside other leases of ours.
    pub(crate) fn is_source(self) -> bool {
        matches!(self, Self::Heartbeat | Self::Pod)
    }
}

/// An object, or a kind of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

impl Target {
    pub(crate) fn object(kind: Kind, namespace: &str, name: &str) -> Self {
        let [namespace, name] = [namespace, name].map(str::to_owned);
        Self { kind, namespace, name, subresource: String::new() }
    }

    /// What a path means; `None` for what this server doesn't have.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (group, version, rest) = match parts.as_slice() {
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            ["api", version, rest @ ..] => ("", *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let part = |at: usize| rest.get(at).copied().unwrap_or_default();
        let is_it = |kind: &Kind| kind.names()[..3] == [group, version, part(0)];
        let kind = Kind::ALL.into_iter().find(is_it)?;
        let mut target = Self::object(kind, namespace, part(1));
        target.subresource = part(2).to_owned();
        Some(target)
    }

    fn key(&self) -> Key {
        (self.kind, self.namespace.clone(), self.name.clone())
    }
}

type Key = (Kind, String, String);

/// What watches show.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    event: &'static str,
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
    object: Value,
    /// What a watch of whole objects, or of metadata, shows: made once for all that watch.
    lines: [OnceCell<Vec<u8>>; 2],
}

impl Change {
    pub(crate) fn line(&self, metadata_only: bool) -> Vec<u8> {
        let line = || line(self.event, &self.object, metadata_only);
        self.lines[usize::from(metadata_only)].get_or_init(line).clone()
    }
}

/// A line of a watch. As the real one does, it says first what it shows.
pub(crate) fn line(event: &str, object: &Value, metadata_only: bool) -> Vec<u8> {
    let object = if metadata_only { metadata_of(object).to_string() } else { object.to_string() };
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n").into_bytes()
}

/// A code and a body.
pub(crate) type Answer = (u16, Value);

pub(crate) struct ApiServer {
    objects: BTreeMap<Key, Value>,
    version: u64,
    uids: u64,
    /// All changes, and how many of them no watch can begin at any more.
    pub(crate) changes: Vec<Change>,
    pub(crate) compacted: u64,
    /// Every write, for the checker.
    pub(crate) log: Vec<Request>,
    skew: Duration,
    /// The name that a replica has given to what it writes next.
    manager: String,
    /// A field of the status of leases that its CRD doesn't have, so that it is dropped.
    dropped: Option<&'static str>,
    /// The leases, by uid, whose `managedFields` were reset: what is written since isn't recorded.
    unrecorded: BTreeSet<String>,
    backup: Option<Backup>,
}

/// The store as it was once.
struct Backup {
    objects: BTreeMap<Key, Value>,
    version: u64,
    changes: usize,
    logged: usize,
}

impl ApiServer {
    pub(crate) fn new(dropped: Option<&'static str>) -> Self {
        Self {
            objects: BTreeMap::new(),
            version: 100,
            uids: 0,
            changes: Vec::new(),
            compacted: 0,
            log: Vec::new(),
            skew: Duration::ZERO,
            manager: String::new(),
            dropped,
            unrecorded: BTreeSet::new(),
            backup: None,
        }
    }

    pub(crate) fn back_up(&mut self) {
        self.backup = Some(Backup {
            objects: self.objects.clone(),
            version: self.version,
            changes: self.changes.len(),
            logged: self.log.len(),
        });
    }

    /// Goes back to the backup: what was written since was never written, and versions are given anew.
    pub(crate) fn restore(&mut self) {
        let Some(backup) = self.backup.take() else { return };
        self.objects = backup.objects;
        self.version = backup.version;
        self.compacted = backup.version;
        self.changes.truncate(backup.changes);
        self.log.truncate(backup.logged);
    }

    /// Resets who wrote what of all leases, as a client may that updates them: from then on nothing is recorded.
    pub(crate) fn reset_managers(&mut self, now: Timestamp) {
        let leases = self.objects.iter().filter(|((kind, ..), _)| *kind == Kind::Lease);
        let leases: Vec<(Key, Value)> = leases.map(|(key, lease)| (key.clone(), lease.clone())).collect();
        for ((kind, namespace, name), lease) in leases {
            self.unrecorded.insert(lease["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
            let target = Target::object(kind, &namespace, &name);
            let body = Some(json!({"metadata": {"managedFields": null}}));
            self.handle(&Call { user: "other".to_owned(), verb: "patch", target, body }, now);
        }
    }

    /// What a replica writes next is written under the name in this query of a URL.
    pub(crate) fn read_manager(&mut self, query: &str) {
        let name = query.split('&').find_map(|part| part.strip_prefix("fieldManager="));
        self.manager = name.unwrap_or_default().to_owned();
    }

    /// Which of its machines answers next: the one whose clock is right, or the other.
    pub(crate) fn choose_machine(&mut self, other: bool) {
        self.skew = if other { SKEW } else { Duration::ZERO };
    }

    /// What its machine's clock says at `now`.
    pub(crate) fn clock(&self, now: Timestamp) -> Timestamp {
        now - self.skew
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// From now on no watch can begin at a version before this.
    pub(crate) fn compact(&mut self) {
        self.compacted = self.version;
    }

    pub(crate) fn objects(&self, kind: Kind) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((other, ..), _)| *other == kind).map(|(_, object)| object)
    }

    /// All objects of a kind that are in this namespace (empty: any), and have this name (`None`: any).
    pub(crate) fn list(&self, kind: Kind, namespace: &str, name: Option<&str>) -> Vec<Value> {
        let is_it = |place: &Key| {
            place.0 == kind
                && (namespace.is_empty() || place.1 == namespace)
                && name.is_none_or(|name| place.2 == name)
        };
        self.objects.iter().filter(|(place, _)| is_it(place)).map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&Target::object(kind, namespace, name).key())
    }

    /// Does what is asked, at this time.
    pub(crate) fn handle(&mut self, call: &Call, now: Timestamp) -> Answer {
        let answer = match call.verb {
            "get" => match self.objects.get(&call.target.key()) {
                Some(object) => (200, object.clone()),
                None => not_found(&call.target),
            },
            "create" if call.target.kind == Kind::Event => (201, call.body.clone().unwrap_or_default()),
            "create" => self.create(call, now),
            "patch" => self.patch(call, now),
            "delete" => self.delete(call, now),
            verb => status(405, "MethodNotAllowed", &call.target, verb),
        };
        if !matches!(call.verb, "get") && call.target.kind != Kind::Event {
            self.log.push(Request {
                received: now,
                answered: now,
                user: call.user.clone(),
                verb: call.verb.to_owned(),
                group: call.target.kind.group().to_owned(),
                resource: call.target.kind.plural().to_owned(),
                subresource: call.target.subresource.clone(),
                namespace: call.target.namespace.clone(),
                name: call.target.name.clone(),
                code: answer.0,
                body: call.body.clone(),
                answer: Some(answer.1.clone()),
            });
        }
        answer
    }

    fn create(&mut self, call: &Call, now: Timestamp) -> Answer {
        let mut object = call.body.clone().unwrap_or_default();
        let mut target = call.target.clone();
        if let Some(name) = object.pointer("/metadata/name").and_then(Value::as_str) {
            target.name = name.to_owned();
        }
        if self.objects.contains_key(&target.key()) {
            return status(409, "AlreadyExists", &target, "it exists already");
        }
        self.uids += 1;
        merge(&mut object, &target.kind.type_meta());
        let meta = &mut object["metadata"];
        meta["uid"] = json!(format!("00000000-0000-4000-8000-{:012x}", self.uids));
        meta["generation"] = json!(1);
        meta["creationTimestamp"] = json!(whole_seconds(self.clock(now)));
        if !target.namespace.is_empty() {
            meta["namespace"] = json!(target.namespace);
        }
        if target.kind.is_ours() {
            // The status of what is created is dropped.
            if let Some(members) = object.as_object_mut() {
                members.remove("status");
            }
        }
        self.note_manager(&mut object, call, now);
        self.store("ADDED", target.key(), &mut object);
        (201, object)
    }

    fn patch(&mut self, call: &Call, now: Timestamp) -> Answer {
        let target = &call.target;
        let Some(old) = self.objects.get(&target.key()).cloned() else { return not_found(target) };
        let patch = call.body.clone().unwrap_or_default();
        if let Some(conflict) = precondition(target, &patch["metadata"], &old["metadata"]) {
            return conflict;
        }
        let mut new = old.clone();
        merge(&mut new, &patch);
        if target.kind.is_ours() {
            if target.subresource == "status" {
                new["metadata"] = old["metadata"].clone();
                copy(&mut new, &old, "spec");
                if let (Some(status), Some(dropped)) = (new["status"].as_object_mut(), self.dropped) {
                    status.remove(dropped);
                }
            } else {
                copy(&mut new, &old, "status");
            }
        }
        for kept in ["uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"] {
            copy(&mut new["metadata"], &old["metadata"], kept);
        }
        if new == old {
            return (200, old);
        }
        if let Some(broken) = broken_rule(target, &old, &new) {
            return status(422, "Invalid", target, broken);
        }
        if new["spec"] != old["spec"] {
            let generation = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
            new["metadata"]["generation"] = json!(generation + 1);
        }
        let going = old.pointer("/metadata/deletionTimestamp").is_some();
        if going && finalizers(&new).is_empty() {
            // The object goes, and the answer shows it in the version that it had before.
            self.remove(&target.key());
            return (200, new);
        }
        self.note_manager(&mut new, call, now);
        self.store("MODIFIED", target.key(), &mut new);
        (200, new)
    }

    fn delete(&mut self, call: &Call, now: Timestamp) -> Answer {
        let target = &call.target;
        let Some(mut object) = self.objects.get(&target.key()).cloned() else { return not_found(target) };
        let preconditions = call.body.as_ref().map(|body| body["preconditions"].clone()).unwrap_or_default();
        if let Some(conflict) = precondition(target, &preconditions, &object["metadata"]) {
            return conflict;
        }
        if !finalizers(&object).is_empty() {
            if object.pointer("/metadata/deletionTimestamp").is_none() {
                let generation = object.pointer("/metadata/generation").and_then(Value::as_i64);
                object["metadata"]["generation"] = json!(generation.unwrap_or_default() + 1);
                object["metadata"]["deletionTimestamp"] = json!(whole_seconds(self.clock(now)));
                self.store("MODIFIED", target.key(), &mut object);
            }
            return (200, object);
        }
        self.remove(&target.key());
        let details =
            json!({"name": target.name, "kind": target.kind.plural(), "uid": object["metadata"]["uid"]});
        (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details}))
    }

    fn store(&mut self, event: &'static str, key: Key, object: &mut Value) {
        self.change(event, &key, object);
        self.objects.insert(key, object.clone());
    }

    fn remove(&mut self, key: &Key) {
        let Some(mut object) = self.objects.remove(key) else { return };
        self.change("DELETED", key, &mut object);
    }

    fn change(&mut self, event: &'static str, (kind, namespace, name): &Key, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.changes.push(Change {
            version: self.version,
            event,
            kind: *kind,
            namespace: namespace.clone(),
            name: name.clone(),
            object: object.clone(),
            lines: Default::default(),
        });
    }

    /// Records who wrote what when, as `managedFields` do.
    fn note_manager(&self, object: &mut Value, call: &Call, now: Timestamp) {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        if !matches!(call.target.kind, Kind::Lease | Kind::Heartbeat) || self.unrecorded.contains(uid) {
            return;
        }
        let manager = if call.user.starts_with("lessor-") { &self.manager } else { &call.user };
        let part = if call.target.subresource == "status" { "status" } else { "spec" };
        let fields = call.body.as_ref().and_then(|body| body[part].as_object()).into_iter().flatten();
        let mut entries =
            object.pointer("/metadata/managedFields").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_it = |entry: &Value| entry["manager"] == **manager && entry["part"] == part;
        if !entries.iter().any(is_it) {
            let mut entry = json!({"manager": manager, "operation": "Update", "apiVersion": "lessor.dev/v1alpha1",
                "fieldsType": "FieldsV1", "part": part, "fieldsV1": {}});
            if part == "status" {
                entry["subresource"] = json!("status");
            }
            entries.push(entry);
        }
        for entry in entries.iter_mut().filter(|entry| is_it(entry)) {
            entry["time"] = json!(whole_seconds(self.clock(now)));
            let names: Vec<String> = fields.clone().map(|(name, _)| format!("f:{name}")).collect();
            for name in names {
                entry["fieldsV1"][format!("f:{part}")][name] = json!({});
            }
        }
        object["metadata"]["managedFields"] = json!(entries);
    }
}

fn finalizers(object: &Value) -> &[Value] {
    object.pointer("/metadata/finalizers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// What the preconditions that a request names mean, if they aren't met.
fn precondition(target: &Target, wanted: &Value, meta: &Value) -> Option<Answer> {
    let differs = |member: &str| !wanted[member].is_null() && wanted[member] != meta[member];
    (differs("uid") || differs("resourceVersion"))
        .then(|| status(409, "Conflict", target, "the object has been modified"))
}

/// The rules of the CRDs.
fn broken_rule(target: &Target, old: &Value, new: &Value) -> Option<&'static str> {
    if !target.kind.is_ours() {
        return None;
    }
    let (before, after) = (&old["status"], &new["status"]);
    if before["term"].is_i64() && after["term"].as_i64() < before["term"].as_i64() {
        return Some("status.term never decreases: another primary has taken over");
    }
    if before["endTime"].is_string() {
        if after["endTime"] != before["endTime"] {
            return Some("status.endTime, once set, never changes: the lease has ended");
        }
        if new["spec"] != old["spec"] {
            return Some("lease has ended: grant a new one");
        }
    }
    if old["spec"]["renewTime"].is_string() && !new["spec"]["renewTime"].is_string() {
        return Some("spec.renewTime, once set, can't be removed: change it to renew the lease");
    }
    None
}

fn not_found(target: &Target) -> Answer {
    status(404, "NotFound", target, "not found")
}

pub(crate) fn status(code: u16, reason: &str, target: &Target, message: &str) -> Answer {
    let details = json!({"name": target.name, "group": target.kind.group(), "kind": target.kind.plural()});
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": details, "code": code});
    (code, body)
}

/// An object as metadata alone.
pub(crate) fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn copy(to: &mut Value, from: &Value, member: &str) {
    match (from.get(member), to.as_object_mut()) {
        (Some(value), Some(to)) => drop(to.insert(member.to_owned(), value.clone())),
        (None, Some(to)) => drop(to.remove(member)),
        _ => {}
    }
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Some(members) = patch.as_object() else { return *target = patch.clone() };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        match (value, target.as_object_mut()) {
            (Value::Null, Some(target)) => drop(target.remove(name)),
            _ => merge(&mut target[name], value),
        }
    }
}

fn whole_seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time as the header `Date` has it.
pub(crate) fn http_date(time: Timestamp) -> String {
    time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}
