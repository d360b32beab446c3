//! The metadata of an object: its name, uid and resourceVersion.

use std::{fmt, sync::Arc};

use thiserror::Error;
use uuid::Uuid;

/// A `metadata.resourceVersion`: a number that only grows, comparable within one kind (Kubernetes 1.35 and later
/// promise it, every earlier server has it so).
pub type ResourceVersion = u64;

/// The namespace and name of an object of a given kind.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedName {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name within it.
    pub name: Arc<str>,
}

impl NamespacedName {
    /// `name` in `namespace`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why an object that the API server sent can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Unreadable {
    /// A field that every stored object has is missing or has another form.
    #[error("metadata.{0} is missing or malformed")]
    Metadata(&'static str),
}

/// Reads `metadata.uid`.
pub fn uid_of(uid: Option<&str>) -> Result<Uuid, Unreadable> {
    uid.and_then(|uid| uid.parse().ok()).ok_or(Unreadable::Metadata("uid"))
}

/// Reads `metadata.resourceVersion`.
pub fn version_of(version: Option<&str>) -> Result<ResourceVersion, Unreadable> {
    version.and_then(|version| version.parse().ok()).ok_or(Unreadable::Metadata("resourceVersion"))
}
