//! Taking in what watches show.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lessor_api::{Lease, Recorded};
use uuid::Uuid;
use writer_lease::{self, Holder, Term};

use super::{Replica, Timer, Work, is_released};
use crate::{
    clocks::Now,
    index::{
        attachments::{Kind, ObjectId},
        leases::Entry,
    },
    lease_object::{LeaseObject, NamespacedName, ResourceVersion, uid_of, version_of},
    liveness::shared_pause::SharedPause,
    metric_event::MetricEvent,
    observation::{Event, Failure, Observation},
};

impl Replica {
    /// Takes in what a watch shows.
    pub fn observe(&mut self, observation: Observation, now: &Now) {
        match observation {
            Observation::Lessor(seen) => self.observe_lessor(seen, now),
            Observation::Lease(scope, seen) => self.observe_leases(scope, seen, now),
            Observation::Kind(kind, found) => self.observe_kind(&kind, found, now),
            Observation::Object(kind, scope, seen) => self.observe_objects(&kind, scope, seen, now),
            Observation::Source(source_watch, seen) => self.observe_source(&source_watch, seen, now),
        }
        self.follow_role(now);
    }

    pub(super) fn observe_lessor(&mut self, seen: Event<lessor_api::Lessor>, now: &Now) {
        match seen {
            Event::Applied(lessor) => {
                self.lessor_failure = None;
                self.see_lessor(&lessor, now);
            }
            Event::Deleted(lessor) => {
                let version =
                    version_of(lessor.metadata.resource_version.as_deref()).unwrap_or(ResourceVersion::MAX);
                // It may have come back before the news that it is gone.
                if self.election.known().is_none_or(|known| known.version <= version) {
                    self.see_no_lessor(now);
                }
            }
            Event::Synced(shown) => {
                self.lessor_seen = true;
                self.lessor_failure = None;
                if shown.is_empty() {
                    self.see_no_lessor(now);
                }
            }
            Event::Interrupted | Event::Resumed => {}
            Event::Failing(failure) => note_failure("lessors.lessor.dev", failure, &mut self.lessor_failure),
        }
    }

    pub(super) fn see_lessor(&mut self, lessor: &lessor_api::Lessor, now: &Now) {
        match self.election.see(lessor) {
            Ok(Some((holder, term))) => {
                self.apply_shared_pause(&holder, now);
                self.writer.observe_claim(holder, term, now.mono);
                if std::mem::take(&mut self.lessor_crd_missing) {
                    // Whatever was looked at meanwhile had nothing next.
                    self.enqueue_leases(now);
                }
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "unreadable lessor"),
        }
    }

    /// Holds what others have held since nothing could be written.
    fn apply_shared_pause(&mut self, holder: &Holder, now: &Now) {
        let Some(known) = self.election.known() else { return };
        match &mut self.shared_pause {
            Some(held) if *holder == Holder::Me => held.see_own(known, now),
            Some(held) => {
                let missed = held.see(known, now);
                self.out.hold += missed;
                // No outage of this replica's own.
                self.held += missed;
            }
            none => *none = Some(SharedPause::new(known, now)),
        }
    }

    pub(super) fn see_no_lessor(&mut self, now: &Now) {
        self.election.see_none();
        match self.leading {
            // Somebody deleted it. Its primary makes it anew, before others find that there is none.
            Some(term) if self.stopping.is_none() => {
                if !self.election.is_busy() {
                    let next = self.election.prove(term, &self.statement(now));
                    self.arbitrate(next, now);
                }
            }
            _ => {
                self.writer.observe_claim(Holder::Nobody, 0, now.mono);
            }
        }
    }

    pub(super) fn observe_leases(&mut self, scope: Option<Arc<str>>, seen: Event<Lease>, now: &Now) {
        match seen {
            Event::Applied(lease) => {
                self.lease_failure = None;
                self.see_lease(&lease, now);
            }
            Event::Deleted(lease) => {
                if let (Ok(uid), Ok(version)) = (
                    uid_of(lease.metadata.uid.as_deref()),
                    version_of(lease.metadata.resource_version.as_deref()),
                ) {
                    self.leases.confirm_gone(uid);
                    self.lose_lease(uid, version, now);
                }
            }
            Event::Synced(shown) => {
                self.leases.all_shown(scope.as_deref(), &shown);
                for uid in self.leases.missing(scope.as_deref(), &shown) {
                    self.lose_lease(uid, ResourceVersion::MAX, now);
                }
                let had_seen_all = self.all_leases_seen();
                self.leases_seen.insert(scope, true);
                self.lease_failure = None;
                if !had_seen_all && self.all_leases_seen() {
                    self.enqueue_pending(now);
                }
                self.settle_followers_of_leases(now);
            }
            Event::Interrupted | Event::Resumed => {}
            Event::Failing(failure) => note_failure("leases.lessor.dev", failure, &mut self.lease_failure),
        }
    }

    pub(super) fn see_lease(&mut self, lease: &Lease, now: &Now) {
        let record = match LeaseObject::read(lease) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(lease = lease.metadata.name, %error, "unreadable lease");
                return;
            }
        };
        let (uid, place, version, term) =
            (record.uid, record.name.clone(), record.version, record.status.term);
        let released = |entry: &Entry| entry.record.status.has_ended().then(|| is_released(entry));
        let was_released = self.leases.get(&uid).and_then(released);
        let namesake = self.leases.at(&place).map(|(namesake, _)| namesake);
        // Nothing was removed for it as long as that was so.
        let was_doubtful = self.leases.get(&uid).is_some_and(|entry| self.is_doubtful(entry));
        let change = self.leases.apply(record, Recorded::read(lease), now, &self.settings);
        if let Some(replaced) = namesake.filter(|namesake| self.leases.get(namesake).is_none()) {
            self.lose_replaced(replaced, uid, &place, now);
        }
        if was_released == Some(false) && self.leases.get(&uid).and_then(released) == Some(true) {
            self.see_done(&Work::Lease(uid), now);
        }
        if change.renewed && self.leading.is_some() {
            self.out.metric_events.push(MetricEvent::Renewed);
        }
        if let Some(term) = term {
            // No term is above the version of the write that claimed it, see `election`.
            self.writer.allow_terms(Term::try_from(version).unwrap_or_default());
            let meaning = if change.status_written {
                self.writer.observe(term, now.mono)
            } else {
                self.writer.learn_term(term, now.mono)
            };
            match meaning {
                writer_lease::Observation::Absurd => {
                    // Nobody can end it, so it must not stand before those that can be ended.
                    self.leases.stop_time(uid);
                    self.say_once(uid, "AbsurdTerm", || {
                        format!(
                            "status.term is {term}, which no primary wrote, so nobody can write its status or end it: delete the lease; \
                             what is attached to it stays"
                        )
                    });
                }
                // By whom, the Lessor knows: another, or nobody but this replica, which then has to claim a higher term
                // before it can write this lease.
                writer_lease::Observation::Demoted => self.writer.expire(),
                _ => {}
            }
        }
        if change.renewed
            && let Some(entry) = self.leases.get_mut(&uid)
        {
            entry.more.change(|more| more.said = None);
        }
        self.see_follower(uid, &place, change, now);
        // A release that the primary calls hindered is no overdue work any more.
        if change.new || change.ended || change.released || was_doubtful {
            self.enqueue_attached(&place, now);
        }
        self.enqueue_lease(uid, now);
    }

    pub(super) fn lose_lease(&mut self, uid: Uuid, version: ResourceVersion, now: &Now) {
        let Some(entry) = self.leases.remove(uid, version) else { return };
        if entry.record.status.has_ended() {
            self.see_done(&Work::Lease(uid), now);
        }
        self.writer.remove(&Work::Lease(uid));
        self.timers.clear(&Timer::Lease(uid));
        self.lingering.remove(&uid);
        self.lose_follower(uid, &entry.record.name, now);
        self.enqueue_attached(&entry.record.name, now);
    }

    /// A lease is gone whose end no watch has shown: another has its name, `uid`.
    fn lose_replaced(&mut self, replaced: Uuid, uid: Uuid, place: &NamespacedName, now: &Now) {
        self.writer.remove(&Work::Lease(replaced));
        self.timers.clear(&Timer::Lease(replaced));
        self.lingering.remove(&replaced);
        self.lose_replaced_follower(replaced, uid, place, now);
    }

    pub(super) fn observe_objects(
        &mut self,
        kind: &Arc<Kind>,
        scope: Option<Arc<str>>,
        seen: Event<ObjectMeta>,
        now: &Now,
    ) {
        let id_of = |meta: &ObjectMeta| ObjectId {
            kind: kind.clone(),
            name: NamespacedName::new(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            ),
        };
        match seen {
            Event::Applied(meta) => self.see_object(&id_of(&meta), &meta, now),
            Event::Deleted(meta) => {
                let version = version_of(meta.resource_version.as_deref()).ok();
                self.lose_object(&id_of(&meta), version, now);
            }
            Event::Synced(shown) => {
                for id in self.objects.missing(kind, scope.as_deref(), &shown) {
                    self.lose_object(&id, None, now);
                }
                self.watch_health.synced(&kind.name(), &scope, now);
                self.see_clearly(now);
            }
            Event::Interrupted => self.watch_health.interrupted(&kind.name(), &scope, now),
            Event::Resumed => {
                if self.watch_health.resumed(&kind.name(), &scope, now) {
                    self.see_clearly(now);
                }
            }
            Event::Failing(failure) => {
                if self.watch_health.failing(&kind.name(), &scope, failure.clone(), now) {
                    tracing::warn!(%kind, %failure, "watch fails, trying again");
                }
            }
        }
    }

    fn enqueue_pending(&mut self, now: &Now) {
        let pending: BTreeSet<NamespacedName> = self.pending().map(|(_, place)| place).collect();
        for place in pending {
            self.enqueue_name(&place, now);
        }
    }

    /// What a primary has to do is done. It was the primary, then, and it lives: these writes carry no term.
    fn see_done(&mut self, work: &Work, now: &Now) {
        if self.leading.is_none() {
            self.writer.extend(work, now.mono);
        }
    }

    pub(super) fn see_object(&mut self, id: &ObjectId, meta: &ObjectMeta, now: &Now) {
        let was_due = self.leading.is_none() && self.removal(id).is_some();
        let applied = match self.objects.apply(id, meta) {
            Ok(applied) => applied,
            Err(error) => {
                tracing::warn!(object = %id, %error, "unreadable object");
                return;
            }
        };
        if applied.new_problems {
            self.report_problems(id);
        }
        if was_due && self.removal(id).is_none() {
            self.see_done(&Work::Object(id.clone()), now);
        }
        self.enqueue_object(id, now);
        for place in applied.leases {
            self.enqueue_name(&place, now);
        }
    }

    pub(super) fn lose_object(&mut self, id: &ObjectId, version: Option<ResourceVersion>, now: &Now) {
        self.tell_late_removal(id, version);
        let was_due = self.leading.is_none() && self.removal(id).is_some();
        let touched = self.objects.remove(id, version);
        if was_due && self.objects.get(id).is_none() {
            self.see_done(&Work::Object(id.clone()), now);
        }
        self.enqueue_object(id, now);
        for place in touched {
            self.enqueue_name(&place, now);
        }
    }

    /// The server is heard again after this replica was deaf.
    pub fn reconnected(&mut self, now: &Now) {
        self.writer.deaf_until(now.mono);
    }
}

/// Logs how a watch fails, once as long as it fails in the same way.
fn note_failure(kind: &str, failure: Failure, known: &mut Option<Failure>) {
    if known.as_ref() != Some(&failure) {
        match &failure {
            Failure::NoSuchKind => tracing::warn!(
                kind,
                "waiting for the kind to be installed: apply the CRDs, `lessor crd | kubectl apply -f -`"
            ),
            failure => tracing::warn!(kind, %failure, "watch fails, trying again"),
        }
    }
    *known = Some(failure);
}
