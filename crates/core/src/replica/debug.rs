//! What the admin server shows of attachments, for users who debug one.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Replica;
use crate::{
    index::attachments::{Hindrance, ObjectId},
    metadata::NamespacedName,
    watch_health::State,
};

/// How many entries of each list are shown.
const LISTED: usize = 1000;

/// What `/debug/attachments` shows.
#[derive(Debug, Default, Serialize)]
pub struct AttachmentReport {
    /// The attachable kinds, and the state of their watches.
    pub kinds: BTreeMap<String, KindState>,
    /// How many objects have attachments, or annotations that can't be parsed.
    pub objects: usize,
    /// How many attachments name a lease that doesn't exist.
    pub pending_total: usize,
    /// The first thousand of those.
    pub pending: Vec<PendingAttachment>,
    /// The first thousand objects whose removal fails.
    pub hindered: Vec<HinderedObject>,
    /// The first thousand objects with annotations that can't be parsed.
    pub invalid: Vec<InvalidObject>,
}

/// The state of the watches of a kind.
#[derive(Debug, Serialize)]
pub struct KindState {
    /// `Seen`, `Unseen` (not listed yet) or `Failing`.
    pub state: &'static str,
    /// Why they fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// An attachment to a lease that doesn't exist.
#[derive(Debug, Serialize)]
pub struct PendingAttachment {
    /// The object.
    pub object: String,
    /// The lease that its annotation names.
    pub lease: String,
}

/// An object whose removal fails.
#[derive(Debug, Serialize)]
pub struct HinderedObject {
    /// The object.
    pub object: String,
    /// A CamelCase reason.
    pub reason: &'static str,
    /// A message for users.
    pub message: String,
    /// How often its removal was tried.
    pub tries: u32,
}

/// An object with annotations that can't be parsed.
#[derive(Debug, Serialize)]
pub struct InvalidObject {
    /// The object.
    pub object: String,
    /// What is wrong.
    pub problems: Vec<String>,
}

impl Replica {
    /// Attachments to leases that don't exist, each as the object and the lease that it names.
    pub fn pending(&self) -> impl Iterator<Item = (&ObjectId, NamespacedName)> {
        self.index.pending()
    }

    /// The attachable kinds, and the state of their watches.
    pub fn kind_states(&self) -> impl Iterator<Item = (&str, State<'_>)> {
        self.index.watches.states().map(|(kind, state)| (&**kind, state))
    }

    /// What is attached, pending, hindered and invalid.
    pub fn attachment_report(&self) -> AttachmentReport {
        let kinds = self.kind_states().map(|(kind, state)| {
            let (state, failure) = match state {
                State::Synced => ("Seen", None),
                State::Unknown => ("Unseen", None),
                State::Failing(failure) => ("Failing", Some(failure.to_string())),
            };
            (kind.to_owned(), KindState { state, failure })
        });
        let pending = |(id, lease): (&ObjectId, NamespacedName)| PendingAttachment {
            object: id.to_string(),
            lease: lease.to_string(),
        };
        let hindered = self.index.attachments.iter().filter_map(|(id, object)| {
            let Hindrance { reason, message, tries, .. } = object.hindrance()?;
            Some(HinderedObject { object: id.to_string(), reason, message: message.clone(), tries: *tries })
        });
        let invalid = self.index.attachments.iter().filter(|(_, object)| !object.problems().is_empty());
        let invalid = invalid.map(|(id, object)| InvalidObject {
            object: id.to_string(),
            problems: object.problems().to_vec(),
        });
        AttachmentReport {
            kinds: kinds.collect(),
            objects: self.index.attachments.iter().count(),
            pending_total: self.pending().count(),
            pending: self.pending().take(LISTED).map(pending).collect(),
            hindered: hindered.take(LISTED).collect(),
            invalid: invalid.take(LISTED).collect(),
        }
    }
}
