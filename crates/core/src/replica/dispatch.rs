//! From what is due to requests.

use std::time::Duration;

use uuid::Uuid;
use writer_lease::{Term, WorkResult};

use super::{
    Replica, Work,
    requests::{LeaseAction, Purpose},
    response,
    schedule::Timer,
};
use crate::{
    clocks::Now,
    decide::{
        expiry,
        lease::{Confirm, LeaseRequest, NextStep},
    },
    index::{attachments::ObjectId, leases::Pending},
    leadership::Task,
    lease_status::{State, StatusSnapshot},
    liveness::Followed,
    request::Request,
};

impl Replica {
    /// Enqueues the leases that are due: as primary those that `--expiry-rate` lets through, as follower the first alone, to
    /// check whether the primary ends it, and all of them if some can't be checked.
    pub(super) fn hand_out_due(&mut self, now: &Now) {
        let due = if self.leadership.is_primary() {
            self.index.leases.hand_out(expiry::covered_until(self.liveness.last_write(), now), now)
        } else if self.leadership.has_unreadable() && self.schedule.look_for_due(now.mono) {
            let mut due = self.index.leases.all_due(now);
            due.retain(|uid| self.index.leases.get(uid).is_some_and(|entry| !entry.pending.is_queued()));
            due
        } else {
            self.index.leases.first_due(now.lease).map(|(uid, _)| uid).into_iter().collect()
        };
        for uid in due {
            self.enqueue_lease(uid, now);
        }
    }

    /// Enqueues what waited for a timer until now.
    pub(super) fn fire_timers(&mut self, now: &Now) {
        while let Some(timer) = self.schedule.pop(now.mono) {
            match timer {
                Timer::Lease(uid) => self.enqueue_lease(uid, now),
                Timer::Object(id) => self.retry_removal(&id, now),
                Timer::PendingAttachment(lease) => self.report_pending(&lease),
            }
        }
    }

    /// Queues as many refreshes of status as the budget allows, those that have waited longest first.
    pub(super) fn refresh(&mut self, now: &Now) {
        while let Some(uid) = self.schedule.next_refresh(now.mono) {
            // Something else may be more urgent by now.
            if matches!(self.step(uid, now), Some(NextStep::Refresh(_))) {
                self.schedule.spend_refresh(now.mono);
                self.place(uid, Pending::QueuedRefresh);
                self.queue_lease(uid, now.mono, false);
            } else {
                self.enqueue_lease(uid, now);
            }
        }
    }

    /// Lets the primary write something shortly before a deadline, if only a proof.
    pub(super) fn prove_writes(&mut self, now: &Now) {
        if self.leadership.is_primary() && self.liveness.needs_write_proof(&mut self.index.leases, now) {
            self.leadership.prove_soon(now.mono);
        }
    }

    /// Checks whether the API server responds, if that is due; and whether the primary does, if it has to by now.
    pub(super) fn probe(&mut self, now: &Now) {
        if self.probe_at(now).is_some_and(|at| at <= now.mono) {
            self.liveness.probed(now);
            let request = self.challenge(now).unwrap_or(Request::ReadLessor);
            self.send(Purpose::Probe, request, self.time_limit(now), now);
        }
    }

    /// A challenge of the primary, if a lease is due by now, or in a moment.
    fn challenge(&mut self, now: &Now) -> Option<Request> {
        // One that met a conflict is repeated once the newest version is known.
        let knows_lessor = !std::mem::take(&mut self.challenge_refused);
        let follows = self.is_ready() && !self.settings.dry_run && !self.leadership.is_primary();
        let is_due = follows && self.liveness.is_due(&mut self.index.leases, now);
        if knows_lessor && is_due && self.leadership.stop_by().is_none() {
            self.leadership.challenge(&self.statement(now))
        } else {
            None
        }
    }

    /// When to probe if nothing happens before; `None`: never.
    pub(super) fn probe_at(&mut self, now: &Now) -> Option<Duration> {
        let asked = self.requests.last_sent_for_leases();
        // In a dry run nothing ends, so the primary writes nothing at a deadline.
        let follows = !self.leadership.is_primary() && !self.settings.dry_run;
        let (at, patience) = (self.leadership.last_followed(), self.leadership.patience(false));
        let followed = follows.then_some(Followed { at, patience });
        self.liveness.probe_at(asked, followed, &mut self.index.leases, now)
    }

    /// Sends the requests that work and elections need now.
    pub(super) fn dispatch(&mut self, now: &Now) {
        if let Some(by) = self.leadership.stop_by() {
            self.wind_down(by, now);
            return;
        }
        if self.requests.is_throttled(now) {
            return;
        }
        while let Some(task) = self.next_task(now) {
            match task {
                Task::Run { work, term, until } => self.run(work, term, until, now),
                Task::Elect(step) => self.elect(step, now),
            }
            self.follow_role(now);
        }
    }

    fn next_task(&mut self, now: &Now) -> Option<Task> {
        let statement = self.statement(now);
        self.leadership.poll(&statement, now.mono)
    }

    fn run(&mut self, work: Work, term: Term, until: Duration, now: &Now) {
        let next = match &work {
            Work::Lease(uid) => self.lease_request(*uid, term, now),
            Work::Object(id) => self.removal_request(id),
        };
        if let Some((purpose, request)) = next {
            if self.leadership.runs_spare(&work) {
                let next = self.schedule.spend_retry(now.mono);
                self.leadership.spare_from(next);
            }
            self.send(purpose, request, until, now);
            return;
        }
        self.leadership.finish(&work, WorkResult::None, false, now.mono, now.mono);
        match &work {
            Work::Lease(uid) => {
                self.place(*uid, Pending::Idle);
                self.enqueue_lease(*uid, now);
            }
            Work::Object(id) => self.enqueue_object(id, now),
        }
    }

    /// The request that removes what is due in an object.
    fn removal_request(&self, id: &ObjectId) -> Option<(Purpose, Request)> {
        let removal = self.removal(id)?;
        let object = self.index.attachments.get(id)?;
        let purpose =
            Purpose::Removal(id.clone(), object.version, response::leases_of(object, Some(&removal)));
        let request = if object.stale {
            Request::ReadObject { object: id.clone() }
        } else {
            Request::Remove { object: id.clone(), removal }
        };
        Some((purpose, request))
    }

    /// The request that the next step of a lease takes.
    fn lease_request(&mut self, uid: Uuid, term: Term, now: &Now) -> Option<(Purpose, Request)> {
        let step = self.step(uid, now)?;
        let deadline = self.index.leases.deadline(uid);
        let entry = self.index.leases.get(&uid)?;
        let record = &entry.record;
        let (lease, version) = (record.name.clone(), record.version);
        let write = |status: &StatusSnapshot| Request::WriteStatus {
            lease: record.name.clone(),
            uid,
            version,
            status: status.to_patch(uid, &self.settings.identity, term, record.other_conditions()),
            grants: matches!(step, NextStep::Send(LeaseRequest::Grant(_))),
        };
        let set_finalizers = |ours: bool| Request::SetFinalizers {
            lease: record.name.clone(),
            uid,
            version,
            finalizers: record.finalizers_with(ours),
        };
        let (action, request) = match &step {
            NextStep::Send(request) => match request {
                LeaseRequest::Read | LeaseRequest::Confirm(Confirm::Lease) => {
                    (LeaseAction::Read, Request::ReadLease { lease })
                }
                LeaseRequest::Confirm(Confirm::Source) => {
                    (LeaseAction::ReadSource, self.source_request(uid, now)?)
                }
                LeaseRequest::AddFinalizer => (LeaseAction::AddFinalizer, set_finalizers(true)),
                LeaseRequest::Grant(status) => (LeaseAction::Grant, write(status)),
                LeaseRequest::Publish(status) => (published(&record.status, status), write(status)),
                LeaseRequest::End(status) => {
                    let deadline = deadline.filter(|_| status.state() == Some(State::Expired));
                    (LeaseAction::End(deadline, status.attached.unwrap_or_default()), write(status))
                }
                LeaseRequest::RemoveFinalizer if record.status.has_ended() => {
                    (LeaseAction::Release, set_finalizers(false))
                }
                LeaseRequest::RemoveFinalizer => (LeaseAction::Abandon, set_finalizers(false)),
                LeaseRequest::Delete => (LeaseAction::Delete, Request::DeleteLease { lease, uid }),
            },
            NextStep::Refresh(status) => (published(&record.status, status), write(status)),
            NextStep::Rest | NextStep::Wait(_) | NextStep::Blocked(_) => return None,
        };
        if action == LeaseAction::ReadSource {
            self.reads_source(uid, &request, now);
        }
        self.place(uid, Pending::InFlight { refresh: matches!(step, NextStep::Refresh(_)) });
        if let Some(entry) = self.index.leases.get_mut(&uid) {
            entry.releasing |= matches!(step, NextStep::Send(LeaseRequest::RemoveFinalizer));
        }
        Some((Purpose::Lease(uid, action), request))
    }

    /// When a request fails that isn't answered.
    pub(super) fn time_limit(&self, now: &Now) -> Duration {
        now.mono.saturating_add(self.settings.lease_duration)
    }

    /// Sends a request that fails unless it is answered by `by`.
    pub(super) fn send(&mut self, purpose: Purpose, request: Request, by: Duration, now: &Now) {
        let known = self.known_version(&request);
        self.requests.send(purpose, request, by, known, now, &mut self.out);
    }
}

/// What a write of status publishes that users are notified of.
fn published(old: &StatusSnapshot, new: &StatusSnapshot) -> LeaseAction {
    let following = |status: &StatusSnapshot| {
        let followed = status.follows()?;
        followed.condition.as_ref().map(|(alive, reason, _)| (*alive, reason.clone()))
    };
    match following(new) {
        Some(now) if following(old).as_ref() != Some(&now) => LeaseAction::Follow,
        _ if new.is_expiring() && !old.is_expiring() => LeaseAction::Warn,
        _ => LeaseAction::Publish,
    }
}
