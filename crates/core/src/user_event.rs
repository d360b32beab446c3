//! What a replica has to tell people: each notice becomes a log line and an Event, in the same words.

use std::fmt;

use uuid::Uuid;

use crate::{index::attachments::ObjectId, lease_object::NamespacedName};

/// What a notice is about.
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
            Self::Lease(place, _) => write!(f, "lease {place}"),
            Self::Object(object, _) => object.fmt(f),
            Self::Lessor => f.write_str("lessor"),
        }
    }
}

/// Something that happened, or that somebody should mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserEvent {
    /// What it is about.
    pub about: About,
    /// Whether somebody should do something about it.
    pub warning: bool,
    /// In one word or two, CamelCase: the reason of the Event.
    pub reason: &'static str,
    /// In a sentence.
    pub note: String,
}

impl UserEvent {
    /// Good news, or plain news.
    pub fn normal(about: About, reason: &'static str, note: impl Into<String>) -> Self {
        Self { about, warning: false, reason, note: note.into() }
    }

    /// Something to be mended.
    pub fn warning(about: About, reason: &'static str, note: impl Into<String>) -> Self {
        Self { about, warning: true, reason, note: note.into() }
    }
}
