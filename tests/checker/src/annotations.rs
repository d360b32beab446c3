//! What the annotations of an object attach to which lease, as the documentation has it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

const WHOLE: &str = "lessor.dev/lease";
const KEYS: &str = "lessor.dev/keys";
const KEY_PREFIX: &str = "key.lessor.dev/";
const PROPAGATION: &str = "lessor.dev/propagation";
const POLICIES: [&str; 3] = ["Background", "Foreground", "Orphan"];

/// What of an object is attached to which lease.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Attached {
    /// The lease that the whole object goes with.
    pub(crate) whole: Option<String>,
    /// The lease that each key goes with. A key that two leases claim goes with none.
    pub(crate) keys: BTreeMap<String, String>,
}

impl Attached {
    /// Reads an object.
    pub(crate) fn of(object: &Value) -> Self {
        let mut owners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
        let annotations = || annotations.into_iter().flatten().filter_map(|(k, v)| Some((k, v.as_str()?)));
        // An object whose way of deletion is unknown isn't touched at all.
        if annotations().any(|(name, policy)| name == PROPAGATION && !POLICIES.contains(&policy)) {
            return Self::default();
        }
        for (annotation, lease) in annotations() {
            if let Some(key) = annotation.strip_prefix(KEY_PREFIX) {
                owners.entry(key).or_default().insert(lease);
            }
        }
        let listed: Option<Value> = annotations()
            .find(|(name, _)| *name == KEYS)
            .and_then(|(_, json)| serde_json::from_str(json).ok());
        let listed = listed.as_ref().and_then(Value::as_object);
        // One bad entry voids the whole annotation.
        if listed.is_some_and(|keys| keys.values().all(Value::is_string)) {
            for (key, lease) in listed.into_iter().flatten() {
                owners.entry(key).or_default().extend(lease.as_str());
            }
        }
        let keys = owners.into_iter().filter_map(|(key, leases)| match Vec::from_iter(leases)[..] {
            [lease] => Some((key.to_owned(), lease.to_owned())),
            _ => None,
        });
        Self {
            whole: annotations().find(|(name, _)| *name == WHOLE).map(|(_, lease)| lease.to_owned()),
            keys: keys.collect(),
        }
    }

    /// Everything that is attached to this lease: `None` for the whole object.
    pub(crate) fn to(&self, lease: &str) -> BTreeSet<Option<&str>> {
        let whole = self.whole.as_deref().filter(|owner| *owner == lease).map(|_| None);
        let keys = self.keys.iter().filter(|(_, owner)| *owner == lease).map(|(key, _)| Some(key.as_str()));
        whole.into_iter().chain(keys).collect()
    }

    /// Whether `annotation` is one of those that attach.
    pub(crate) fn is_ours(annotation: &str) -> bool {
        annotation == WHOLE || annotation == KEYS || annotation.starts_with(KEY_PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attached(annotations: Value) -> Attached {
        Attached::of(&json!({"metadata": {"annotations": annotations}}))
    }

    #[test]
    fn a_propagation_policy_that_is_none_voids_all() {
        let with =
            |policy: &str| attached(json!({"lessor.dev/lease": "a", "lessor.dev/propagation": policy}));
        assert_eq!(with("Orphan").whole.as_deref(), Some("a"));
        assert_eq!(with("orphan"), Attached::default());
    }

    #[test]
    fn both_forms_of_keys_are_read_and_a_whole_object() {
        let attached = attached(json!({
            "lessor.dev/lease": "a", "key.lessor.dev/one": "b", "lessor.dev/keys": r#"{".two": "b"}"#, "other": "c",
        }));
        assert_eq!(attached.whole.as_deref(), Some("a"));
        assert_eq!(attached.to("b"), [Some(".two"), Some("one")].into());
        assert_eq!(attached.to("a"), [None].into());
    }

    #[test]
    fn what_is_claimed_twice_or_unreadable_is_not_attached() {
        let twice = attached(json!({"key.lessor.dev/one": "a", "lessor.dev/keys": r#"{"one": "b"}"#}));
        assert_eq!(twice, Attached::default());
        assert_eq!(attached(json!({"lessor.dev/keys": r#"{"one": "a", "two": 2}"#})), Attached::default());
        assert_eq!(Attached::of(&json!({"metadata": {}})), Attached::default());
    }
}
