//! What users are notified of, each once.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{Hash, Hasher},
};

use lessor_api::lease::{Attached, FINALIZER};
use uuid::Uuid;

use super::{Replica, kinds::KindReport};
use crate::{
    index::attachments::{AttachmentIndex, ObjectId},
    lease_object::LeaseObject,
    metadata::NamespacedName,
    output::Output,
    user_event::{About, UserEvent},
};

/// What was reported.
#[derive(Clone, Debug, Default)]
pub(super) struct Reporting {
    /// The kinds that can't be attached.
    pub(super) kinds: KindReport,
    /// The objects that were reported as attached to a lease that doesn't exist.
    pending: HashMap<NamespacedName, BTreeSet<ObjectId>>,
}

impl Reporting {
    /// Warns of objects that are attached to a lease that doesn't exist.
    fn warn_pending(&mut self, lease: &NamespacedName, attachments: &AttachmentIndex, out: &mut Output) {
        let reported = self.pending.entry(lease.clone()).or_default();
        for (id, object) in attachments.of(lease) {
            if reported.insert(id.clone()) {
                let note = format!("attached to lease {:?}, which does not exist", &*lease.name);
                let about = About::Object(id.clone(), object.uid);
                out.user_events.push(UserEvent::warning(about, "AttachmentPending", note));
            }
        }
    }

    /// The lease exists, or nothing is attached to it.
    pub(super) fn not_pending(&mut self, lease: &NamespacedName) {
        self.pending.remove(lease);
    }

    /// Hashes everything that decides what comes next.
    pub(super) fn hash_state(&self, state: &mut impl Hasher) {
        self.kinds.hash(state);
    }
}

impl Replica {
    /// Notifies users of an event.
    pub(super) fn notify(&mut self, event: UserEvent) {
        self.out.user_events.push(event);
    }

    /// Warns of annotations of an object that can't be parsed.
    pub(super) fn report_problems(&mut self, id: &ObjectId) {
        if !self.leadership.is_primary() {
            return;
        }
        let Some(object) = self.index.attachments.get(id) else { return };
        for problem in object.problems() {
            let about = About::Object(id.clone(), object.uid);
            self.out.user_events.push(UserEvent::warning(about, "AttachmentInvalid", problem.as_str()));
        }
    }

    /// Warns of objects that are attached to a lease that doesn't exist.
    pub(super) fn report_pending(&mut self, lease: &NamespacedName) {
        if self.leadership.is_primary() {
            self.reporting.warn_pending(lease, &self.index.attachments, &mut self.out);
        }
    }

    /// Warns of a lease that is gone without an end, so that what is attached to it stays.
    pub(super) fn report_lost(&mut self, record: &LeaseObject) {
        let attached = self.index.attachments.count(&record.name);
        if !self.leadership.is_primary()
            || attached == Attached::default()
            || !self.index.is_vacant(&record.name)
        {
            return;
        }
        let note = format!(
            "deleted without the finalizer {FINALIZER}, so it had no end: {attached} stay, and belong to the next lease of this name"
        );
        self.notify(UserEvent::warning(About::Lease(record.name.clone(), record.uid), "Lost", note));
        self.report_pending(&record.name);
    }

    /// Warns of a lease, unless the last warning of it had the same reason.
    pub(super) fn warn_once(&mut self, uid: Uuid, reason: &'static str, note: impl FnOnce() -> String) {
        if !self.leadership.is_primary() {
            return;
        }
        let Some(entry) = self.index.leases.get_mut(&uid) else { return };
        if entry.more.change(|more| more.last_warning.replace(reason)) != Some(reason) {
            let about = About::Lease(entry.record.name.clone(), uid);
            self.notify(UserEvent::warning(about, reason, note()));
        }
    }

    /// Reports what a replica that isn't in a dry run would do.
    pub(super) fn report_dry_run(&mut self, uid: Uuid, ended: bool) {
        let Some(entry) = self.index.leases.get(&uid) else { return };
        let attached: Vec<String> =
            self.index.attachments.of(&entry.record.name).map(|(id, _)| id.to_string()).collect();
        let (reason, state) = if ended {
            ("WouldRelease", "the lease has ended")
        } else {
            ("WouldEnd", "the lease would end now")
        };
        self.warn_once(uid, reason, || {
            let attached = if attached.is_empty() { "nothing".to_owned() } else { attached.join(", ") };
            format!("dry run: {state}, and this would be removed: {attached}")
        });
    }
}
