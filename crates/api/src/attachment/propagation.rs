//! What becomes of the dependents of an object that is deleted with its lease.

use std::collections::BTreeMap;

use super::{Problem, shortened};

/// The annotation that says what becomes of an object's dependents.
pub const PROPAGATION_ANNOTATION: &str = "lessor.dev/propagation";

/// What becomes of the objects that an attached object owns, in the words of Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Propagation {
    /// They go after it.
    #[default]
    Background,
    /// They go before it.
    Foreground,
    /// They stay.
    Orphan,
}

impl Propagation {
    /// Reads it from the annotations of an object; without the annotation it is [`Background`](Self::Background).
    ///
    /// # Errors
    ///
    /// [`Problem::BadPropagation`]
    pub fn parse(annotations: &BTreeMap<String, String>) -> Result<Self, Problem> {
        match annotations.get(PROPAGATION_ANNOTATION).map(String::as_str) {
            None | Some("Background") => Ok(Self::Background),
            Some("Foreground") => Ok(Self::Foreground),
            Some("Orphan") => Ok(Self::Orphan),
            Some(other) => Err(Problem::BadPropagation { value: shortened(other) }),
        }
    }
}
