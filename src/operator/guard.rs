//! An object that may be of another form than it should be: its watch goes on all the same.
//!
//! Why not kube's own guard: it builds a tree of the whole object, and copies it, before it reads it. Where 100,000 leases are
//! listed, that is most of the time that a start takes.

use std::{borrow::Cow, sync::Arc};

use kube::{
    Resource,
    core::{ObjectMeta, PartialObjectMeta},
};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;

/// The object, or what can be said of one that can't be read.
#[derive(Clone, Debug)]
pub(super) struct Guarded<K>(pub(super) Result<K, Unreadable>);

/// An object that can't be read.
#[derive(Clone, Debug)]
pub(super) struct Unreadable {
    /// Its metadata.
    pub(super) metadata: ObjectMeta,
    /// Why not.
    pub(super) error: Arc<serde_json::Error>,
}

impl<'de, K: Resource + for<'a> Deserialize<'a>> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(match serde_json::from_str(text.get()) {
            Ok(object) => Ok(object),
            Err(error) => {
                let object: PartialObjectMeta<K> =
                    serde_json::from_str(text.get()).map_err(D::Error::custom)?;
                Err(Unreadable { metadata: object.metadata, error: Arc::new(error) })
            }
        }))
    }
}

impl<K: Resource> Resource for Guarded<K> {
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
    use kube::{ResourceExt, api::WatchEvent};

    use super::*;
    use crate::api::Lease;

    fn event(ttl: &str) -> serde_json::Result<WatchEvent<Guarded<Lease>>> {
        serde_json::from_str(&format!(
            r#"{{"type":"ADDED","object":{{"kind":"Lease","apiVersion":"lessor.dev/v1alpha1",
            "metadata":{{"name":"cart","namespace":"shop","resourceVersion":"42"}},"spec":{{"ttlSeconds":{ttl}}}}}}}"#
        ))
    }

    #[test]
    fn of_an_object_that_can_not_be_read_its_metadata_is_known() {
        let Ok(WatchEvent::Added(lease)) = event("\"ten\"") else { panic!("an event") };
        assert_eq!((lease.name_any(), lease.resource_version()), ("cart".to_owned(), Some("42".to_owned())));
        let error = lease.0.err().map(|unreadable| unreadable.error.to_string()).unwrap_or_default();
        assert!(error.contains("ten"), "{error}");
    }

    #[test]
    fn an_object_that_can_be_read_is_read() {
        let Ok(WatchEvent::Added(lease)) = event("10") else { panic!("an event") };
        assert_eq!(lease.0.ok().map(|lease| lease.spec.ttl_seconds), Some(10));
    }

    #[test]
    fn what_is_no_json_is_no_event() {
        assert!(event("ten").is_err());
    }
}
