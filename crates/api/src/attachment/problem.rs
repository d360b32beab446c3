//! Errors in annotations, each with an example of a correct value.

use super::{
    annotation::{KEY_PREFIX, KEYS_ANNOTATION, PROPAGATION_ANNOTATION},
    name::{InvalidKey, InvalidLeaseName},
};

/// Why an annotation, or a key in it, attaches nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AttachmentProblem {
    /// The value is no lease name.
    #[error("annotation {annotation:?} has the invalid lease name {value:?}: {reason}")]
    InvalidLeaseName {
        /// The annotation, shortened.
        annotation: String,
        /// Its value, shortened.
        value: String,
        /// Why it is invalid.
        reason: InvalidLeaseName,
    },
    /// The part after `key.lessor.dev/` is no key of an object of this kind.
    #[error("annotation {annotation:?} has an invalid key: {reason}")]
    InvalidKey {
        /// The annotation, shortened.
        annotation: String,
        /// Why it is invalid.
        reason: InvalidKey,
    },
    /// `lessor.dev/keys` is invalid as a whole.
    #[error("annotation \"{KEYS_ANNOTATION}\" attaches nothing: {reason}")]
    InvalidKeys {
        /// The first reason.
        reason: InvalidKeys,
    },
    /// Two annotations attach one key to different leases.
    #[error(
        "key {key:?} is attached to lease {one:?} by annotation \"{KEY_PREFIX}{key}\" and to lease {other:?} by annotation \
         \"{KEYS_ANNOTATION}\": remove one of them; until then the key stays as it is"
    )]
    TwoLeases {
        /// The key.
        key: String,
        /// The lease in the key's own annotation.
        one: String,
        /// The lease in `lessor.dev/keys`.
        other: String,
    },
    /// The propagation policy is unknown, so nothing of the object is removed.
    #[error(
        "annotation \"{PROPAGATION_ANNOTATION}\" has the invalid value {value:?}: use \"Background\", \"Foreground\" or \
         \"Orphan\", or remove it; until then the object stays as it is"
    )]
    InvalidPropagation {
        /// Its value, shortened.
        value: String,
    },
}

/// Why `lessor.dev/keys` is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum InvalidKeys {
    /// It is no JSON object whose values are strings.
    #[error(
        "{value:?} is not a JSON object from keys to lease names ({error}); use one like '{}'",
        r#"{"KEY": "session-42"}"#
    )]
    NotJson {
        /// The value, shortened.
        value: String,
        /// The JSON parser's error.
        error: String,
    },
    /// It has no key.
    #[error("it has no keys; use a value like '{}', or remove it", r#"{"KEY": "session-42"}"#)]
    Empty,
    /// It has a key twice.
    #[error("it has the key {0:?} twice; keep one of them")]
    DuplicateKey(String),
    /// It has an invalid key.
    #[error(transparent)]
    InvalidKey(#[from] InvalidKey),
    /// It maps a key to an invalid lease name.
    #[error("key {key:?} has the invalid lease name {value:?}: {reason}")]
    InvalidLeaseName {
        /// The key, shortened.
        key: String,
        /// Its value, shortened.
        value: String,
        /// Why it is invalid.
        reason: InvalidLeaseName,
    },
    /// One pointer lies inside another.
    #[error("{inner:?} lies inside {outer:?}; keep one of them")]
    Nested {
        /// The pointer to the whole.
        outer: String,
        /// The pointer to a part of it.
        inner: String,
    },
}

impl AttachmentProblem {
    /// The problem in one word: the reason of an Event, and a label of a metric.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidLeaseName { .. } => "InvalidLeaseName",
            Self::InvalidKey { .. } => "InvalidKey",
            Self::InvalidKeys { .. } => "InvalidKeys",
            Self::TwoLeases { .. } => "TwoLeases",
            Self::InvalidPropagation { .. } => "InvalidPropagation",
        }
    }
}
