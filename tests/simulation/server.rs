//! An API server in memory: of what the real one does, all that the operator relies on.

use std::{collections::BTreeMap, time::Duration};

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

/// An object, or a kind of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

impl Target {
    pub(crate) fn object(resource: &str, namespace: &str, name: &str) -> Self {
        let [resource, namespace, name] = [resource, namespace, name].map(str::to_owned);
        Self { resource, namespace, name, subresource: String::new() }
    }

    /// What a path means; `None` for what this server doesn't have.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let rest = path
            .strip_prefix("/apis/lessor.dev/v1alpha1/")
            .or_else(|| path.strip_prefix("/api/v1/"))
            .or_else(|| path.strip_prefix("/apis/events.k8s.io/v1/"))?;
        let parts: Vec<&str> = rest.split('/').collect();
        let (namespace, rest) = match parts.as_slice() {
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let part = |at: usize| rest.get(at).copied().unwrap_or_default();
        let mut target = Self::object(part(0), namespace, part(1));
        target.subresource = part(2).to_owned();
        Some(target)
    }

    fn group(&self) -> &'static str {
        if matches!(&*self.resource, "leases" | "lessors") { "lessor.dev" } else { "" }
    }

    fn key(&self) -> Key {
        (self.resource.clone(), self.namespace.clone(), self.name.clone())
    }
}

type Key = (String, String, String);

/// What watches show.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) resource: String,
    pub(crate) kind: &'static str,
    pub(crate) object: Value,
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
}

impl ApiServer {
    pub(crate) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            version: 100,
            uids: 0,
            changes: Vec::new(),
            compacted: 0,
            log: Vec::new(),
            skew: Duration::ZERO,
            manager: String::new(),
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

    pub(crate) fn objects<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |((kind, ..), _)| kind == resource).map(|(_, object)| object)
    }

    pub(crate) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&Target::object(resource, namespace, name).key())
    }

    /// Does what is asked, at this time.
    pub(crate) fn handle(&mut self, call: &Call, now: Timestamp) -> Answer {
        let answer = match call.verb {
            "get" => match self.objects.get(&call.target.key()) {
                Some(object) => (200, object.clone()),
                None => not_found(&call.target),
            },
            "create" if call.target.resource == "events" => (201, call.body.clone().unwrap_or_default()),
            "create" => self.create(call, now),
            "patch" => self.patch(call, now),
            "delete" => self.delete(call, now),
            verb => status(405, "MethodNotAllowed", &call.target, verb),
        };
        if !matches!(call.verb, "get") && call.target.resource != "events" {
            self.log.push(Request {
                received: now,
                answered: now,
                user: call.user.clone(),
                verb: call.verb.to_owned(),
                group: call.target.group().to_owned(),
                resource: call.target.resource.clone(),
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
        let meta = &mut object["metadata"];
        meta["uid"] = json!(format!("00000000-0000-4000-8000-{:012x}", self.uids));
        meta["generation"] = json!(1);
        meta["creationTimestamp"] = json!(whole_seconds(self.clock(now)));
        if !target.namespace.is_empty() {
            meta["namespace"] = json!(target.namespace);
        }
        if target.group() == "lessor.dev" {
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
        if target.group() == "lessor.dev" {
            if target.subresource == "status" {
                new["metadata"] = old["metadata"].clone();
                copy(&mut new, &old, "spec");
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
        let details = json!({"name": target.name, "kind": target.resource, "uid": object["metadata"]["uid"]});
        (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details}))
    }

    fn store(&mut self, kind: &'static str, key: Key, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let change = Change { version: self.version, resource: key.0.clone(), kind, object: object.clone() };
        self.changes.push(change);
        self.objects.insert(key, object.clone());
    }

    fn remove(&mut self, key: &Key) {
        let Some(mut object) = self.objects.remove(key) else { return };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.changes.push(Change { version: self.version, resource: key.0.clone(), kind: "DELETED", object });
    }

    /// Records who wrote what when, as `managedFields` do.
    fn note_manager(&self, object: &mut Value, call: &Call, now: Timestamp) {
        if call.target.resource != "leases" {
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
    if target.group() != "lessor.dev" {
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
    let details = json!({"name": target.name, "group": target.group(), "kind": target.resource});
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
