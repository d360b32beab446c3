//! Looking at what was touched: what is next for it, and is it work that replicas compete for?

use std::time::Duration;

use uuid::Uuid;
use writer_lease::Lane;

use super::{Replica, Timer, Work, is_released, number};
use crate::{
    clocks::Now,
    decide::{
        expiry::{Obstacle, Turn},
        lease::{LeaseRequest, LeaseView, NextStep},
        removal::{self, Removal},
    },
    index::{
        attachments::{Kind, Object, ObjectId},
        leases::Entry,
    },
    lease_object::{LeaseObject, NamespacedName},
    lease_status::{HINDERED, RETRYING},
    metric_event::MetricEvent,
    user_event::{About, UserEvent},
};

/// How long a follower hears nothing of the primary before it takes up what that could not remove. A primary tries again after
/// a minute at most, and proves itself before that if it has written nothing for a lease duration.
const HINDERED_PATIENCE: Duration = Duration::from_secs(120);

impl Replica {
    /// Something about the lease of this name, or about what is attached to it, has changed.
    pub(super) fn enqueue_name(&mut self, place: &NamespacedName, now: &Now) {
        match self.leases.at(place) {
            Some((uid, entry)) if !is_released(entry) => {
                self.timers.clear(&Timer::Pending(Box::new(place.clone())));
                self.measure_emptied(uid, place, now);
                self.pending_said.remove(place);
                self.enqueue_lease(uid, now);
            }
            // As long as not all leases have been shown, nobody knows which isn't there.
            _ if !self.all_leases_seen() => {}
            _ if self.objects.of(place).next().is_some() => {
                self.timers.set_if_absent(
                    Timer::Pending(Box::new(place.clone())),
                    now.mono + self.settings.pending_warning,
                );
            }
            _ => {
                self.timers.clear(&Timer::Pending(Box::new(place.clone())));
                self.pending_said.remove(place);
            }
        }
    }

    /// The lease of this name has come, ended or gone: look at everything attached to it.
    pub(super) fn enqueue_attached(&mut self, place: &NamespacedName, now: &Now) {
        let ids: Vec<ObjectId> = self.objects.of(place).map(|(id, _)| id.clone()).collect();
        for id in &ids {
            self.enqueue_object(id, now);
        }
        self.enqueue_name(place, now);
    }

    pub(super) fn enqueue_lease(&mut self, uid: Uuid, now: &Now) {
        let Some(entry) = self.leases.get_mut(&uid) else { return };
        if entry.in_flight {
            return;
        }
        let refreshing = std::mem::take(&mut entry.refreshing);
        self.leases.recheck(uid, now);
        let work = Work::Lease(uid);
        let step = self.step(uid, now);
        if !matches!(step, Some(NextStep::Send(_)))
            && let Some(entry) = self.leases.get_mut(&uid).filter(|entry| entry.due().is_some())
        {
            entry.more.change(|more| more.due = None);
        }
        if !matches!(
            step,
            Some(NextStep::Send(LeaseRequest::Read | LeaseRequest::Confirm(_) | LeaseRequest::End(_)))
        ) {
            self.leases.set_confirming(uid, None);
        }
        self.timers.clear(&Timer::Lease(uid));
        self.lingering.remove(&uid);
        match step {
            Some(NextStep::Send(act)) => {
                let since_deadline = self.leases.held(uid, now).and_then(|held| held.overdue);
                let Some(entry) = self.leases.get_mut(&uid) else { return };
                let due = match act {
                    LeaseRequest::End(_) | LeaseRequest::Confirm(_) => {
                        now.mono.saturating_sub(since_deadline.unwrap_or_default())
                    }
                    _ => now.mono,
                };
                let due = entry.more.change(|more| *more.due.get_or_insert(due));
                self.writer.try_work(work, due);
            }
            Some(NextStep::Refresh(_)) if self.leading.is_some() => {
                // Its turn may have come, and it waits to be run.
                let refreshing = refreshing && self.writer.contains(&work);
                if let Some(entry) = self.leases.get_mut(&uid) {
                    entry.refreshing = refreshing;
                }
                if !refreshing {
                    self.writer.remove(&work);
                    self.await_refresh(uid, now);
                }
            }
            Some(NextStep::Wait(at)) => {
                self.writer.remove(&work);
                if self.leases.get(&uid).is_some_and(|entry| entry.record.status.has_ended()) {
                    self.lingering.insert(uid);
                }
                // While lease time stands still, what waits for it comes no nearer.
                let at = if now.disconnected { at.max(now.mono + Duration::from_secs(1)) } else { at };
                self.timers.set(Timer::Lease(uid), at);
            }
            Some(NextStep::Refresh(_) | NextStep::Rest | NextStep::Blocked(_)) | None => {
                self.writer.remove(&work);
            }
        }
    }

    /// Measures how late the last of what was attached to an expired lease has gone.
    fn measure_emptied(&mut self, uid: Uuid, place: &NamespacedName, now: &Now) {
        if self.objects.of(place).next().is_some() {
            return;
        }
        if let Some(deadline) = self.leases.get_mut(&uid).and_then(Entry::take_overran) {
            self.out.metric_events.push(MetricEvent::Emptied(now.lease.since(deadline)));
        }
    }

    /// What is next for a lease; `None`: nothing, since this replica may not.
    pub(super) fn step(&mut self, uid: Uuid, now: &Now) -> Option<NextStep> {
        let entry = self.leases.get(&uid)?;
        let place = entry.record.name.clone();
        let attached = self.objects.count(&place);
        let hindrance = if entry.record.status.has_ended() && attached != Default::default() {
            self.hindrance(&place)
        } else {
            None
        };
        let turn = match self.leading {
            None => Turn::Follower,
            Some(_) if entry.handed_out => Turn::Reached,
            Some(_) => Turn::Waiting,
        };
        let absurd = entry.record.status.term.is_some_and(|term| self.writer.is_absurd(term));
        let obstacle = if self.settings.dry_run {
            Some(Obstacle::DryRun)
        } else if self.lessor_crd_missing {
            Some(Obstacle::LessorCrdMissing)
        } else {
            absurd.then_some(Obstacle::AbsurdTerm)
        };
        let situation = LeaseView {
            record: &entry.record,
            // A follower is shown by its watch what has changed, and looks afresh before it claims the lead.
            stale: entry.stale && self.leading.is_some(),
            inherited: self.has_inherited(&entry.record),
            held: self.leases.held(uid, now),
            published_deadline: entry.published_deadline,
            nearer: entry.nearer,
            granted_by: entry.granted_by(),
            written_at: entry.written_at,
            releasing: entry.releasing,
            attached,
            hindrance: hindrance.as_ref().map(|(reason, message)| (*reason, &**message)),
            linger_until: entry
                .linger_until()
                .max(self.watch_health.release_blocked_until(&place.namespace, now)),
            following: self.following(uid, now),
            turn,
            last_write: self.shown_at,
            obstacle,
            settings: &self.settings,
            now,
        };
        let step = situation.step();
        if self.lessor_crd_missing && !entry.record.deleting {
            return None;
        }
        let released = is_released(entry);
        let ended = entry.record.status.has_ended();
        if !self.settings.dry_run || !(ended || step == NextStep::Blocked(Obstacle::DryRun)) {
            return if absurd { without_status(step, entry.record.deleting) } else { Some(step) };
        }
        if !released {
            let going: Vec<String> = self.objects.of(&place).map(|(id, _)| id.to_string()).collect();
            self.say_once(uid, if ended { "WouldRelease" } else { "WouldEnd" }, || {
                let going = if going.is_empty() { "nothing".to_owned() } else { going.join(", ") };
                let end = if ended { "the lease has ended" } else { "the lease would end now" };
                format!("dry run: {end}, and of these what is attached to it would go: {going}")
            });
        }
        None
    }

    /// Why what is attached to an ended lease stays: in one word, and for people.
    pub(super) fn hindrance(&self, place: &NamespacedName) -> Option<(&'static str, String)> {
        let retried = |object: &Object| object.hindrance().is_some_and(|it| it.retry_at.is_some());
        let reason =
            if self.objects.of(place).any(|(_, object)| retried(object)) { RETRYING } else { HINDERED };
        let mut why: Vec<String> = self
            .objects
            .of(place)
            .filter_map(|(id, object)| {
                if object.deleting && object.whole.as_ref().is_some_and(|name| name.as_str() == &*place.name)
                {
                    return Some(format!("{id} is being deleted and waits for finalizers of its own"));
                }
                Some(format!("{id}: {}", object.hindrance()?.message))
            })
            .collect();
        // In one order, whatever the order of the index, so that it isn't written again for that.
        why.sort();
        let more = why.len().saturating_sub(5);
        why.truncate(5);
        if more > 0 {
            why.push(format!("and {more} more"));
        }
        (!why.is_empty()).then(|| (reason, why.join("; ")))
    }

    pub(super) fn enqueue_object(&mut self, id: &ObjectId, now: &Now) {
        let work = Work::Object(id.clone());
        if self.writer.is_running(&work) {
            return;
        }
        let timer = Timer::Object(Box::new(id.clone()));
        self.timers.clear(&timer);
        let removal = self.removal(id);
        if removal.is_some() && self.leading.is_none() && self.is_hindered(id) {
            self.writer.remove(&work);
            if self.may_have_passed(id) {
                self.timers.set(timer, now.mono + HINDERED_PATIENCE);
            }
            return;
        }
        let hindrance = self.objects.get(id).and_then(Object::hindrance);
        match (removal, hindrance) {
            (None, _) => {
                self.writer.remove(&work);
            }
            (Some(_), Some(hindrance)) if hindrance.retry_at.is_none_or(|at| at > now.mono) => {
                if let Some(at) = hindrance.retry_at {
                    self.timers.set(timer, at);
                }
                self.writer.remove(&work);
            }
            (Some(_), _) if self.writer.contains(&work) => {}
            (Some(_), _) => self.try_removal(id, now),
        }
    }

    /// A follower looks whether the primary still lives that said of an object that it is hindered.
    pub(super) fn look_after_hindered(&mut self, id: &ObjectId, now: &Now) {
        if self.leading.is_some() || self.removal(id).is_none() || !self.is_hindered(id) {
            self.enqueue_object(id, now);
            return;
        }
        let patient_until = self.writer.last_followed().saturating_add(HINDERED_PATIENCE);
        if patient_until <= now.mono {
            self.try_removal(id, now);
        } else if self.is_retried(id) {
            self.timers.set(Timer::Object(Box::new(id.clone())), patient_until);
        }
        // Otherwise it has changed, and a primary that lives has seen that too.
    }

    /// Queues the removal of what is due in an object: due now, whenever it was before.
    fn try_removal(&mut self, id: &ObjectId, now: &Now) {
        let again = self.objects.get(id).is_some_and(|object| object.hindrance().is_some());
        self.writer.try_work_in(lane(&id.kind, again), Work::Object(id.clone()), now.mono);
    }

    /// Lets removals from objects of a kind that can't even be looked at wait behind all other work. A follower would
    /// look at the same one again and again, and never take over for anything else.
    pub(super) fn postpone_removals(&mut self, kind: &Kind, now: &Now) {
        let of_kind = self.objects.iter().map(|(id, _)| id).filter(|id| *id.kind == *kind);
        let mut ids: Vec<ObjectId> =
            of_kind.filter(|id| self.writer.contains(&Work::Object((*id).clone()))).cloned().collect();
        ids.sort_unstable();
        for id in &ids {
            self.try_removal(id, now);
        }
    }

    pub(super) fn removal(&self, id: &ObjectId) -> Option<Removal> {
        if self.settings.dry_run {
            return None;
        }
        let object = self.objects.get(id)?;
        removal::removal(id, object, |place| {
            self.leases.at(place).is_some_and(|(_, entry)| {
                let ended = entry.record.status.has_ended() && !is_released(entry);
                ended && !entry.releasing && !self.is_doubtful(entry)
            })
        })
    }

    /// Whether an ended lease may have been released, for all that this primary knows.
    pub(super) fn is_doubtful(&self, entry: &Entry) -> bool {
        self.leading.is_some()
            && (entry.stale || self.has_inherited(&entry.record))
            && entry.record.status.has_ended()
    }

    /// Whether this replica leads, and has yet to write to this lease. Whoever led before may have released it, though no watch
    /// has shown that, or its release may be under way still.
    fn has_inherited(&self, record: &LeaseObject) -> bool {
        self.leading.is_some_and(|term| record.status.term.unwrap_or_default() < term)
    }

    /// Whether the primary has published, for each lease that has ended, that what is attached to it is hindered. Whatever
    /// it can't do another can't either: no reason to take over, as long as it lives.
    pub(super) fn is_hindered(&self, id: &ObjectId) -> bool {
        self.ended_leases_of(id).all(|record| record.status.is_hindered())
    }

    /// Whether a hindrance that was published may have passed: by itself, or since the object has changed.
    fn may_have_passed(&self, id: &ObjectId) -> bool {
        let version = self.objects.get(id).map(|object| object.version).unwrap_or_default();
        self.is_retried(id) || self.ended_leases_of(id).all(|record| record.version < version)
    }

    /// Whether the primary has published that it tries again and again.
    fn is_retried(&self, id: &ObjectId) -> bool {
        self.ended_leases_of(id).any(|record| record.status.is_retrying())
    }

    fn ended_leases_of(&self, id: &ObjectId) -> impl Iterator<Item = &LeaseObject> {
        let places = self.objects.leases_of(id).into_iter();
        places.filter_map(|place| {
            let (_, entry) = self.leases.at(&place)?;
            entry.record.status.has_ended().then_some(&entry.record)
        })
    }

    pub(super) fn report_problems(&mut self, id: &ObjectId) {
        if self.leading.is_none() {
            return;
        }
        let Some(object) = self.objects.get(id) else { return };
        for problem in object.problems() {
            let about = About::Object(id.clone(), object.uid);
            self.out.user_events.push(UserEvent::warning(about, "AttachmentInvalid", problem.as_str()));
        }
    }

    /// Warns of what is attached to a lease that isn't there: of each object once, as long as it stays so.
    pub(super) fn report_pending(&mut self, place: &NamespacedName) {
        if self.leading.is_none() {
            return;
        }
        let said = self.pending_said.entry(place.clone()).or_default();
        for (id, object) in self.objects.of(place) {
            if !said.insert(id.clone()) {
                continue;
            }
            let note = format!(
                "attached to lease {:?}, which isn't there: nothing happens until it is granted",
                &*place.name
            );
            let about = About::Object(id.clone(), object.uid);
            self.out.user_events.push(UserEvent::warning(about, "AttachmentPending", note));
        }
    }

    pub(super) fn say_once(&mut self, uid: Uuid, reason: &'static str, note: impl FnOnce() -> String) {
        if self.leading.is_none() {
            return;
        }
        let Some(entry) = self.leases.get_mut(&uid) else { return };
        if entry.more.change(|more| more.said.replace(reason)) != Some(reason) {
            let about = About::Lease(entry.record.name.clone(), uid);
            self.out.user_events.push(UserEvent::warning(about, reason, note()));
        }
    }

    pub(super) fn touch(&mut self, work: &Work, now: &Now) {
        match work {
            Work::Lease(uid) => self.enqueue_lease(*uid, now),
            Work::Object(id) => self.enqueue_object(id, now),
        }
    }
}

/// The lane of removals from objects of a kind, since an API may hang, or a webhook. Those that could not be done before have
/// another, so that the same ones that hang again and again don't hold up the others.
fn lane(kind: &Kind, again: bool) -> Lane {
    Lane(number((&kind.resource.group, &kind.resource.plural, again)))
}

/// What can be done for a lease whose status nobody can write. If it was deleted it goes all the same, or it would stand in the
/// way of its namespace's deletion too; but no end was committed, so what is attached to it stays.
fn without_status(step: NextStep, deleting: bool) -> Option<NextStep> {
    match step {
        NextStep::Send(LeaseRequest::End(_) | LeaseRequest::Confirm(_)) if deleting => {
            Some(NextStep::Send(LeaseRequest::RemoveFinalizer))
        }
        NextStep::Send(LeaseRequest::Read | LeaseRequest::RemoveFinalizer | LeaseRequest::Delete)
        | NextStep::Rest
        | NextStep::Blocked(_)
        | NextStep::Wait(_) => Some(step),
        NextStep::Send(
            LeaseRequest::AddFinalizer
            | LeaseRequest::Grant(_)
            | LeaseRequest::Confirm(_)
            | LeaseRequest::End(_)
            | LeaseRequest::Publish(_),
        )
        | NextStep::Refresh(_) => None,
    }
}
