//! The JSON patch that removes members of an object of any kind, and changes nothing else.
//!
//! A merge patch would create the missing parents of a member, and replace an array on its path by an object. So the patch is
//! made for the object as it was read.

use std::collections::{BTreeMap, BTreeSet};

use lessor_api::{Key, KeyForm, Pointer, attachment::annotations_after, pointer::PointerTarget};
use lessor_core::{lease_object::ResourceVersion, request::RequestError};
use serde_json::{Value, json};
use uuid::Uuid;

/// A JSON patch that removes `keys` and their attachments from `object`, bound to the uid and version of the decision.
///
/// A key that points into an array stays, with its attachment, since positions in arrays shift.
///
/// # Errors
/// [`RequestError::Conflict`] if the object has another uid or version, [`RequestError::Unremovable`] if no key can be removed.
pub fn patch(
    object: &Value,
    uid: Uuid,
    version: ResourceVersion,
    keys: &BTreeSet<Key>,
    annotations: &BTreeMap<String, String>,
) -> Result<Value, RequestError> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let expected = version.to_string();
    if text("/metadata/uid") != uid.to_string() || text("/metadata/resourceVersion") != expected {
        return Err(RequestError::Conflict);
    }
    let mut operations = vec![
        // `replace` conflicts with a concurrent edit (409). `test` would fail with 422.
        json!({"op": "replace", "path": "/metadata/resourceVersion", "value": expected}),
        json!({"op": "test", "path": "/metadata/uid", "value": uid.to_string()}),
    ];
    let mut removed = BTreeSet::new();
    let mut kept = Vec::new();
    for key in keys {
        let Ok(pointer) = Pointer::parse(key.as_str()) else {
            kept.push(key.as_str());
            continue;
        };
        match pointer.locate(object) {
            PointerTarget::InArray => {
                kept.push(key.as_str());
                continue;
            }
            PointerTarget::Present => operations.push(json!({"op": "remove", "path": pointer.as_str()})),
            PointerTarget::Absent => {}
        }
        removed.insert(key.clone());
    }
    if removed.is_empty() {
        return Err(RequestError::Unremovable(format!(
            "{} points into an array, whose positions shift: name a member of an object instead",
            kept.join(", ")
        )));
    }
    for (annotation, value) in annotations_after(annotations, KeyForm::Pointer, &removed) {
        let path = format!("/metadata/annotations/{}", annotation.replace('~', "~0").replace('/', "~1"));
        operations.push(match value {
            None => json!({"op": "remove", "path": path}),
            Some(value) => json!({"op": "replace", "path": path, "value": value}),
        });
    }
    Ok(Value::Array(operations))
}

#[cfg(test)]
mod tests {
    use lessor_api::attachment::KEYS_ANNOTATION;

    use super::*;

    const UID: &str = "0e2b1c7e-95a5-4bb1-8f0b-5b2a6e1f6f10";

    fn object() -> Value {
        json!({
            "metadata": {"uid": UID, "resourceVersion": "7"},
            "spec": {"a/b": 1, "list": [1, 2], "deep": {"er": true}},
        })
    }

    fn removal(keys: &[&str], version: ResourceVersion) -> Result<Value, RequestError> {
        let attached: BTreeMap<&str, &str> =
            keys.iter().map(|key| (*key, "ended")).chain([("/spec/other", "lives")]).collect();
        let annotations = BTreeMap::from([(KEYS_ANNOTATION.to_owned(), json!(attached).to_string())]);
        let keys = keys.iter().map(|key| Key::parse(key, KeyForm::Pointer).expect("a pointer")).collect();
        patch(&object(), UID.parse().expect("a uid"), version, &keys, &annotations)
    }

    #[test]
    fn only_members_and_their_attachments_are_removed() {
        let patch = removal(&["/spec/a~1b", "/spec/deep/none", "/spec/none/deeper"], 7).expect("a patch");
        assert_eq!(
            patch,
            json!([
                {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "test", "path": "/metadata/uid", "value": UID},
                {"op": "remove", "path": "/spec/a~1b"},
                {
                    "op": "replace", "path": "/metadata/annotations/lessor.dev~1keys",
                    "value": r#"{"/spec/other":"lives"}"#,
                },
            ])
        );
    }

    #[test]
    fn a_member_inside_an_array_stays_and_the_others_are_removed() {
        let patch = removal(&["/spec/list/0", "/spec/deep"], 7).expect("a patch").to_string();
        assert!(patch.contains(r#""op":"remove","path":"/spec/deep""#), "{patch}");
        assert!(!patch.contains(r#""path":"/spec/list/0""#), "{patch}");
        assert!(patch.contains(r#"\"/spec/list/0\":\"ended\""#), "it stays attached: {patch}");
        assert!(matches!(removal(&["/spec/list/0"], 7), Err(RequestError::Unremovable(_))));
    }

    #[test]
    fn another_version_is_a_conflict() {
        assert_eq!(removal(&["/spec/deep"], 6), Err(RequestError::Conflict));
    }
}
