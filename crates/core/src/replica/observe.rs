//! From watch events to the index, and to what they affect.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lessor_api::{Lease, Lessor, Recorded};
use uuid::Uuid;

use super::{Replica, Work, requests::InFlight};
use crate::{
    clocks::Now,
    index::{attachments::ObjectId, leases::Entry},
    kind::Kind,
    lease_object::LeaseObject,
    metadata::{NamespacedName, ResourceVersion, uid_of, version_of},
    metric_event::MetricEvent,
    observation::{Event, Failure, Observation, Scope},
};

impl Replica {
    /// Applies a watch event.
    pub fn observe(&mut self, observation: Observation, now: &Now) {
        if let Some(version) = observation.version() {
            self.store.watched(version);
        }
        match observation {
            Observation::Lessor(event) => self.observe_lessor(event, now),
            Observation::OtherLessor(event) => self.observe_other_lessor(event, now),
            Observation::Lease(scope, event) => self.observe_lease(scope, event, now),
            Observation::Kind(kind, found) => self.observe_kind(&kind, found, now),
            Observation::Object(kind, scope, event) => self.observe_object(&kind, scope, event, now),
            Observation::Source(source_watch, event) => self.observe_source(&source_watch, event, now),
        }
        self.follow_role(now);
    }

    /// The API server responds again after this replica was disconnected.
    pub fn reconnected(&mut self, now: &Now) {
        let lost = self.liveness.take_lost(now);
        self.leadership.reconnected(lost, now.mono);
    }

    // --- The `Lessor` --------------------------------------------------------------------------------------------

    fn observe_lessor(&mut self, event: Event<Lessor>, now: &Now) {
        match event {
            Event::Applied(lessor) => {
                self.readiness.lessor_reported(false);
                self.apply_lessor(&lessor, now.mono, now);
            }
            Event::Deleted(lessor) => {
                let version =
                    version_of(lessor.metadata.resource_version.as_deref()).unwrap_or(ResourceVersion::MAX);
                // It may have been recreated before this event arrived.
                if self.leadership.lessor().is_none_or(|known| known.version <= version) {
                    self.apply_no_lessor(now);
                }
            }
            Event::Synced(listed) => {
                self.readiness.lessor_reported(true);
                if listed.is_empty() {
                    self.apply_no_lessor(now);
                }
            }
            Event::Listed(version) => self.store.listed(version),
            Event::Interrupted => self.store.interrupted(),
            Event::Bookmark(_) | Event::Resumed => {}
            Event::Failing(failure) => {
                self.store.interrupted();
                self.readiness.lessor_failed(failure);
            }
        }
    }

    /// Applies a version of the `Lessor`, from a watch or a response. `written_at`: a challenge in it is not older, unless it
    /// was observed before.
    pub(super) fn apply_lessor(&mut self, lessor: &Lessor, written_at: Duration, now: &Now) {
        self.rank_own_lessor(lessor, now);
        let Some(change) = self.leadership.observe_lessor(lessor, written_at, now.mono) else { return };
        if change.by_first && !change.is_own {
            self.index.leases.end_long_graces(now);
        }
        if let Some(challenged_at) = change.answered.filter(|_| !change.is_own) {
            self.not_due(challenged_at, now);
        }
        if change.reinstalled {
            // Without the kind there was nothing next for any lease.
            self.enqueue_leases(now);
        }
    }

    fn apply_no_lessor(&mut self, now: &Now) {
        let statement = self.statement(now);
        if let Some(step) = self.leadership.observe_no_lessor(&statement, now.mono) {
            self.elect(step, now);
        }
    }

    // --- Leases --------------------------------------------------------------------------------------------------

    fn observe_lease(&mut self, scope: Scope, event: Event<Lease>, now: &Now) {
        match event {
            Event::Applied(lease) => {
                self.readiness.lease_reported(&scope);
                self.apply_lease(&lease, now);
                if lease.is_ended()
                    && let Ok(uid) = uid_of(lease.metadata.uid.as_deref())
                    && self.index.leases.end_seen(uid, now, &self.settings)
                {
                    self.enqueue_lease(uid, now);
                }
            }
            Event::Deleted(lease) => {
                if let (Ok(uid), Ok(version)) = (
                    uid_of(lease.metadata.uid.as_deref()),
                    version_of(lease.metadata.resource_version.as_deref()),
                ) {
                    self.index.leases.confirm_gone(uid);
                    self.remove_lease(uid, version, now);
                }
            }
            Event::Synced(listed) => {
                self.index.leases.all_shown(scope.as_deref(), &listed);
                for uid in self.index.leases.missing(scope.as_deref(), &listed) {
                    self.remove_lease(uid, ResourceVersion::MAX, now);
                }
                if self.readiness.leases_synced(scope) {
                    self.enqueue_pending(now);
                }
                self.settle_followers_of_leases(now);
            }
            Event::Bookmark(_) | Event::Listed(_) | Event::Interrupted => {}
            Event::Resumed => self.readiness.lease_reported(&scope),
            Event::Failing(failure) => self.readiness.leases_failed(scope, failure),
        }
    }

    /// Applies a version of a lease, from a watch or a response.
    pub(super) fn apply_lease(&mut self, lease: &Lease, now: &Now) {
        let record = match LeaseObject::read(lease) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(lease = lease.metadata.name, %error, "unreadable lease");
                return;
            }
        };
        if self.is_left(&record.name.namespace) {
            return;
        }
        let (uid, name, version, term) =
            (record.uid, record.name.clone(), record.version, record.status.term);
        let released = |entry: &Entry| entry.record.status.has_ended().then(|| entry.is_released());
        let was_released = self.index.leases.get(&uid).and_then(released);
        let namesake = self.index.leases.at(&name).map(|(namesake, _)| namesake);
        // Nothing was removed for it as long as it could have been released.
        let was_unsure = self.index.leases.get(&uid).is_some_and(|entry| self.may_be_released(entry));
        let change = self.index.leases.apply(record, Recorded::read(lease), now, &self.settings);
        if let Some(replaced) = namesake.filter(|namesake| self.index.leases.get(namesake).is_none()) {
            self.forget_wait(replaced);
            self.unlink_replaced(replaced, uid, &name, now);
        }
        if was_released == Some(false) && self.index.leases.get(&uid).and_then(released) == Some(true) {
            self.leadership.observe_done(&Work::Lease(uid), now.mono);
        }
        if change.renewed {
            self.lease_renewed(uid);
        }
        if let Some(term) = term
            && self.leadership.observe_term(term, version, change.status_written, now.mono)
        {
            self.term_is_absurd(uid, term);
        }
        self.link_follower(uid, &name, change, now);
        // A release that the primary reports as hindered isn't overdue work any more.
        if change.new || change.ended || change.released || was_unsure {
            self.enqueue_attached(&name, now);
        }
        self.enqueue_lease(uid, now);
    }

    fn lease_renewed(&mut self, uid: Uuid) {
        if self.leadership.is_primary() {
            self.out.metric_events.push(MetricEvent::Renewed);
        }
        if let Some(entry) = self.index.leases.get_mut(&uid) {
            entry.more.change(|more| more.last_warning = None);
        }
    }

    fn term_is_absurd(&mut self, uid: Uuid, term: writer_lease::Term) {
        // No replica can end it, so it must not come before leases that can be ended.
        self.index.leases.stop_time(uid);
        self.warn_once(uid, "AbsurdTerm", || {
            format!(
                "status.term is {term}, which no primary wrote: the lease can't be ended. Delete it and create it again: what is \
                 attached stays, and goes with the new lease of this name"
            )
        });
    }

    /// A lease is gone, as of this version.
    pub(super) fn remove_lease(&mut self, uid: Uuid, version: ResourceVersion, now: &Now) {
        let Some(entry) = self.index.leases.remove(uid, version) else { return };
        if entry.record.status.has_ended() {
            self.leadership.observe_done(&Work::Lease(uid), now.mono);
        }
        self.forget_wait(uid);
        self.unlink_follower(uid, &entry.record.name, now);
        self.enqueue_attached(&entry.record.name, now);
        if entry.record.status.is_granted() && !entry.record.status.has_ended() {
            self.report_lost(&entry.record);
        }
    }

    /// All leases are known: attachments to others are pending.
    fn enqueue_pending(&mut self, now: &Now) {
        let pending: BTreeSet<NamespacedName> = self.index.pending().map(|(_, lease)| lease).collect();
        for lease in pending {
            self.enqueue_name(&lease, now);
        }
    }

    // --- Attached objects ----------------------------------------------------------------------------------------

    fn observe_object(&mut self, kind: &Arc<Kind>, scope: Scope, event: Event<ObjectMeta>, now: &Now) {
        let id_of = |meta: &ObjectMeta| ObjectId {
            kind: kind.clone(),
            name: NamespacedName::new(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            ),
        };
        if matches!(event, Event::Applied(_) | Event::Deleted(_) | Event::Bookmark(_))
            && self.index.watches.heard(&kind.name(), &scope, now)
        {
            self.enqueue_lingering(now);
        }
        match event {
            Event::Bookmark(_) | Event::Listed(_) => {}
            Event::Applied(meta) => {
                let id = id_of(&meta);
                let own = self.leadership.is_running(&Work::Object(id.clone()));
                self.apply_object(&id, &meta, own, now);
            }
            Event::Deleted(meta) => {
                let version = version_of(meta.resource_version.as_deref()).ok();
                self.remove_object(&id_of(&meta), version, now);
            }
            Event::Synced(listed) => {
                for id in self.index.attachments.missing(kind, scope.as_deref(), &listed) {
                    self.remove_object(&id, None, now);
                }
                self.index.watches.synced(&kind.name(), &scope, now);
                self.enqueue_lingering(now);
            }
            Event::Interrupted => self.index.watches.interrupted(&kind.name(), &scope, now),
            Event::Resumed => {
                if self.index.watches.resumed(&kind.name(), &scope, now) {
                    self.enqueue_lingering(now);
                }
            }
            Event::Failing(failure) => {
                let is_news = self.index.watches.failing(&kind.name(), &scope, failure.clone(), now);
                if is_news && !matches!(failure, Failure::Unreachable(_)) {
                    tracing::warn!(%kind, %failure, "watch fails, retrying");
                }
            }
        }
    }

    /// Applies the object in a response, unless it was observed to be gone since the request was sent. Without a watch event for a
    /// version that is gone already, it would stay in the index for ever.
    pub(super) fn apply_response(&mut self, id: &ObjectId, meta: &ObjectMeta, request: &InFlight, now: &Now) {
        if request.object_gone {
            self.enqueue_object(id, now);
        } else {
            self.apply_object(id, meta, true, now);
        }
    }

    /// Applies a version of an object, from a watch or a response. `own`: it may be one that this replica wrote.
    fn apply_object(&mut self, id: &ObjectId, meta: &ObjectMeta, own: bool, now: &Now) {
        if self.is_left(&id.name.namespace) {
            return;
        }
        let was_due = !self.leadership.is_primary() && self.removal(id).is_some();
        let split = if own { self.index.attachments.take_split(id) } else { None };
        let applied = match self.index.attachments.apply(id, meta) {
            Ok(applied) => applied,
            Err(error) => {
                tracing::warn!(object = %id, %error, "unreadable object");
                return;
            }
        };
        if let Some(split) = split {
            self.index.attachments.put_split(id, split);
            self.settle_refused(id, now);
        }
        if applied.new_problems {
            self.report_problems(id);
        }
        if was_due && self.removal(id).is_none() {
            self.leadership.observe_done(&Work::Object(id.clone()), now.mono);
        }
        self.enqueue_object(id, now);
        for lease in applied.leases {
            self.enqueue_name(&lease, now);
        }
    }

    /// An object is gone, as of this version; `None`: whatever its version.
    pub(super) fn remove_object(&mut self, id: &ObjectId, version: Option<ResourceVersion>, now: &Now) {
        self.report_late_removal(id, version);
        let was_due = !self.leadership.is_primary() && self.removal(id).is_some();
        let leases = self.index.attachments.remove(id, version);
        if self.index.attachments.get(id).is_none() {
            self.requests.object_gone(id);
            if was_due {
                self.leadership.observe_done(&Work::Object(id.clone()), now.mono);
            }
        }
        self.enqueue_object(id, now);
        for lease in leases {
            self.enqueue_name(&lease, now);
        }
    }
}
