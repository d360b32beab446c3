//! The annotations that attach an object, or keys of it, to leases.
//!
//! - `lessor.dev/lease: NAME` attaches the whole object;
//! - `key.lessor.dev/KEY: NAME` attaches one key;
//! - `lessor.dev/keys: '{"KEY": "NAME"}'` does the same for keys that can't be the name of an annotation.
//!
//! Parsing understands an annotation wholly or not at all. What it doesn't understand is a [`Problem`] and attaches
//! nothing, so nothing is ever removed on a guess.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Bound,
    sync::Arc,
};

use serde::de::{Deserializer, MapAccess, Visitor};

use super::pointer::{Pointer, PointerError};

/// The annotation that attaches the whole object.
pub const LEASE_ANNOTATION: &str = "lessor.dev/lease";
/// What the annotations that attach one key each begin with.
pub const KEY_PREFIX: &str = "key.lessor.dev/";
/// The annotation that attaches keys as a JSON object.
pub const KEYS_ANNOTATION: &str = "lessor.dev/keys";

/// The longest name of an object, and of a key of a ConfigMap or Secret.
const MAX_NAME_LENGTH: usize = 253;
/// How much of a value a message shows, in bytes.
const SHOWN: usize = 60;

/// What the keys of an object are: it depends on the object's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyForm {
    /// ConfigMap and Secret: keys of `data` and `binaryData`.
    Data,
    /// Any other kind: JSON pointers to members.
    Pointer,
}

/// The name of a lease, in the namespace of the object that is attached to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName(Arc<str>);

/// A key of an object: a key of its `data`, or a JSON pointer (which begins with a slash).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// What an object's annotations attach to leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachments {
    /// The lease whose end deletes the whole object.
    pub whole: Option<LeaseName>,
    /// The lease whose end removes each key.
    pub keys: BTreeMap<Key, LeaseName>,
    /// What could not be understood, and so attaches nothing.
    pub problems: Vec<Problem>,
}

/// An annotation, or a key named by annotations, that attaches nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The value names no lease.
    #[error("annotation {annotation:?} is {value:?}, which is no name of a lease: {fault}")]
    BadLeaseName {
        /// The annotation, shortened.
        annotation: String,
        /// Its value, shortened.
        value: String,
        /// What is wrong, and what would be right.
        fault: NameFault,
    },
    /// What follows `key.lessor.dev/` names no key that an object of this kind can have.
    #[error("annotation {annotation:?} names no key: {fault}")]
    BadKey {
        /// The annotation, shortened.
        annotation: String,
        /// What is wrong, and what would be right.
        fault: KeyFault,
    },
    /// `lessor.dev/keys` is void as a whole.
    #[error("annotation \"{KEYS_ANNOTATION}\" attaches nothing: {fault}")]
    BadKeys {
        /// The first thing that is wrong, and what would be right.
        fault: KeysFault,
    },
    /// Two annotations attach one key to different leases.
    #[error(
        "key {key:?} is attached to lease {one:?} by annotation \"{KEY_PREFIX}{key}\" and to lease {other:?} by annotation \
         \"{KEYS_ANNOTATION}\": it stays as it is until one of them is removed"
    )]
    TwoLeases {
        /// The key.
        key: String,
        /// The lease named by the key's own annotation.
        one: String,
        /// The lease named by `lessor.dev/keys`.
        other: String,
    },
}

/// What is wrong with the name of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    /// There is none.
    #[error("it is empty; write the name of a lease in the same namespace, like \"session-42\"")]
    Empty,
    /// It is too long.
    #[error("it has {0} bytes and names have at most {MAX_NAME_LENGTH}; write one like \"session-42\"")]
    TooLong(usize),
    /// It has a character that no name has, or one in the wrong place.
    #[error(
        "names have lower case letters, digits, \"-\" and \".\", and begin and end with a letter or digit, \
         like \"session-42\""
    )]
    BadCharacter,
}

/// What is wrong with a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// No key of `data` can be called so.
    #[error(
        "{0:?} can be no key of a ConfigMap or Secret: those have letters, digits, \"-\", \"_\" and \".\", at most \
         {MAX_NAME_LENGTH}, like \"session-42.token\""
    )]
    NotOfData(String),
    /// No member can be removed by this pointer.
    #[error(transparent)]
    Pointer(#[from] PointerError),
    /// An annotation's name can't hold a pointer.
    #[error(
        "this kind has no keys of data; name a member by a JSON pointer, like {KEYS_ANNOTATION}: \
         '{{\"/spec/suspend\": \"session-42\"}}'"
    )]
    NeedsPointer,
}

/// Why `lessor.dev/keys` is void.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysFault {
    /// It is no JSON object whose values are strings.
    #[error(
        "{value:?} is no JSON object of keys and names of leases ({error}); write it like '{}'",
        r#"{"KEY": "session-42"}"#
    )]
    NotJson {
        /// The value, shortened.
        value: String,
        /// What the JSON parser says.
        error: String,
    },
    /// It names no key.
    #[error("it names no key; write it like '{}', or remove it", r#"{"KEY": "session-42"}"#)]
    Empty,
    /// It names a key twice.
    #[error("it names the key {0:?} twice; leave one of them")]
    TwiceNamed(String),
    /// It names something that is no key.
    #[error(transparent)]
    BadKey(#[from] KeyFault),
    /// It gives a key something that is no name of a lease.
    #[error("key {key:?} has {value:?}, which is no name of a lease: {fault}")]
    BadLeaseName {
        /// The key, shortened.
        key: String,
        /// Its value, shortened.
        value: String,
        /// What is wrong, and what would be right.
        fault: NameFault,
    },
    /// One pointer lies inside another.
    #[error("{inner:?} lies inside {outer:?}; leave one of them")]
    Nested {
        /// The pointer to the whole.
        outer: String,
        /// The pointer to a part of it.
        inner: String,
    },
}

impl Problem {
    /// One word for it: the reason of an Event, or the label of a metric.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::BadLeaseName { .. } => "BadLeaseName",
            Self::BadKey { .. } => "BadKey",
            Self::BadKeys { .. } => "BadKeys",
            Self::TwoLeases { .. } => "TwoLeases",
        }
    }
}

impl Attachments {
    /// Reads the annotations of an object whose keys have the form `form`.
    ///
    /// # Guarantees
    ///
    /// An object without any of our annotations costs a look into the map, and no allocation.
    pub fn parse(annotations: &BTreeMap<String, String>, form: KeyForm) -> Self {
        let mut attachments = Self::default();
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
        error: shortened(&error.to_string()),
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

impl LeaseName {
    /// Reads the name of a lease: a DNS subdomain, as the API server demands of any object's name.
    ///
    /// # Errors
    ///
    /// Says what is wrong with `name`.
    pub fn parse(name: &str) -> Result<Self, NameFault> {
        if name.is_empty() {
            return Err(NameFault::Empty);
        }
        if name.len() > MAX_NAME_LENGTH {
            return Err(NameFault::TooLong(name.len()));
        }
        let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_label = |label: &str| {
            let bytes = label.as_bytes();
            bytes.iter().all(|byte| is_alphanumeric(*byte) || *byte == b'-')
                && bytes.first().is_some_and(|byte| is_alphanumeric(*byte))
                && bytes.last().is_some_and(|byte| is_alphanumeric(*byte))
        };
        if name.split('.').all(is_label) { Ok(Self(name.into())) } else { Err(NameFault::BadCharacter) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Key {
    /// Reads a key of an object whose keys have the form `form`.
    ///
    /// # Errors
    ///
    /// Says what is wrong with `key` and shows how it would be right.
    pub fn parse(key: &str, form: KeyForm) -> Result<Self, KeyFault> {
        match form {
            KeyForm::Data if is_data_key(key) => Ok(Self(key.into())),
            KeyForm::Data => Err(KeyFault::NotOfData(shortened(key))),
            KeyForm::Pointer => Ok(Pointer::parse(key).map(|pointer| Self(pointer.as_str().into()))?),
        }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether the API server takes `key` as a key of a ConfigMap's or Secret's data.
fn is_data_key(key: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_NAME_LENGTH).contains(&key.len())
        && key.bytes().all(is_allowed)
        && key != "."
        && !key.starts_with("..")
}

/// A text as a message shows it: cut, if it is long, where a character ends.
pub(super) fn shortened(text: &str) -> String {
    if text.len() <= SHOWN {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(SHOWN)])
}

macro_rules! text {
    ($name:ident) => {
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
text!(LeaseName);
text!(Key);
