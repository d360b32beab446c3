//! What a replica knows of attachments, for people who look for one that doesn't do what they expect.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Replica, is_released};
use crate::{
    index::attachments::{Hindrance, ObjectId},
    lease_object::NamespacedName,
    watch_health::State as SightState,
};

/// How many entries of each list are shown.
const SHOWN: usize = 1000;

/// What `/debug/attachments` shows.
#[derive(Debug, Default, Serialize)]
pub struct AttachmentReport {
    /// The kinds that can be attached, and whether they are seen.
    pub kinds: BTreeMap<String, KindState>,
    /// How much is attached or means to be.
    pub objects: usize,
    /// How many attachments name a lease that isn't there.
    pub pending_total: usize,
    /// Those, the first thousand of them.
    pub pending: Vec<Pending>,
    /// What is attached to a lease that has ended and doesn't go, the first thousand.
    pub hindered: Vec<Hindered>,
    /// What is annotated in a way that can't be understood, the first thousand.
    pub invalid: Vec<Invalid>,
}

/// How a kind is seen.
#[derive(Debug, Serialize)]
pub struct KindState {
    /// `Event`, `Unseen` (not listed yet) or `Failing`.
    pub state: &'static str,
    /// What keeps it from being seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// An attachment to a lease that isn't there.
#[derive(Debug, Serialize)]
pub struct Pending {
    /// The object.
    pub object: String,
    /// The lease that its annotation names.
    pub lease: String,
}

/// An object that doesn't go.
#[derive(Debug, Serialize)]
pub struct Hindered {
    /// The object.
    pub object: String,
    /// In one word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// How often its removal was tried.
    pub tries: u32,
}

/// An object whose annotations can't be understood.
#[derive(Debug, Serialize)]
pub struct Invalid {
    /// The object.
    pub object: String,
    /// What is wrong.
    pub problems: Vec<String>,
}

impl Replica {
    /// Attachments of which no lease is there, each as the object and the lease that it names.
    pub fn pending(&self) -> impl Iterator<Item = (&ObjectId, NamespacedName)> {
        self.objects.iter().flat_map(|(id, _)| {
            let leases = self.objects.leases_of(id).into_iter();
            leases.filter(|place| self.is_nowhere(place)).map(move |place| (id, place))
        })
    }

    pub(super) fn is_nowhere(&self, place: &NamespacedName) -> bool {
        self.leases.at(place).is_none_or(|(_, entry)| is_released(entry))
    }

    /// The kinds that can be attached, and how they are seen.
    pub fn kind_states(&self) -> impl Iterator<Item = (&str, SightState<'_>)> {
        self.watch_health.states().map(|(kind, state)| (&**kind, state))
    }

    /// Everything that somebody may look for.
    pub fn attachment_report(&self) -> AttachmentReport {
        let kinds = self.kind_states().map(|(kind, state)| {
            let (state, failure) = match state {
                SightState::Synced => ("Seen", None),
                SightState::Unknown => ("Unseen", None),
                SightState::Failing(failure) => ("Failing", Some(failure.to_string())),
            };
            (kind.to_owned(), KindState { state, failure })
        });
        let pending = |(id, place): (&ObjectId, NamespacedName)| Pending {
            object: id.to_string(),
            lease: place.to_string(),
        };
        let hindered = self.objects.iter().filter_map(|(id, object)| {
            let Hindrance { reason, message, tries, .. } = object.hindrance()?;
            Some(Hindered { object: id.to_string(), reason, message: message.clone(), tries: *tries })
        });
        let invalid = self.objects.iter().filter(|(_, object)| !object.problems().is_empty());
        let invalid = invalid
            .map(|(id, object)| Invalid { object: id.to_string(), problems: object.problems().to_vec() });
        AttachmentReport {
            kinds: kinds.collect(),
            objects: self.objects.iter().count(),
            pending_total: self.pending().count(),
            pending: self.pending().take(SHOWN).map(pending).collect(),
            hindered: hindered.take(SHOWN).collect(),
            invalid: invalid.take(SHOWN).collect(),
        }
    }
}
