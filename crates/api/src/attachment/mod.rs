//! The annotations that attach an object, or keys of it, to leases.
//!
//! - `lessor.dev/lease: NAME` attaches the whole object;
//! - `key.lessor.dev/KEY: NAME` attaches one key;
//! - `lessor.dev/keys: '{"KEY": "NAME"}'` does the same for keys that can't be the name of an annotation;
//! - `lessor.dev/propagation: Foreground` says how a whole object is deleted.
//!
//! Parsing understands an annotation wholly or not at all. What it doesn't understand is a [`Problem`] and attaches
//! nothing, so nothing is ever removed on a guess.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Bound,
};

use serde::de::{Deserializer, MapAccess, Visitor};

mod name;
mod problem;
mod propagation;
#[cfg(test)]
mod tests;

use name::shortened_to;

use super::pointer::Pointer;

pub use name::{Key, KeyFault, KeyForm, LeaseName, NameFault};
pub use problem::{KeysFault, Problem};
pub use propagation::{PROPAGATION_ANNOTATION, Propagation};

pub(super) use name::shortened;

/// The annotation that attaches the whole object.
pub const LEASE_ANNOTATION: &str = "lessor.dev/lease";
/// What the annotations that attach one key each begin with.
pub const KEY_PREFIX: &str = "key.lessor.dev/";
/// The annotation that attaches keys as a JSON object.
pub const KEYS_ANNOTATION: &str = "lessor.dev/keys";

/// What an object's annotations attach to leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attachments {
    /// The lease whose end deletes the whole object.
    pub whole: Option<LeaseName>,
    /// The lease whose end removes each key.
    pub keys: BTreeMap<Key, LeaseName>,
    /// How the whole object is deleted.
    pub propagation: Propagation,
    /// What could not be understood, and so attaches nothing.
    pub problems: Vec<Problem>,
}

impl Attachments {
    /// Reads the annotations of an object whose keys have the form `form`.
    ///
    /// # Guarantees
    ///
    /// An object without any of our annotations costs a look into the map, and no allocation.
    pub fn parse(annotations: &BTreeMap<String, String>, form: KeyForm) -> Self {
        let mut attachments = Self::default();
        match Propagation::parse(annotations) {
            Ok(propagation) => attachments.propagation = propagation,
            Err(problem) => return Self { problems: vec![problem], ..Self::default() },
        }
        if let Some(name) = annotations.get(LEASE_ANNOTATION) {
            match LeaseName::parse(name) {
                Ok(name) => attachments.whole = Some(name),
                Err(fault) => attachments.problems.push(bad_lease_name(LEASE_ANNOTATION, name, fault)),
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
                    // A key's own annotation that can't be read names another lease than this one, for all we know.
                    for (_, key, _) in key_annotations(annotations) {
                        if !attachments.keys.contains_key(key) {
                            keys.remove(key);
                        }
                    }
                    attachments.merge(keys);
                }
                Err(fault) => attachments.problems.push(Problem::BadKeys { fault }),
            }
        }
        attachments
    }

    /// Whether nothing is attached and nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.whole.is_none() && self.keys.is_empty() && self.problems.is_empty()
    }

    /// The keys that go when `lease` ends.
    pub fn keys_of<'a>(&'a self, lease: &'a LeaseName) -> impl Iterator<Item = &'a Key> {
        self.keys.iter().filter(move |(_, owner)| *owner == lease).map(|(key, _)| key)
    }

    /// Adds what `lessor.dev/keys` attaches to what the keys' own annotations attach.
    fn merge(&mut self, keys: BTreeMap<Key, LeaseName>) {
        for (key, other) in keys {
            match self.keys.get(&key) {
                Some(one) if *one != other => {
                    self.problems.push(Problem::TwoLeases {
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

/// What has to become of an object's annotations when `gone` keys of it are removed: a new value, or `None` for "remove".
///
/// Only the attachments of those keys go. Of `gone`, a key that these annotations don't attach changes nothing. Where
/// `lessor.dev/keys` has to be rewritten, its keys are in order and it has no spaces.
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
) -> Result<(Key, LeaseName), Problem> {
    let key = match form {
        KeyForm::Data => Key::parse(key, form),
        KeyForm::Pointer => Err(KeyFault::NeedsPointer),
    };
    let key = key.map_err(|fault| Problem::BadKey { annotation: shortened(annotation), fault })?;
    let lease = LeaseName::parse(name).map_err(|fault| bad_lease_name(annotation, name, fault))?;
    Ok((key, lease))
}

fn bad_lease_name(annotation: &str, value: &str, fault: NameFault) -> Problem {
    Problem::BadLeaseName { annotation: shortened(annotation), value: shortened(value), fault }
}

/// Reads the value of `lessor.dev/keys`, wholly or not at all.
fn parse_keys(json: &str, form: KeyForm) -> Result<BTreeMap<Key, LeaseName>, KeysFault> {
    let Entries(entries) = serde_json::from_str(json).map_err(|error| KeysFault::NotJson {
        value: shortened(json),
        // The parser may repeat a value of any length in front of the place where it stumbled.
        error: shortened_to(200, &error.to_string()),
    })?;
    if entries.is_empty() {
        return Err(KeysFault::Empty);
    }
    let mut keys = BTreeMap::new();
    for (key, name) in &entries {
        let parsed = Key::parse(key, form)?;
        let lease = LeaseName::parse(name).map_err(|fault| KeysFault::BadLeaseName {
            key: shortened(key),
            value: shortened(name),
            fault,
        })?;
        if keys.insert(parsed, lease).is_some() {
            return Err(KeysFault::TwiceNamed(shortened(key)));
        }
    }
    if form == KeyForm::Pointer {
        refuse_nested(&keys)?;
    }
    Ok(keys)
}

fn refuse_nested(keys: &BTreeMap<Key, LeaseName>) -> Result<(), KeysFault> {
    let pointers: Result<BTreeSet<Pointer>, _> =
        keys.keys().map(|key| Pointer::parse(key.as_str())).collect();
    let pointers = pointers.map_err(KeyFault::from)?;
    // In the order of pointers, whatever lies inside one comes right behind it.
    for (outer, inner) in pointers.iter().zip(pointers.iter().skip(1)) {
        if outer.contains(inner) {
            return Err(KeysFault::Nested {
                outer: shortened(outer.as_str()),
                inner: shortened(inner.as_str()),
            });
        }
    }
    Ok(())
}

/// The members of a JSON object in their order, those of one name too: a map would keep the last of them only.
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
