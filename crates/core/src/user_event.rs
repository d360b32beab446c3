//! What users are notified of. Each becomes a log line and a Kubernetes Event, in the same words.

use std::fmt;

use uuid::Uuid;

use crate::{index::attachments::ObjectId, lease_object::NamespacedName};

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A lease.
    Lease(NamespacedName, Uuid),
    /// An attached object.
    Object(ObjectId, Uuid),
    /// The `Lessor` of this installation.
    Lessor,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease(name, _) => write!(f, "lease {name}"),
            Self::Object(object, _) => object.fmt(f),
            Self::Lessor => f.write_str("lessor"),
        }
    }
}

/// An event for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserEvent {
    /// What it is about.
    pub about: About,
    /// Whether it is a Warning: a user or an administrator has to act.
    pub warning: bool,
    /// A CamelCase reason.
    pub reason: &'static str,
    /// The message.
    pub note: String,
}

impl UserEvent {
    /// A Normal event.
    pub fn normal(about: About, reason: &'static str, note: impl Into<String>) -> Self {
        Self { about, warning: false, reason, note: note.into() }
    }

    /// A Warning event.
    pub fn warning(about: About, reason: &'static str, note: impl Into<String>) -> Self {
        Self { about, warning: true, reason, note: note.into() }
    }
}
