//! Objects as watches read them: of very many, and whatever form they have.
//!
//! Why not as kube reads them: its guard builds a tree of the whole object, and copies it, before it reads it; and whatever
//! holds `managedFields` as they are builds a tree of these. Where 100,000 leases are listed, that is most of the time that a
//! start takes.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, Time};
use kube::{Resource, api::DynamicObject, core::ObjectMeta};
use lessor_api::{Lease, Lessor, lessor::LessorSpec};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{Value, from_value, json};

/// The object, or what can be said of one that can't be read: one bad object must not stop the watch of all.
#[derive(Clone, Debug)]
pub(super) struct Lenient<K>(pub(super) Result<K, Unreadable>);

/// An object that can't be read.
#[derive(Clone, Debug)]
pub(super) struct Unreadable {
    /// Its metadata.
    pub(super) metadata: ObjectMeta,
    /// Why not.
    pub(super) error: String,
}

/// An object that is watched.
pub(super) trait Readable: Resource + Sized {
    /// Reads it, but for its metadata.
    fn read(spec: Value, status: Value) -> serde_json::Result<Self>;
}

/// There is nothing in its spec.
impl Readable for Lessor {
    fn read(_: Value, status: Value) -> serde_json::Result<Self> {
        let spec = LessorSpec::default();
        Ok(Self { metadata: ObjectMeta::default(), spec, status: from_value(status)? })
    }
}

impl Readable for Lease {
    fn read(spec: Value, status: Value) -> serde_json::Result<Self> {
        Ok(Self { metadata: ObjectMeta::default(), spec: from_value(spec)?, status: from_value(status)? })
    }
}

/// Of other kinds only the metadata are watched.
impl Readable for DynamicObject {
    fn read(_: Value, _: Value) -> serde_json::Result<Self> {
        Ok(Self { types: None, metadata: ObjectMeta::default(), data: Value::Null })
    }
}

/// What is read of any object.
#[derive(Deserialize)]
struct Part {
    metadata: Metadata,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

/// What counts of the metadata.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    annotations: Option<BTreeMap<String, String>>,
    managed_fields: Option<Vec<Writer>>,
}

/// Somebody who wrote the object, and when. Of the fields, those of `spec` count that renew a lease.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Writer {
    manager: Option<String>,
    subresource: Option<String>,
    time: Option<Time>,
    #[serde(rename = "fieldsV1")]
    fields: Option<Fields>,
}

#[derive(Deserialize)]
struct Fields {
    #[serde(rename = "f:spec")]
    spec: Option<SpecFields>,
}

#[derive(Deserialize)]
struct SpecFields {
    #[serde(rename = "f:renewTime")]
    renew_time: Option<IgnoredAny>,
    #[serde(rename = "f:ttlSeconds")]
    ttl_seconds: Option<IgnoredAny>,
}

impl From<Metadata> for ObjectMeta {
    fn from(metadata: Metadata) -> Self {
        let writers = metadata.managed_fields;
        Self {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            generation: metadata.generation,
            deletion_timestamp: metadata.deletion_timestamp,
            finalizers: metadata.finalizers,
            annotations: metadata.annotations,
            managed_fields: writers.map(|writers| writers.into_iter().map(Into::into).collect()),
            ..Self::default()
        }
    }
}

impl From<Writer> for ManagedFieldsEntry {
    fn from(writer: Writer) -> Self {
        let renews = writer.fields.and_then(|fields| fields.spec).and_then(|spec| {
            let name = match (spec.renew_time, spec.ttl_seconds) {
                (Some(_), _) => "f:renewTime",
                (None, Some(_)) => "f:ttlSeconds",
                (None, None) => return None,
            };
            Some(FieldsV1(json!({"f:spec": {name: {}}})))
        });
        Self {
            manager: writer.manager,
            subresource: writer.subresource,
            time: writer.time,
            fields_v1: renews,
            ..Self::default()
        }
    }
}

impl<'de, K: Readable> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Part { metadata, spec, status } = Part::deserialize(deserializer)?;
        let metadata = metadata.into();
        Ok(Self(match K::read(spec, status) {
            Ok(mut object) => {
                *object.meta_mut() = metadata;
                Ok(object)
            }
            Err(error) => Err(Unreadable { metadata, error: error.to_string() }),
        }))
    }
}

impl<K: Resource> Resource for Lenient<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &K::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &K::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &K::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|unreadable| &unreadable.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|unreadable| &mut unreadable.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use kube::{ResourceExt, api::WatchEvent};
    use lessor_api::Recorded;
    use lessor_core::lease_object::LeaseObject;

    use super::*;

    fn event(ttl: &str) -> serde_json::Result<WatchEvent<Lenient<Lease>>> {
        serde_json::from_str(&format!(
            r#"{{"type":"ADDED","object":{{"kind":"Lease","apiVersion":"lessor.dev/v1alpha1",
            "metadata":{{"name":"cart","namespace":"shop","resourceVersion":"42"}},"spec":{{"ttlSeconds":{ttl}}}}}}}"#
        ))
    }

    #[test]
    fn of_an_object_that_can_not_be_read_its_metadata_is_known() {
        let Ok(WatchEvent::Added(lease)) = event("\"ten\"") else { panic!("an event") };
        assert_eq!((lease.name_any(), lease.resource_version()), ("cart".to_owned(), Some("42".to_owned())));
        let error = lease.0.err().map(|unreadable| unreadable.error).unwrap_or_default();
        assert!(error.contains("ten"), "{error}");
    }

    #[test]
    fn of_an_object_that_can_be_read_all_is_read_that_counts() {
        let writer = |manager: &str, time: &str, subresource: Option<&str>, fields: serde_json::Value| {
            json!({
                "manager": manager, "operation": "Update", "apiVersion": "lessor.dev/v1alpha1", "time": time,
                "fieldsType": "FieldsV1", "fieldsV1": fields, "subresource": subresource,
            })
        };
        let object = json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
            "metadata": {
                "name": "cart", "namespace": "shop", "uid": "0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10", "resourceVersion": "42",
                "generation": 3, "creationTimestamp": "2026-01-31T12:00:00Z", "deletionTimestamp": "2026-01-31T13:00:00Z",
                "finalizers": ["example.com/other", "lessor.dev/revoke"], "labels": {"app": "shop"},
                "managedFields": [
                    writer("kubectl", "2026-01-31T12:00:01Z", None, json!({"f:spec": {"f:holder": {}, "f:ttlSeconds": {}}})),
                    writer("holder", "2026-01-31T12:00:02Z", None, json!({"f:spec": {".": {}, "f:renewTime": {}}})),
                    writer("labels", "2026-01-31T12:00:03Z", None, json!({"f:spec": {"f:holder": {}}})),
                    writer("lessor", "2026-01-31T12:00:04Z", Some("status"), json!({"f:status": {"f:term": {}}})),
                ],
            },
            "spec": {"ttlSeconds": 10, "renewTime": "2026-01-31T12:00:00Z"},
            "status": {"specGeneration": 3, "term": 7, "conditions": []},
        });
        let whole: Lease = serde_json::from_value(object.clone()).expect("a lease");
        let hashed = |lease: &Lease| {
            let mut state = DefaultHasher::new();
            LeaseObject::read(lease).expect("a record").hash(&mut state);
            state.finish()
        };
        for event in [
            format!(r#"{{"type":"MODIFIED","object":{object}}}"#),
            format!(r#"{{"object":{object},"type":"MODIFIED"}}"#),
        ] {
            let event = serde_json::from_str::<WatchEvent<Lenient<Lease>>>(&event);
            let Ok(WatchEvent::Modified(Lenient(Ok(read)))) = event else { panic!("a lease") };
            assert_eq!(Recorded::read(&read), Recorded::read(&whole));
            assert_eq!(hashed(&read), hashed(&whole));
        }
    }

    #[test]
    fn what_is_no_json_is_no_event() {
        assert!(event("ten").is_err());
    }
}
