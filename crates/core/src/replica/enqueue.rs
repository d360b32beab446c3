//! What is next for a lease that something has changed about, and where it waits for that.

use std::time::Duration;

use uuid::Uuid;
use writer_lease::Lane;

use super::{
    Replica, Work, hash_of,
    index::{is_inherited, may_be_released},
    schedule::Timer,
};
use crate::{
    clocks::Now,
    decide::{
        expiry::{Obstacle, Turn},
        lease::{LeaseRequest, LeaseView, NextStep},
    },
    index::{
        attachments::ObjectId,
        leases::{Entry, Pending},
    },
    metadata::NamespacedName,
    metric_event::MetricEvent,
};

/// A lease that waits for a time of lease time is looked at this often while lease time is paused.
const WHILE_DISCONNECTED: Duration = Duration::from_secs(1);

impl Replica {
    /// The lease of this name, or what is attached to it, has changed.
    pub(super) fn enqueue_name(&mut self, lease: &NamespacedName, now: &Now) {
        let timer = || Timer::PendingAttachment(Box::new(lease.clone()));
        match self.index.leases.at(lease) {
            Some((uid, entry)) if !entry.is_released() => {
                self.schedule.clear(&timer());
                self.reporting.not_pending(lease);
                self.measure_emptied(uid, lease, now);
                self.enqueue_lease(uid, now);
            }
            // Until all leases were listed, it may exist.
            _ if !self.readiness.leases_listed(&lease.namespace) => {}
            _ if self.index.attachments.of(lease).next().is_some() => {
                self.schedule.set_if_absent(timer(), now.mono.saturating_add(self.settings.pending_warning));
            }
            _ => {
                self.schedule.clear(&timer());
                self.reporting.not_pending(lease);
            }
        }
    }

    /// The lease of this name was created, has ended or is gone: everything attached to it is affected.
    pub(super) fn enqueue_attached(&mut self, lease: &NamespacedName, now: &Now) {
        let ids: Vec<ObjectId> = self.index.attachments.of(lease).map(|(id, _)| id.clone()).collect();
        for id in &ids {
            self.enqueue_object(id, now);
        }
        self.enqueue_name(lease, now);
    }

    /// Everything may have changed, as after a change of role.
    pub(super) fn enqueue_leases(&mut self, now: &Now) {
        let mut leases: Vec<Uuid> = self.index.leases.iter().map(|(uid, _)| *uid).collect();
        // Sorted, so that the same observations lead to the same requests.
        leases.sort_unstable();
        for uid in leases {
            self.enqueue_lease(uid, now);
        }
    }

    /// Something about a lease has changed: it may have to wait for something else now. One that waits for a response does so
    /// further on, and is enqueued after that.
    pub(super) fn enqueue_lease(&mut self, uid: Uuid, now: &Now) {
        let Some(entry) = self.index.leases.get(&uid) else { return };
        if entry.pending.is_in_flight() {
            return;
        }
        self.index.leases.recheck(uid, now);
        let step = self.step(uid, now);
        self.forget_outdated(uid, step.as_ref());
        match step {
            Some(NextStep::Send(request)) => {
                let due = self.due(uid, &request, now);
                self.place(uid, Pending::Queued);
                self.queue_lease(uid, due, is_of_end(&request));
            }
            Some(NextStep::Refresh(_)) if self.leadership.is_primary() => match self.paused_until(uid, now) {
                Some(at) => {
                    self.place(uid, Pending::Timer);
                    self.schedule.set(Timer::Lease(uid), at);
                }
                None => self.await_refresh(uid, now),
            },
            Some(NextStep::Wait(at)) => {
                // What waits for lease time comes no nearer while that is paused.
                let at = if now.disconnected { at.max(now.mono + WHILE_DISCONNECTED) } else { at };
                if self.index.leases.get(&uid).is_some_and(|entry| entry.record.status.has_ended()) {
                    self.place(uid, Pending::Lingering);
                    self.schedule.linger(uid, at);
                } else {
                    self.place(uid, Pending::Timer);
                    self.schedule.set(Timer::Lease(uid), at);
                }
            }
            Some(NextStep::Refresh(_) | NextStep::Rest | NextStep::Blocked(_)) | None => {
                self.place(uid, Pending::Idle);
            }
        }
    }

    /// Queues the next step of a lease in a lane of its namespace: an end goes first, what failed before has a spare lane. After a
    /// takeover, what the primary of before had time for goes after what has fallen due since: it may be stuck.
    pub(super) fn queue_lease(&mut self, uid: Uuid, due: Duration, of_end: bool) {
        let term = self.leadership.term();
        let Some(entry) = self.index.leases.get_mut(&uid) else { return };
        // Its end isn't held up by what was tried before.
        let failure = entry.failure().filter(|failure| failure.of_end || !of_end);
        // It failed for the primary before, and would again. What is healthy goes first.
        let hindered_before = is_inherited(&entry.record, term) && entry.record.status.is_hindered();
        if hindered_before && !entry.hindered_before() {
            entry.more.change(|more| more.hindered_before = true);
        }
        let namespace = &entry.record.name.namespace;
        let spare = hindered_before || failure.is_some_and(|failure| failure.lasting);
        let since = self.leadership.since();
        let is_old = due.saturating_add(self.settings.lease_duration.saturating_mul(2)) < since;
        let lane = match hash_of(namespace) {
            id if spare => Lane::spare(id),
            id if is_old || !of_end => Lane::patient(id),
            id => Lane::trusted(id),
        };
        // A lane that gives way does so from the takeover on.
        let ready = if is_old { since } else { due };
        let ready = failure.map_or(ready, |failure| failure.retry_at.max(ready));
        self.leadership.queue_later(lane, Work::Lease(uid), due, ready);
    }

    /// Until when the writes of a lease pause after a failure, if they do.
    fn paused_until(&self, uid: Uuid, now: &Now) -> Option<Duration> {
        let failure = self.index.leases.get(&uid)?.failure()?;
        Some(failure.retry_at).filter(|at| *at > now.mono)
    }

    /// Moves a lease to another place to wait, out of the one where it waits so far.
    pub(super) fn place(&mut self, uid: Uuid, pending: Pending) {
        let Some(entry) = self.index.leases.get_mut(&uid) else { return };
        let before = std::mem::replace(&mut entry.pending, pending);
        if before == pending || before.is_queued() && pending.is_queued() {
            return;
        }
        match before {
            Pending::Idle | Pending::InFlight { .. } => {}
            Pending::Timer => self.schedule.clear(&Timer::Lease(uid)),
            Pending::Lingering => self.schedule.stop_lingering(uid),
            Pending::Budget => self.schedule.drop_refresh(uid),
            // A request is sent from the queue, and stays there until it is answered.
            Pending::Queued | Pending::QueuedRefresh if pending.is_in_flight() => {}
            Pending::Queued | Pending::QueuedRefresh => self.leadership.drop_work(&Work::Lease(uid)),
        }
    }

    /// A lease is gone: it waits for nothing.
    pub(super) fn forget_wait(&mut self, uid: Uuid) {
        self.leadership.drop_work(&Work::Lease(uid));
        self.schedule.stop_lingering(uid);
        self.schedule.drop_refresh(uid);
    }

    /// Forgets what is remembered for a step that isn't next any more.
    fn forget_outdated(&mut self, uid: Uuid, step: Option<&NextStep>) {
        let request = match step {
            Some(NextStep::Send(request)) => Some(request),
            _ => None,
        };
        if request.is_none()
            && let Some(entry) = self.index.leases.get_mut(&uid).filter(|entry| entry.due().is_some())
        {
            entry.more.change(|more| more.due = None);
        }
        let may_end =
            matches!(request, Some(LeaseRequest::Read | LeaseRequest::Confirm(_) | LeaseRequest::End(_)));
        if !may_end {
            self.index.leases.set_confirming(uid, None);
        }
    }

    /// Since when this request is due: an end since its deadline, whatever was next before.
    fn due(&mut self, uid: Uuid, request: &LeaseRequest, now: &Now) -> Duration {
        let since_deadline = match request {
            LeaseRequest::End(_) | LeaseRequest::Confirm(_) => self
                .index
                .leases
                .granted_time(uid, now)
                .and_then(|granted| granted.overdue)
                .unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let due = now.mono.saturating_sub(since_deadline);
        match self.index.leases.get_mut(&uid) {
            Some(entry) => entry.more.change(|more| *more.due.get_or_insert(due)),
            None => due,
        }
    }

    /// Lets a lease wait for the budget of status refreshes, unless that has let it through already.
    fn await_refresh(&mut self, uid: Uuid, now: &Now) {
        let pending = self.index.leases.get(&uid).map(|entry| entry.pending);
        if pending == Some(Pending::QueuedRefresh) {
            return;
        }
        match self.schedule.await_refresh(uid, now.mono) {
            Some(postponed) => {
                self.place(uid, Pending::Budget);
                if postponed {
                    self.out.metric_events.push(MetricEvent::Postponed);
                }
            }
            None => self.place(uid, Pending::Idle),
        }
    }

    /// Measures how late the last attachment of an expired lease was removed.
    fn measure_emptied(&mut self, uid: Uuid, lease: &NamespacedName, now: &Now) {
        if self.index.attachments.of(lease).next().is_some() {
            return;
        }
        if let Some(deadline) = self.index.leases.get_mut(&uid).and_then(Entry::take_overran) {
            self.out.metric_events.push(MetricEvent::Emptied(now.lease.since(deadline)));
        }
    }

    /// What is next for a lease; `None`: nothing that this replica may do.
    pub(super) fn step(&mut self, uid: Uuid, now: &Now) -> Option<NextStep> {
        let term = self.leadership.term();
        let entry = self.index.leases.get(&uid)?;
        let record = &entry.record;
        let is_absurd = record.status.term.is_some_and(|term| self.leadership.is_absurd(term));
        let (attached, hindrance) = self.index.attached_to(record);
        let blocked_until = self.index.watches.release_blocked_until(&record.name.namespace, now);
        let view = LeaseView {
            record,
            // A follower reads the lease before it claims the lead, and otherwise waits for its watch.
            stale: entry.stale && term.is_some(),
            inherited: is_inherited(record, term),
            granted: self.index.leases.granted_time(uid, now),
            published_deadline: entry.published_deadline,
            nearer: entry.nearer,
            granted_by: entry.granted_by(),
            written_at: entry.written_at,
            releasing: entry.releasing,
            attached,
            hindrance: hindrance.as_ref().map(|(reason, message)| (*reason, &**message)),
            linger_until: entry.linger_until().max(blocked_until),
            following: self.index.following(uid, now),
            turn: match term {
                None => Turn::Follower,
                Some(_) if entry.handed_out && !entry.awaits_turn => Turn::Reached,
                Some(_) => Turn::Waiting,
            },
            last_write: self.liveness.last_write(),
            obstacle: self.obstacle(is_absurd),
            settings: &self.settings,
            now,
        };
        let step = view.step();
        let (deleting, ended, released) = (record.deleting, record.status.has_ended(), entry.is_released());
        if self.leadership.lessor_crd_missing() && !deleting {
            return None;
        }
        if self.settings.dry_run && (ended || step == NextStep::Blocked(Obstacle::DryRun)) {
            if !released {
                self.report_dry_run(uid, ended);
            }
            return None;
        }
        if is_absurd { without_status(step, deleting) } else { Some(step) }
    }

    /// What keeps this replica from ending a lease.
    fn obstacle(&self, is_absurd: bool) -> Option<Obstacle> {
        if self.settings.dry_run {
            Some(Obstacle::DryRun)
        } else if self.leadership.lessor_crd_missing() {
            Some(Obstacle::LessorCrdMissing)
        } else {
            is_absurd.then_some(Obstacle::AbsurdTerm)
        }
    }

    /// Whether an ended lease may have been released, as far as this primary knows.
    pub(super) fn may_be_released(&self, entry: &Entry) -> bool {
        may_be_released(entry, self.leadership.term())
    }
}

/// Whether this request commits the end of a lease, or is needed for that.
fn is_of_end(request: &LeaseRequest) -> bool {
    matches!(request, LeaseRequest::End(_) | LeaseRequest::Confirm(_))
}

/// What can be done for a lease whose status can't be written. If it was deleted, its finalizer is removed nevertheless, or it
/// would block the deletion of its namespace. Its end isn't committed, so what is attached to it remains.
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
