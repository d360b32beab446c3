//! The versions of each object, in the order in which they were stored.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::Request;

/// One version of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version<'a> {
    /// The `resourceVersion`: the order of all writes.
    pub(crate) number: u64,
    /// The object, or its metadata only.
    pub(crate) object: &'a Value,
    /// The write that stored it.
    pub(crate) made_by: &'a Request,
}

impl<'a> Version<'a> {
    pub(crate) fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.object.pointer(pointer).filter(|value| !value.is_null())
    }

    pub(crate) fn has_finalizer(&self, finalizer: &str) -> bool {
        let finalizers = self.at("/metadata/finalizers").and_then(Value::as_array);
        finalizers.is_some_and(|finalizers| finalizers.iter().any(|name| name == finalizer))
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.at("/metadata/deletionTimestamp").is_some()
    }

    fn has_no_finalizer(&self) -> bool {
        self.at("/metadata/finalizers").and_then(Value::as_array).is_none_or(Vec::is_empty)
    }
}

/// An object from its creation to its deletion.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    /// In order.
    pub(crate) versions: Vec<Version<'a>>,
    /// What removed it in the end.
    pub(crate) gone_by: Option<&'a Request>,
}

impl<'a> Object<'a> {
    pub(crate) fn is_of(&self, group: &str, resource: &str) -> bool {
        self.group == group && self.resource == resource
    }

    pub(crate) fn version(&self, number: u64) -> Option<&Version<'a>> {
        let at = self.versions.binary_search_by_key(&number, |version| version.number).ok()?;
        self.versions.get(at)
    }

    /// The version that was stored when `number` was written somewhere.
    pub(crate) fn as_of(&self, number: u64) -> Option<&Version<'a>> {
        self.versions.iter().rev().find(|version| version.number <= number)
    }

    /// When the last request about it was received.
    pub(crate) fn last_seen(&self) -> Timestamp {
        let seen = self.versions.iter().map(|version| version.made_by).chain(self.gone_by);
        seen.map(|request| request.received).max().unwrap_or(Timestamp::MIN)
    }

    /// Resource, namespace and name, for people.
    pub(crate) fn label(&self) -> String {
        format!("{} {}/{}", self.resource, self.namespace, self.name)
    }
}

/// Everything that was stored.
#[derive(Debug, Default)]
pub(crate) struct History<'a> {
    /// By uid.
    pub(crate) objects: BTreeMap<&'a str, Object<'a>>,
    /// Writes that may have been stored, though their answers don't say so.
    pub(crate) unsure: Vec<&'a Request>,
}

impl<'a> History<'a> {
    pub(crate) fn of(requests: &'a [Request]) -> Self {
        let mut history = Self::default();
        let mut deletions = Vec::new();
        for request in requests {
            if request.is_unsure() {
                history.unsure.push(request);
            }
            let (true, Some(answer)) = (request.is_accepted(), &request.answer) else { continue };
            match (answer.get("items").and_then(Value::as_array), request.verb.as_str()) {
                (Some(items), "deletecollection") => {
                    let uids = items.iter().filter_map(|item| item.pointer("/metadata/uid"));
                    deletions.extend(uids.filter_map(|uid| Some((uid.as_str()?, request))));
                }
                (None, "delete") if answer["kind"] == "Status" => {
                    let uid = answer.pointer("/details/uid").and_then(Value::as_str);
                    deletions.extend(uid.map(|uid| (uid, request)));
                }
                _ => history.add(request, answer),
            }
        }
        for object in history.objects.values_mut() {
            // Of writes that stored nothing new, and answer with what was there, the one that came first had stored it.
            object.versions.sort_by_key(|version| (version.number, version.made_by.received));
            object.versions.dedup_by_key(|version| version.number);
        }
        for (uid, request) in deletions {
            // One with finalizers lives on; whatever removes the last of them is its end.
            if let Some(object) = history.objects.get_mut(uid)
                && object.versions.last().is_some_and(Version::has_no_finalizer)
            {
                object.gone_by.get_or_insert(request);
            }
        }
        history
    }

    fn add(&mut self, request: &'a Request, answer: &'a Value) {
        let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str);
        let (Some(uid), Some(Ok(number)), Some(name)) = (
            text("/metadata/uid"),
            text("/metadata/resourceVersion").map(str::parse),
            text("/metadata/name"),
        ) else {
            return;
        };
        let object = self.objects.entry(uid).or_insert_with(|| Object {
            group: &request.group,
            resource: &request.resource,
            namespace: text("/metadata/namespace").unwrap_or_default(),
            name,
            versions: Vec::new(),
            gone_by: None,
        });
        let version = Version { number, object: answer, made_by: request };
        if version.is_deleting() && version.has_no_finalizer() {
            // Nothing is stored any more: the answer repeats the number of the last version.
            object.gone_by = Some(request);
        } else {
            object.versions.push(version);
        }
    }
}
