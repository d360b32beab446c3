//! The annotations that attach an object, or keys of it, to leases.
//!
//! - `lessor.dev/lease: NAME` attaches the whole object;
//! - `key.lessor.dev/KEY: NAME` attaches one key;
//! - `lessor.dev/keys: '{"KEY": "NAME"}'` attaches keys that aren't valid in the name of an annotation;
//! - `lessor.dev/propagation: Foreground` sets the propagation policy of the deletion of a whole object.
//!
//! An annotation is valid as a whole or not at all. An invalid annotation is an [`AttachmentProblem`] and attaches nothing, so
//! nothing is removed by mistake.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Bound,
};

use serde::de::{Deserializer, MapAccess, Visitor};

mod annotation;
mod name;
mod problem;
mod propagation;
#[cfg(test)]
mod tests;

use crate::{
    pointer::Pointer,
    shorten::{shortened, shortened_to},
};

pub use annotation::{KEY_PREFIX, KEYS_ANNOTATION, LEASE_ANNOTATION, PROPAGATION_ANNOTATION};
pub use name::{InvalidKey, InvalidLeaseName, Key, KeyForm, LeaseName};
pub use problem::{AttachmentProblem, InvalidKeys};
pub use propagation::Propagation;

/// What the annotations of an object attach to leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attachments {
    /// The lease whose end deletes the whole object.
    pub whole: Option<LeaseName>,
    /// The lease whose end removes each key.
    pub keys: BTreeMap<Key, LeaseName>,
    /// The propagation policy of the deletion of the whole object.
    pub propagation: Propagation,
    /// Why annotations attach nothing.
    pub problems: Vec<AttachmentProblem>,
}

impl Attachments {
    /// Parses the annotations of an object whose keys have the form `form`.
    ///
    /// # Guarantees
    ///
    /// For an object without annotations of lessor.dev, it allocates nothing.
    pub fn parse(annotations: &BTreeMap<String, String>, form: KeyForm) -> Self {
        let mut attachments = Self::default();
        match Propagation::parse(annotations) {
            Ok(propagation) => attachments.propagation = propagation,
            Err(problem) => return Self { problems: vec![problem], ..Self::default() },
        }
        if let Some(name) = annotations.get(LEASE_ANNOTATION) {
            match LeaseName::parse(name) {
                Ok(name) => attachments.whole = Some(name),
                Err(reason) => attachments.problems.push(invalid_lease_name(LEASE_ANNOTATION, name, reason)),
            }
        }
        for (annotation, key, name) in key_annotations(annotations) {
            match parse_key_annotation(annotation, key, name, form) {
                Ok((key, lease)) => {
                    attachments.keys.insert(key, lease);
                }
                Err(problem) => attachments.problems.push(problem),
            }
        }
        if let Some(json) = annotations.get(KEYS_ANNOTATION) {
            match parse_keys(json, form) {
                Ok(mut keys) => {
                    // If the key's own annotation is invalid, it may have been meant for another lease than this one.
                    for (_, key, _) in key_annotations(annotations) {
                        if !attachments.keys.contains_key(key) {
                            keys.remove(key);
                        }
                    }
                    attachments.merge(keys);
                }
                Err(reason) => attachments.problems.push(AttachmentProblem::InvalidKeys { reason }),
            }
        }
        attachments
    }

    /// Whether there are neither attachments nor problems.
    pub fn is_empty(&self) -> bool {
        self.whole.is_none() && self.keys.is_empty() && self.problems.is_empty()
    }

    /// The keys that are removed when `lease` ends.
    pub fn keys_of<'a>(&'a self, lease: &'a LeaseName) -> impl Iterator<Item = &'a Key> {
        self.keys.iter().filter(move |(_, owner)| *owner == lease).map(|(key, _)| key)
    }

    /// Adds the keys of `lessor.dev/keys` to those of the keys' own annotations.
    fn merge(&mut self, keys: BTreeMap<Key, LeaseName>) {
        for (key, other) in keys {
            match self.keys.get(&key) {
                Some(one) if *one != other => {
                    self.problems.push(AttachmentProblem::TwoLeases {
                        key: key.to_string(),
                        one: shortened(one.as_str()),
                        other: shortened(other.as_str()),
                    });
                    self.keys.remove(&key);
                }
                _ => {
                    self.keys.insert(key, other);
                }
            }
        }
    }
}

/// The changes to an object's annotations when the keys `gone` are removed: a new value, or `None` to remove the annotation.
///
/// Only attachments of these keys are changed; a key that isn't attached has no effect. A rewritten `lessor.dev/keys` has
/// its keys in order, and no spaces.
pub fn annotations_after(
    annotations: &BTreeMap<String, String>,
    form: KeyForm,
    gone: &BTreeSet<Key>,
) -> BTreeMap<String, Option<String>> {
    let attached = Attachments::parse(annotations, form).keys;
    let goes = |key: &Key| gone.contains(key) && attached.contains_key(key);

    let mut changes: BTreeMap<String, Option<String>> = key_annotations(annotations)
        .filter(|(annotation, key, name)| {
            parse_key_annotation(annotation, key, name, form).is_ok_and(|(key, _)| goes(&key))
        })
        .map(|(annotation, ..)| (annotation.to_owned(), None))
        .collect();

    if let Some(Ok(mut keys)) = annotations.get(KEYS_ANNOTATION).map(|json| parse_keys(json, form)) {
        let before = keys.len();
        keys.retain(|key, _| !goes(key));
        if keys.is_empty() {
            changes.insert(KEYS_ANNOTATION.to_owned(), None);
        } else if keys.len() < before {
            changes.insert(KEYS_ANNOTATION.to_owned(), Some(keys_to_json(&keys)));
        }
    }
    changes
}

/// The value of `lessor.dev/keys` that attaches `keys`.
pub fn keys_to_json(keys: &BTreeMap<Key, LeaseName>) -> String {
    let members: serde_json::Map<String, serde_json::Value> =
        keys.iter().map(|(key, lease)| (key.to_string(), lease.as_str().into())).collect();
    serde_json::Value::Object(members).to_string()
}

/// Each `key.lessor.dev/KEY: NAME`, as annotation, key and name.
fn key_annotations(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str, &str)> {
    annotations.range::<str, _>((Bound::Included(KEY_PREFIX), Bound::Unbounded)).map_while(
        |(annotation, name)| {
            annotation.strip_prefix(KEY_PREFIX).map(|key| (annotation.as_str(), key, name.as_str()))
        },
    )
}

fn parse_key_annotation(
    annotation: &str,
    key: &str,
    name: &str,
    form: KeyForm,
) -> Result<(Key, LeaseName), AttachmentProblem> {
    let key = match form {
        KeyForm::Data => Key::parse(key, form),
        KeyForm::Pointer => Err(InvalidKey::NeedsPointer),
    };
    let key =
        key.map_err(|reason| AttachmentProblem::InvalidKey { annotation: shortened(annotation), reason })?;
    let lease = LeaseName::parse(name).map_err(|reason| invalid_lease_name(annotation, name, reason))?;
    Ok((key, lease))
}

fn invalid_lease_name(annotation: &str, value: &str, reason: InvalidLeaseName) -> AttachmentProblem {
    AttachmentProblem::InvalidLeaseName { annotation: shortened(annotation), value: shortened(value), reason }
}

/// Parses the value of `lessor.dev/keys`, as a whole or not at all.
fn parse_keys(json: &str, form: KeyForm) -> Result<BTreeMap<Key, LeaseName>, InvalidKeys> {
    let Entries(entries) = serde_json::from_str(json).map_err(|error| InvalidKeys::NotJson {
        value: shortened(json),
        // The parser's message may contain a value of any length.
        error: shortened_to(200, &error.to_string()),
    })?;
    if entries.is_empty() {
        return Err(InvalidKeys::Empty);
    }
    let mut keys = BTreeMap::new();
    for (key, name) in &entries {
        let parsed = Key::parse(key, form)?;
        let lease = LeaseName::parse(name).map_err(|reason| InvalidKeys::InvalidLeaseName {
            key: shortened(key),
            value: shortened(name),
            reason,
        })?;
        if keys.insert(parsed, lease).is_some() {
            return Err(InvalidKeys::DuplicateKey(shortened(key)));
        }
    }
    if form == KeyForm::Pointer {
        refuse_nested(&keys)?;
    }
    Ok(keys)
}

fn refuse_nested(keys: &BTreeMap<Key, LeaseName>) -> Result<(), InvalidKeys> {
    let pointers: Result<BTreeSet<Pointer>, _> =
        keys.keys().map(|key| Pointer::parse(key.as_str())).collect();
    let pointers = pointers.map_err(InvalidKey::from)?;
    // A pointer sorts directly before those inside it.
    for (outer, inner) in pointers.iter().zip(pointers.iter().skip(1)) {
        if outer.contains(inner) {
            return Err(InvalidKeys::Nested {
                outer: shortened(outer.as_str()),
                inner: shortened(inner.as_str()),
            });
        }
    }
    Ok(())
}

/// The members of a JSON object in their order, with duplicates, of which a map would keep only the last.
struct Entries(Vec<(String, String)>);

impl<'de> serde::Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = members.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Members)
    }
}
