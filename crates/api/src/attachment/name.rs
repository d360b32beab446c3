//! Lease names and keys of objects.

use std::{borrow::Borrow, fmt, sync::Arc};

use super::annotation::KEYS_ANNOTATION;
use crate::{
    pointer::{InvalidPointer, Pointer},
    shorten::shortened,
};

/// The longest name of an object, and the longest key of a ConfigMap or Secret, in bytes.
const MAX_NAME_LENGTH: usize = 253;

/// The form of an object's keys, which depends on its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyForm {
    /// Keys of `data` and `binaryData`: ConfigMaps and Secrets.
    Data,
    /// JSON Pointers to members: all other kinds.
    Pointer,
}

impl KeyForm {
    /// The form of the keys of a kind; `group` is empty for the core group.
    pub fn of(group: &str, kind: &str) -> Self {
        match (group, kind) {
            ("", "ConfigMap" | "Secret") => Self::Data,
            _ => Self::Pointer,
        }
    }
}

/// The name of a lease, in the namespace of the object that is attached to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName(Arc<str>);

/// A key of an object: a key of its `data`, or a JSON Pointer (which begins with a slash).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Why a lease name is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum InvalidLeaseName {
    /// It is empty.
    #[error("it is empty; use the name of a lease in the same namespace, like \"session-42\"")]
    Empty,
    /// It is too long.
    #[error("it has {0} bytes, and at most {MAX_NAME_LENGTH} are allowed; use a name like \"session-42\"")]
    TooLong(usize),
    /// It is no DNS subdomain.
    #[error(
        "lease names consist of lower case letters, digits, \"-\" and \".\", and begin and end with a letter or digit, \
         like \"session-42\""
    )]
    NotASubdomain,
}

/// Why a key is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum InvalidKey {
    /// ConfigMaps and Secrets allow no such key.
    #[error(
        "invalid key {0:?}: keys of ConfigMaps and Secrets consist of at most {MAX_NAME_LENGTH} letters, digits, \"-\", \"_\" \
         and \".\", like \"session-42.token\""
    )]
    NotADataKey(String),
    /// The pointer is invalid, or its member is protected.
    #[error(transparent)]
    Pointer(#[from] InvalidPointer),
    /// The kind has no `data`, and the name of an annotation can't contain a pointer.
    #[error(
        "this kind has no data; attach a member by a JSON pointer, like {KEYS_ANNOTATION}: \
         '{{\"/spec/suspend\": \"session-42\"}}'"
    )]
    NeedsPointer,
}

impl LeaseName {
    /// The name, without a copy.
    pub fn shared(&self) -> Arc<str> {
        self.0.clone()
    }

    /// Parses a lease name: a DNS subdomain, like any object's name.
    ///
    /// # Errors
    ///
    /// Why `name` is invalid.
    pub fn parse(name: &str) -> Result<Self, InvalidLeaseName> {
        if name.is_empty() {
            return Err(InvalidLeaseName::Empty);
        }
        if name.len() > MAX_NAME_LENGTH {
            return Err(InvalidLeaseName::TooLong(name.len()));
        }
        let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_label = |label: &str| {
            let bytes = label.as_bytes();
            bytes.iter().all(|byte| is_alphanumeric(*byte) || *byte == b'-')
                && bytes.first().is_some_and(|byte| is_alphanumeric(*byte))
                && bytes.last().is_some_and(|byte| is_alphanumeric(*byte))
        };
        if name.split('.').all(is_label) {
            Ok(Self(name.into()))
        } else {
            Err(InvalidLeaseName::NotASubdomain)
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Key {
    /// Parses a key of the form `form`.
    ///
    /// # Errors
    ///
    /// Why `key` is invalid.
    pub fn parse(key: &str, form: KeyForm) -> Result<Self, InvalidKey> {
        match form {
            KeyForm::Data if is_data_key(key) => Ok(Self(key.into())),
            KeyForm::Data => Err(InvalidKey::NotADataKey(shortened(key))),
            KeyForm::Pointer => Ok(Pointer::parse(key).map(|pointer| Self(pointer.as_str().into()))?),
        }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether the API server accepts `key` as a key of a ConfigMap's or Secret's data.
fn is_data_key(key: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_NAME_LENGTH).contains(&key.len())
        && key.bytes().all(is_allowed)
        && key != "."
        && !key.starts_with("..")
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
