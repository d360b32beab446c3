//! What annotations can get wrong, in words that show what would be right.

use super::{KEY_PREFIX, KEYS_ANNOTATION, KeyFault, NameFault, PROPAGATION_ANNOTATION};

/// An annotation, or a key named by annotations, that attaches nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
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
    /// How the object would be deleted can't be understood, so it isn't touched at all.
    #[error(
        "annotation \"{PROPAGATION_ANNOTATION}\" is {value:?}: write \"Background\", \"Foreground\" or \"Orphan\", or remove \
         it; until then the object isn't touched"
    )]
    BadPropagation {
        /// Its value, shortened.
        value: String,
    },
}

/// Why `lessor.dev/keys` is void.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
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
            Self::BadPropagation { .. } => "BadPropagation",
        }
    }
}
