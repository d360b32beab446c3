//! The propagation policy of a deletion.

use std::collections::BTreeMap;

use super::{annotation::PROPAGATION_ANNOTATION, problem::AttachmentProblem};
use crate::shorten::shortened;

/// How the dependents of an attached object are deleted: the propagation policies of Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Propagation {
    /// They are deleted after it.
    #[default]
    Background,
    /// They are deleted before it.
    Foreground,
    /// They are kept.
    Orphan,
}

impl Propagation {
    /// Parses the annotation; the default is [`Background`](Self::Background).
    ///
    /// # Errors
    ///
    /// [`AttachmentProblem::InvalidPropagation`]
    pub fn parse(annotations: &BTreeMap<String, String>) -> Result<Self, AttachmentProblem> {
        match annotations.get(PROPAGATION_ANNOTATION).map(String::as_str) {
            None | Some("Background") => Ok(Self::Background),
            Some("Foreground") => Ok(Self::Foreground),
            Some("Orphan") => Ok(Self::Orphan),
            Some(other) => Err(AttachmentProblem::InvalidPropagation { value: shortened(other) }),
        }
    }
}
