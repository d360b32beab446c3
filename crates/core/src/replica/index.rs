//! Everything that was observed of leases, attachments and sources, and the answers that need several of their indexes.

use lessor_api::lease::Attached;
use uuid::Uuid;
use writer_lease::Term;

use crate::{
    clocks::Now,
    decide::{
        expiry::RECENT,
        lease::Following,
        removal::{self, Removal},
    },
    index::{
        attachments::{AttachmentIndex, Object, ObjectId},
        leases::{Entry, LeaseIndex},
        sources::{Source, SourceIndex},
    },
    lease_object::LeaseObject,
    lease_status::{Followed, HINDERED, RETRYING},
    metadata::NamespacedName,
    watch_health::WatchHealth,
};

/// How many hindrances of one lease are listed.
const LISTED: usize = 5;

/// All indexes, and the answers that need several of them.
#[derive(Clone)]
pub(super) struct Index {
    /// The leases.
    pub(super) leases: LeaseIndex,
    /// What is attached to them.
    pub(super) attachments: AttachmentIndex,
    /// What they follow.
    pub(super) sources: SourceIndex,
    /// Whether the watches of attachable kinds are in sync.
    pub(super) watches: WatchHealth,
}

impl Index {
    // --- Attachments and leases ----------------------------------------------------------------------------------

    /// Whether nothing can be attached to this name: there is no such lease, or it was released.
    pub(super) fn is_vacant(&self, lease: &NamespacedName) -> bool {
        self.leases.at(lease).is_none_or(|(_, entry)| entry.is_released())
    }

    /// Attachments to leases that don't exist, each as the object and the lease that it names.
    pub(super) fn pending(&self) -> impl Iterator<Item = (&ObjectId, NamespacedName)> {
        self.attachments.iter().flat_map(|(id, _)| {
            let leases = self.attachments.leases_of(id).into_iter();
            leases.filter(|lease| self.is_vacant(lease)).map(move |lease| (id, lease))
        })
    }

    /// What is due in an object, for a primary of this term (`None`: a follower).
    pub(super) fn removal(&self, id: &ObjectId, term: Option<Term>) -> Option<Removal> {
        removal::removal(id, self.attachments.get(id)?, |lease| {
            self.leases.at(lease).is_some_and(|(_, entry)| {
                let ended = entry.record.status.has_ended() && !entry.is_released();
                ended && !entry.releasing && !may_be_released(entry, term)
            })
        })
    }

    /// Why objects that are attached to an ended lease remain: a reason for its condition, and a message for users.
    fn hindrance(&self, lease: &NamespacedName) -> Option<(&'static str, String)> {
        let hindered = self.attachments.hindered(lease, LISTED);
        let message = |(id, object): &(&ObjectId, &Object)| match object.hindrance() {
            Some(hindrance) if !object.waits_for_finalizers(&lease.name) => {
                format!("{id}: {}", hindrance.message)
            }
            _ => format!("{id} is being deleted and waits for finalizers of its own"),
        };
        let mut messages: Vec<String> = hindered.first.iter().map(message).collect();
        if hindered.count > messages.len() {
            messages.push(format!("and {} more", hindered.count - messages.len()));
        }
        let reason = if hindered.retried { RETRYING } else { HINDERED };
        (!messages.is_empty()).then(|| (reason, messages.join("; ")))
    }

    /// Whether the primary has published, for each ended lease of an object, that its release is hindered. Another replica could
    /// do no better, so that is no reason to take over as long as the primary lives.
    pub(super) fn is_hindered(&self, id: &ObjectId) -> bool {
        self.ended_leases_of(id).all(|record| record.status.is_hindered())
    }

    /// Whether the removal was hindered when this replica became primary, and the object hasn't changed since.
    pub(super) fn was_hindered(&self, id: &ObjectId) -> bool {
        let version = self.attachments.get(id).map(|object| object.version).unwrap_or_default();
        let leases = self.attachments.leases_of(id).into_iter();
        let mut ended = leases.filter_map(|lease| {
            let (_, entry) = self.leases.at(&lease)?;
            entry.record.status.has_ended().then_some(entry)
        });
        ended.all(|entry| entry.hindered_before() && entry.record.version > version)
    }

    /// Whether the primary has published that it retries.
    pub(super) fn is_retried(&self, id: &ObjectId) -> bool {
        self.ended_leases_of(id).any(|record| record.status.is_retrying())
    }

    /// Whether a published hindrance may be over: by a retry, or since the object has changed.
    pub(super) fn hindrance_may_be_over(&self, id: &ObjectId) -> bool {
        let version = self.attachments.get(id).map(|object| object.version).unwrap_or_default();
        self.is_retried(id) || self.ended_leases_of(id).all(|record| record.version < version)
    }

    fn ended_leases_of(&self, id: &ObjectId) -> impl Iterator<Item = &LeaseObject> {
        let leases = self.attachments.leases_of(id).into_iter();
        leases.filter_map(|lease| {
            let (_, entry) = self.leases.at(&lease)?;
            entry.record.status.has_ended().then_some(&entry.record)
        })
    }

    /// How many objects and keys are attached to a lease, and why they remain after its end.
    pub(super) fn attached_to(&self, record: &LeaseObject) -> (Attached, Option<(&'static str, String)>) {
        let attached = self.attachments.count(&record.name);
        let remains = record.status.has_ended() && attached != Attached::default();
        (attached, remains.then(|| self.hindrance(&record.name)).flatten())
    }

    // --- Sources and leases --------------------------------------------------------------------------------------

    /// What a lease follows.
    pub(super) fn following(&self, uid: Uuid, now: &Now) -> Option<Following<'_>> {
        Some(Following {
            source: self.sources.source_of(uid)?,
            uid: self.sources.pod_uid_of(uid),
            condition: self.sources.state_of(uid)?.condition(),
            unread: self.unread_source(uid, now).is_some(),
        })
    }

    /// The first source that has to be read before a lease may end by time, if the lease is due.
    pub(super) fn unread_source(&self, uid: Uuid, now: &Now) -> Option<Source> {
        let deadline = self.leases.deadline(uid).filter(|deadline| *deadline <= now.lease)?;
        // Lease time may have been later before an outage was detected: what was read then doesn't show heartbeats since.
        let due = now.mono.saturating_sub(now.lease.since(deadline));
        let recent = now.mono.saturating_sub(RECENT);
        let more = self.leases.get(&uid).and_then(|entry| entry.more.get());
        // To read a chain of sources one after the other may take longer than that.
        let begun = more.and_then(|more| more.confirming).unwrap_or(recent);
        self.sources.unread_for(uid, due, recent.min(begun), now.mono)
    }

    /// Whether the source of a lease keeps it alive, and a message for users.
    pub(super) fn explain_following(&self, uid: Uuid) -> Option<(bool, String)> {
        let (alive, reason) = self.sources.state_of(uid)?.condition()?;
        let source = self.sources.source_of(uid)?.to_string();
        let condition = Some((alive, reason.into(), 0));
        Some((alive, Followed { source: source.into(), uid: None, condition }.explain()))
    }
}

/// Whether the primary of this term has yet to write to a lease. An earlier primary may have released it, though no watch event
/// has shown that; or its release may still be in flight.
pub(super) fn is_inherited(record: &LeaseObject, term: Option<Term>) -> bool {
    term.is_some_and(|term| record.status.term.unwrap_or_default() < term)
}

/// Whether an ended lease may have been released, as far as the primary of this term knows.
pub(super) fn may_be_released(entry: &Entry, term: Option<Term>) -> bool {
    let unsure = entry.stale || is_inherited(&entry.record, term);
    term.is_some() && unsure && entry.record.status.has_ended()
}
