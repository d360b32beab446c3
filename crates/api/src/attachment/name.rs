//! Names of leases, and keys of objects: what they may look like.

use std::{borrow::Borrow, fmt, sync::Arc};

use super::{KEYS_ANNOTATION, Pointer};
use crate::pointer::PointerError;

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

/// A key of an object: a key of its `data`, or a JSON pointer (which begins with a slash).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// What is wrong with the name of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
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

impl LeaseName {
    /// The name, shared with this.
    pub fn shared(&self) -> Arc<str> {
        self.0.clone()
    }

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
pub(crate) fn shortened(text: &str) -> String {
    shortened_to(SHOWN, text)
}

pub(super) fn shortened_to(bytes: usize, text: &str) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes)])
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
