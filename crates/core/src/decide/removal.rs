//! What is due in one attached object: which request removes whatever belongs to leases that have ended.
//!
//! Pure. Each request is bound to the uid and the version of the object that it was decided on, so that the API server rejects
//! it once the object has changed.

use std::collections::{BTreeMap, BTreeSet};

use lessor_api::{
    Key, KeyForm, LeaseName,
    attachment::{Propagation, annotations_after},
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{
    index::attachments::{Object, ObjectId, lease_at},
    metadata::{NamespacedName, ResourceVersion},
};

/// How to remove what is due in an object: one request, bound to one version of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Removal {
    /// Delete the object.
    Delete {
        /// The uid that must be there.
        uid: Uuid,
        /// The version that must be there.
        version: ResourceVersion,
        /// What becomes of the objects that it owns.
        propagation: Propagation,
    },
    /// Remove members of it, with the annotations that attach them. The object has to be read as a whole first.
    Members {
        /// The uid that must be there.
        uid: Uuid,
        /// The version that must be there.
        version: ResourceVersion,
        /// JSON Pointers.
        keys: BTreeSet<Key>,
        /// Our annotations as they stand.
        annotations: BTreeMap<String, String>,
    },
    /// Remove keys of it, with the annotations that attach them.
    Keys {
        /// The uid that must be there.
        uid: Uuid,
        /// Which.
        keys: BTreeSet<Key>,
        /// A merge patch that names uid and version.
        patch: Value,
    },
}

/// The request that removes what is due in this version of an object; `None`: nothing is due. `has_ended` returns whether the
/// end of a lease was committed and its attachments may be removed.
///
/// One request removes everything that is due in an object, whichever leases it was attached to; unless the API server has
/// refused that.
pub fn removal(
    id: &ObjectId,
    object: &Object,
    has_ended: impl Fn(&NamespacedName) -> bool,
) -> Option<Removal> {
    let ended = |name: &LeaseName| has_ended(&lease_at(id, name));
    // An object that is being deleted waits for finalizers of other controllers. Only its keys are left to remove.
    if !object.deleting && object.whole.as_ref().is_some_and(&ended) {
        return Some(Removal::Delete {
            uid: object.uid,
            version: object.version,
            propagation: object.propagation,
        });
    }
    let due = object.keys().iter().filter(|(_, name)| ended(name));
    let keys = object.next_keys(due.map(|(key, _)| key));
    if keys.is_empty() {
        return None;
    }
    if id.kind.form == KeyForm::Pointer {
        let annotations = object.annotations().clone();
        return Some(Removal::Members { uid: object.uid, version: object.version, keys, annotations });
    }
    let mut patch = json!({
        "metadata": {
            "uid": object.uid.to_string(),
            // This binds the patch to the version. A uid in a merge patch is not a precondition.
            "resourceVersion": object.version.to_string(),
            "annotations": annotations_after(object.annotations(), id.kind.form, &keys),
        },
    });
    // In a merge patch, null removes a member and is ignored where there is none. So the patch needs no knowledge of whether
    // a key is in `data` or in `binaryData`. A Secret has no `binaryData`.
    let nulls: Map<String, Value> = keys.iter().map(|key| (key.to_string(), Value::Null)).collect();
    patch["data"] = Value::Object(nulls.clone());
    if id.kind.resource.kind == "ConfigMap" {
        patch["binaryData"] = Value::Object(nulls);
    }
    Some(Removal::Keys { uid: object.uid, keys, patch })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;
    use crate::{attachable::Attachable, index::attachments::AttachmentIndex, kind::Kind};

    /// What is due in an object with these annotations, in short, when the lease `over` has ended and `runs` hasn't.
    fn due(kind: &Kind, annotations: Value, deleting: bool) -> String {
        let mut meta = json!({
            "namespace": "shop", "name": "cart", "uid": "0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10", "resourceVersion": "7",
            "annotations": annotations,
        });
        if deleting {
            meta["deletionTimestamp"] = json!("2026-01-31T12:00:00Z");
        }
        let meta: ObjectMeta = serde_json::from_value(meta).expect("metadata");
        let id = ObjectId { kind: Arc::new(kind.clone()), name: NamespacedName::new("shop", "cart") };
        let mut index = AttachmentIndex::default();
        index.apply(&id, &meta).expect("readable");
        let Some(object) = index.get(&id) else { return "not attached".to_owned() };
        let list = |keys: &BTreeSet<Key>| keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        match removal(&id, object, |lease| *lease == NamespacedName::new("shop", "over")) {
            None => "nothing".to_owned(),
            Some(Removal::Delete { version, .. }) => format!("delete at {version}"),
            Some(Removal::Members { keys, version, .. }) => format!("members {} at {version}", list(&keys)),
            Some(Removal::Keys { keys, patch, .. }) => {
                let version = patch["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                format!("keys {} at {version}", list(&keys))
            }
        }
    }

    #[test]
    fn what_is_due_in_an_object_follows_from_its_annotations_and_the_leases_that_have_ended() {
        let maps = Kind::config_map();
        let widgets: Attachable = "widgets.example.com:pointers".parse().expect("a kind");
        let widgets = widgets.resolve("v1", "Widget");
        for (kind, annotations, deleting, expected) in [
            (&maps, json!({}), false, "not attached"),
            (&maps, json!({"lessor.dev/lease": "runs"}), false, "nothing"),
            (&maps, json!({"lessor.dev/lease": "over"}), false, "delete at 7"),
            (&maps, json!({"lessor.dev/lease": "over"}), true, "nothing"),
            (&maps, json!({"key.lessor.dev/a": "runs"}), false, "nothing"),
            (&maps, json!({"key.lessor.dev/a": "over", "key.lessor.dev/b": "runs"}), false, "keys a at 7"),
            (
                &maps,
                json!({"key.lessor.dev/a": "over", "lessor.dev/keys": r#"{"b": "over"}"#}),
                false,
                "keys a b at 7",
            ),
            (&maps, json!({"lessor.dev/lease": "over", "key.lessor.dev/a": "over"}), false, "delete at 7"),
            (&maps, json!({"lessor.dev/lease": "over", "key.lessor.dev/a": "over"}), true, "keys a at 7"),
            (&maps, json!({"lessor.dev/lease": "runs", "key.lessor.dev/a": "over"}), false, "keys a at 7"),
            (&widgets, json!({"lessor.dev/keys": r#"{"/spec/a": "over"}"#}), false, "members /spec/a at 7"),
            (&widgets, json!({"lessor.dev/keys": r#"{"/spec/a": "runs"}"#}), false, "nothing"),
        ] {
            assert_eq!(
                due(kind, annotations.clone(), deleting),
                expected,
                "{annotations}, deleting: {deleting}"
            );
        }
    }
}
