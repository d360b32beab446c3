//! How annotations change when something is attached to a lease, or detached from it: pure functions.

use std::collections::{BTreeMap, BTreeSet};

use lessor_api::{
    Attachments, Key, KeyForm, LeaseName, Problem,
    attachment::{KEY_PREFIX, KEYS_ANNOTATION, KeysFault, LEASE_ANNOTATION, annotations_after, keys_to_json},
};

/// The longest part of an annotation's name behind the slash.
const MAX_ANNOTATION_NAME: usize = 63;

pub(super) type Annotations = BTreeMap<String, String>;
/// New values of annotations; `None` removes one.
pub(super) type Changes = BTreeMap<String, Option<String>>;

/// What attaches an object, or keys of it if any are named, to `lease`, whatever they were attached to
/// before.
pub(super) fn attaching(
    annotations: &Annotations,
    form: KeyForm,
    lease: &LeaseName,
    keys: &BTreeSet<Key>,
) -> Result<Changes, Problem> {
    if keys.is_empty() {
        return Ok(different(annotations, [(LEASE_ANNOTATION.to_owned(), Some(lease.to_string()))].into()));
    }
    // Away from wherever they are, and then to where they belong.
    let mut changes = annotations_after(annotations, form, keys);
    let mut in_json = BTreeMap::new();
    for key in keys {
        if form == KeyForm::Data && fits_an_annotation(key) {
            changes.insert(format!("{KEY_PREFIX}{key}"), Some(lease.to_string()));
        } else {
            in_json.insert(key.clone(), lease.clone());
        }
    }
    if !in_json.is_empty() {
        let rest = applied(annotations, &changes).get(KEYS_ANNOTATION).cloned();
        if let Some(json) = rest {
            let alone = Annotations::from([(KEYS_ANNOTATION.to_owned(), json)]);
            let there = Attachments::parse(&alone, form);
            // What can't be read can't be kept while something is added to it.
            if let Some(problem) = there.problems.into_iter().next() {
                return Err(problem);
            }
            in_json.extend(there.keys);
        }
        changes.insert(KEYS_ANNOTATION.to_owned(), Some(keys_to_json(&in_json)));
    }
    let after = Attachments::parse(&applied(annotations, &changes), form);
    match after.problems.into_iter().find(|problem| concerns(problem, keys)) {
        Some(problem) => Err(problem),
        None => Ok(different(annotations, changes)),
    }
}

/// What detaches from `lease`: these keys of an object, or whatever of it is attached where none is named.
pub(super) fn detaching(
    annotations: &Annotations,
    form: KeyForm,
    lease: &LeaseName,
    keys: &BTreeSet<Key>,
) -> Changes {
    let attached = Attachments::parse(annotations, form);
    let named = |key: &&Key| keys.is_empty() || keys.contains(*key);
    let gone: BTreeSet<Key> = attached.keys_of(lease).filter(named).cloned().collect();
    let mut changes = annotations_after(annotations, form, &gone);
    if keys.is_empty() && attached.whole.as_ref() == Some(lease) {
        changes.insert(LEASE_ANNOTATION.to_owned(), None);
    }
    changes
}

/// Whether a key's own annotation can name it: the server takes fewer names of annotations than of keys.
fn fits_an_annotation(key: &Key) -> bool {
    let bytes = key.as_str().as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= MAX_ANNOTATION_NAME && ends.into_iter().flatten().all(u8::is_ascii_alphanumeric)
}

/// Whether a problem keeps one of these keys from being attached.
fn concerns(problem: &Problem, keys: &BTreeSet<Key>) -> bool {
    match problem {
        Problem::TwoLeases { key, .. } => keys.iter().any(|ours| ours.as_str() == key),
        Problem::BadKeys { fault: KeysFault::Nested { .. } } => true,
        _ => false,
    }
}

fn applied(annotations: &Annotations, changes: &Changes) -> Annotations {
    let mut after = annotations.clone();
    for (name, value) in changes {
        match value {
            Some(value) => after.insert(name.clone(), value.clone()),
            None => after.remove(name),
        };
    }
    after
}

/// Those of the changes that change something.
fn different(annotations: &Annotations, mut changes: Changes) -> Changes {
    changes.retain(|name, value| annotations.get(name) != value.as_ref());
    changes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(name: &str) -> LeaseName {
        LeaseName::parse(name).unwrap()
    }

    fn keys(keys: &[&str], form: KeyForm) -> BTreeSet<Key> {
        keys.iter().map(|key| Key::parse(key, form).unwrap()).collect()
    }

    fn annotations(entries: &[(&str, &str)]) -> Annotations {
        entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_key_gets_its_own_annotation_where_its_name_allows_and_else_a_place_in_the_list() {
        let data = KeyForm::Data;
        let changes =
            attaching(&annotations(&[]), data, &name("a"), &keys(&["bob", ".bob.token"], data)).unwrap();
        let expected: Changes = [
            ("key.lessor.dev/bob".to_owned(), Some("a".to_owned())),
            ("lessor.dev/keys".to_owned(), Some(r#"{".bob.token":"a"}"#.to_owned())),
        ]
        .into();
        assert_eq!(changes, expected);
    }

    #[test]
    fn a_key_moves_to_its_new_lease_from_wherever_it_was_attached() {
        let before = annotations(&[("lessor.dev/keys", r#"{"bob":"old","eve":"old"}"#)]);
        let changes =
            attaching(&before, KeyForm::Data, &name("new"), &keys(&["bob"], KeyForm::Data)).unwrap();
        let after = Attachments::parse(&applied(&before, &changes), KeyForm::Data);
        assert!(after.problems.is_empty(), "{after:?}");
        assert_eq!(after.keys_of(&name("new")).count(), 1);
        assert_eq!(after.keys_of(&name("old")).count(), 1);
    }

    #[test]
    fn what_is_attached_already_needs_no_change() {
        let before = annotations(&[("lessor.dev/lease", "a"), ("key.lessor.dev/bob", "a")]);
        let whole = attaching(&before, KeyForm::Data, &name("a"), &BTreeSet::new()).unwrap();
        let key = attaching(&before, KeyForm::Data, &name("a"), &keys(&["bob"], KeyForm::Data)).unwrap();
        assert!(whole.is_empty() && key.is_empty(), "{whole:?} {key:?}");
    }

    #[test]
    fn a_broken_list_is_left_for_people_to_repair() {
        let before = annotations(&[("lessor.dev/keys", "{")]);
        assert!(attaching(&before, KeyForm::Data, &name("a"), &keys(&[".bob"], KeyForm::Data)).is_err());
        // It doesn't stand in the way of what goes elsewhere.
        assert!(attaching(&before, KeyForm::Data, &name("a"), &keys(&["bob"], KeyForm::Data)).is_ok());
    }

    #[test]
    fn a_member_inside_another_that_is_attached_is_refused() {
        let pointer = KeyForm::Pointer;
        let before = annotations(&[("lessor.dev/keys", r#"{"/spec/template":"a"}"#)]);
        let inner = keys(&["/spec/template/metadata"], pointer);
        assert!(attaching(&before, pointer, &name("a"), &inner).is_err());
    }

    #[test]
    fn detaching_leaves_what_belongs_to_others() {
        let before = annotations(&[
            ("lessor.dev/lease", "b"),
            ("key.lessor.dev/bob", "a"),
            ("lessor.dev/keys", r#"{".bob":"a",".eve":"b"}"#),
            ("example.com/other", "a"),
        ]);
        let changes = detaching(&before, KeyForm::Data, &name("a"), &BTreeSet::new());
        let after = applied(&before, &changes);
        let left = annotations(&[
            ("lessor.dev/lease", "b"),
            ("lessor.dev/keys", r#"{".eve":"b"}"#),
            ("example.com/other", "a"),
        ]);
        assert_eq!(after, left);
    }

    proptest! {
        #[test]
        fn attaching_moves_these_keys_and_nothing_else(
            own in prop::collection::btree_map("[.a-c]{1,3}", "[xy]", 0..4),
            listed in prop::collection::btree_map("[.a-c]{1,3}", "[xy]", 0..4),
            chosen in prop::collection::btree_set("[.a-c]{1,3}", 1..4),
        ) {
            let form = KeyForm::Data;
            let valid = |key: &String| Key::parse(key, form).is_ok();
            let mut before: Annotations = own
                .iter()
                .filter(|(key, _)| valid(key))
                .map(|(key, lease)| (format!("{KEY_PREFIX}{key}"), lease.clone()))
                .collect();
            let listed: BTreeMap<Key, LeaseName> = listed
                .iter()
                .filter_map(|(key, lease)| Some((Key::parse(key, form).ok()?, name(lease))))
                .collect();
            if !listed.is_empty() {
                before.insert(KEYS_ANNOTATION.to_owned(), keys_to_json(&listed));
            }
            let chosen: BTreeSet<Key> = chosen.iter().filter_map(|key| Key::parse(key, form).ok()).collect();
            prop_assume!(!chosen.is_empty());
            let old = Attachments::parse(&before, form);
            if let Ok(changes) = attaching(&before, form, &name("new"), &chosen) {
                let new = Attachments::parse(&applied(&before, &changes), form);
                for key in &chosen {
                    prop_assert_eq!(new.keys.get(key).map(LeaseName::as_str), Some("new"));
                }
                for (key, lease) in old.keys.iter().filter(|(key, _)| !chosen.contains(*key)) {
                    prop_assert_eq!(new.keys.get(key), Some(lease));
                }
                let detached = detaching(&applied(&before, &changes), form, &name("new"), &BTreeSet::new());
                let after = Attachments::parse(&applied(&applied(&before, &changes), &detached), form);
                prop_assert_eq!(after.keys_of(&name("new")).count(), 0);
            }
        }
    }
}
