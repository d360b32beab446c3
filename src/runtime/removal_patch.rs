//! The removal of members of an object of any kind, as a JSON patch that does this and nothing else.
//!
//! A merge patch, which metadata would be enough for, isn't: it makes the parents of a member that isn't there, and
//! replaces an array on the way by an object. So the object is read, and the patch made for what it is.

use std::collections::{BTreeMap, BTreeSet};

use lessor_api::{Key, KeyForm, Pointer, attachment::annotations_after, pointer::Location};
use lessor_core::{lease_object::ResourceVersion, request::RequestError};
use serde_json::{Value, json};
use uuid::Uuid;

/// A JSON patch that removes `keys` from `object`, and the attachments of these keys, as long as `object` is the version
/// that was decided on.
///
/// A key that leads into an array stays, with its attachment: positions shift.
///
/// # Errors
/// [`RequestError::Conflict`] when the object is another, or another version; [`RequestError::Unremovable`] when no key can go.
pub fn patch(
    object: &Value,
    uid: Uuid,
    version: ResourceVersion,
    keys: &BTreeSet<Key>,
    annotations: &BTreeMap<String, String>,
) -> Result<Value, RequestError> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let seen = version.to_string();
    if text("/metadata/uid") != uid.to_string() || text("/metadata/resourceVersion") != seen {
        return Err(RequestError::Conflict);
    }
    let mut operations = vec![
        // Not `test`, which fails with 422: what was edited at the same moment is a conflict.
        json!({"op": "replace", "path": "/metadata/resourceVersion", "value": seen}),
        json!({"op": "test", "path": "/metadata/uid", "value": uid.to_string()}),
    ];
    let mut gone = BTreeSet::new();
    let mut stays = Vec::new();
    for key in keys {
        let Ok(pointer) = Pointer::parse(key.as_str()) else {
            stays.push(key.as_str());
            continue;
        };
        match pointer.locate(object) {
            Location::InArray => {
                stays.push(key.as_str());
                continue;
            }
            Location::Present => operations.push(json!({"op": "remove", "path": pointer.as_str()})),
            Location::Absent => {}
        }
        gone.insert(key.clone());
    }
    if gone.is_empty() {
        return Err(RequestError::Unremovable(format!(
            "{} leads into an array, whose positions shift: name a member of an object instead",
            stays.join(", ")
        )));
    }
    for (annotation, value) in annotations_after(annotations, KeyForm::Pointer, &gone) {
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
    fn members_go_with_their_attachments_and_nothing_else_does() {
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
    fn what_leads_into_an_array_stays_and_holds_up_nothing_else() {
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
