//! Acting: from work that may be done now to requests.

use std::time::Duration;

use lease_engine::LeaseTime;
use uuid::Uuid;
use writer_lease::{Action, Term, WorkResult};

use super::{Cause, Doing, Flight, LATE, LONG, PROBE_INTERVAL, Replica, Timer, WATCHFUL, Work, response};
use crate::{
    clocks::Now,
    decide::expiry::{self, RECENT},
    decide::lease::{Confirm, LeaseRequest, NextStep},
    leadership::election::ElectionStep,
    lease_status::{State, StatusSnapshot},
    metric_event::MetricEvent,
    request::Request,
};

impl Replica {
    /// Takes what is due from the lessor: the primary at its rate, a follower just the first, to see that it is done.
    pub(super) fn hand_out_due(&mut self, now: &Now) {
        if self.leading.is_none() {
            if let Some((uid, _)) = self.leases.first_due(now.lease) {
                self.enqueue_lease(uid, now);
            }
            return;
        }
        for uid in self.leases.hand_out(expiry::covered_until(self.shown_at, now), now) {
            self.enqueue_lease(uid, now);
        }
    }

    pub(super) fn fire_timers(&mut self, now: &Now) {
        while let Some(timer) = self.timers.pop(now.mono) {
            match timer {
                Timer::Lease(uid) => self.enqueue_lease(uid, now),
                Timer::Object(id) => self.look_after_hindered(&id, now),
                Timer::Pending(place) => self.report_pending(&place),
            }
        }
    }

    /// Lets a lease wait for its turn to have its status brought up to date.
    pub(super) fn await_refresh(&mut self, uid: Uuid, now: &Now) {
        let Some(turn) = self.refreshes.next_at(now.mono) else { return };
        if self.unrefreshed.set_if_absent(uid, now.mono) && turn > now.mono {
            self.out.metric_events.push(MetricEvent::Postponed);
        }
    }

    /// Lets as many leases have their status brought up to date as the budget allows, those that have waited longest first.
    pub(super) fn refresh(&mut self, now: &Now) {
        while self.refresh_at(now).is_some_and(|at| at <= now.mono)
            && let Some(uid) = self.unrefreshed.pop(now.mono)
        {
            // It may have been done, or something else may be more urgent, since it began to wait.
            let still = matches!(self.step(uid, now), Some(NextStep::Refresh(_)));
            let Some(entry) = self.leases.get_mut(&uid).filter(|entry| still && !entry.in_flight) else {
                continue;
            };
            entry.refreshing = true;
            self.refreshes.take(now.mono);
            self.writer.try_work(Work::Lease(uid), now.mono);
        }
    }

    /// When the next lease may have its status brought up to date, if any waits for that.
    pub(super) fn refresh_at(&mut self, now: &Now) -> Option<Duration> {
        self.unrefreshed.first()?;
        self.refreshes.next_at(now.mono)
    }

    /// Shortly before a deadline the primary makes sure that the server writes, and that followers hear that it lives: an outage
    /// that the deadline falls into must not be taken for a holder that is gone.
    pub(super) fn approach(&mut self, now: &Now) {
        if self.leading.is_some() && (self.is_unshown(now.lease + RECENT, now) || self.holds_unsaid(now)) {
            self.writer.show(now.mono);
        }
    }

    /// Whether this replica has held time of which the others don't know yet. What a request takes may wait: they take over
    /// half a lease duration after a deadline.
    fn holds_unsaid(&self, now: &Now) -> bool {
        // A `Lessor` that isn't there is made anew anyway.
        self.election.known().is_some()
            && self.shared_pause.as_ref().is_some_and(|held| held.unsaid(now) > LATE)
    }

    /// A write of a lease or of the `Lessor` was accepted that was sent then. Other kinds may be stored elsewhere.
    pub(super) fn wrote(&mut self, sent_at: Duration) {
        self.shown_at = self.shown_at.max(sent_at);
    }

    /// Whether the primary has yet to write something for the sake of a deadline before this, and be answered.
    pub(super) fn is_unshown(&mut self, before: LeaseTime, now: &Now) -> bool {
        let deadline = self.leases.first_due(before).map(|(_, deadline)| expiry::mono_of(deadline, now));
        deadline
            .and_then(|deadline| expiry::write_at(deadline, self.shown_at))
            .is_some_and(|at| at <= now.mono)
    }

    /// A deaf replica that waits for nothing asks by itself whether the server is heard again: where only watches run,
    /// nothing else would tell. So does a follower that misses the signs of a primary at a deadline: a server that hangs
    /// must not be taken for a primary that is gone, and then for holders that are.
    pub(super) fn probe(&mut self, now: &Now) {
        if self.probe_due(now).is_some_and(|at| at <= now.mono) {
            self.probed_at = now.mono;
            self.send(Cause::Probe, Request::ReadLessor, now.mono + self.settings.lease_duration, now);
        }
    }

    /// Lease time has stood still, counted from the last sign of life, which may have been a minute before: at rest there is
    /// none. Where that comes again and again (a proxy that cuts connections on which nothing is said), time must pass all the
    /// same, so for a while afterwards signs of life are asked for. Not for a second or two, as a busy server costs.
    pub(super) fn heed_outages(&mut self, now: &Now) {
        if let Some(held) = &mut self.shared_pause {
            held.note(now);
        }
        if now.disconnected {
            return;
        }
        let held = now.held();
        let least = if now.mono < self.watchful_until { Duration::ZERO } else { LONG };
        if held > self.held + least {
            self.watchful_until = now.mono + WATCHFUL;
        }
        self.held = held;
    }

    /// When to ask whether the server is heard, if ever.
    pub(super) fn probe_due(&mut self, now: &Now) -> Option<Duration> {
        let asked = self.in_flight.values().filter(|flight| flight.request.is_for_leases());
        let asked = asked.map(|flight| flight.sent_at).max();
        let again = asked.max(Some(self.probed_at)).map(|asked| asked + PROBE_INTERVAL)?;
        // One that takes long keeps nobody from asking another: the server may just be slow.
        if now.disconnected {
            return Some(again);
        }
        let heard = now.mono.saturating_sub(now.since_last_response);
        if now.mono < self.watchful_until && self.leases.next_due().is_some() {
            return Some(again.max(heard + PROBE_INTERVAL));
        }
        if asked.is_some() {
            return None;
        }
        // Where nothing ends, the primary has nothing to show.
        if self.leading.is_some() || self.settings.dry_run {
            return None;
        }
        let deadline = match self.leases.first_due(now.lease + LATE) {
            Some((_, deadline)) => deadline,
            None => self.leases.next_due()?,
        };
        // The primary shows itself a second before the deadline, and then by the end.
        let missed = now.mono + (deadline - LATE).since(now.lease);
        // Whoever has asked already waits for no primary any more.
        let silent = if heard > self.probed_at { heard + RECENT + LATE } else { again };
        Some(missed.max(silent))
    }

    pub(super) fn act(&mut self, now: &Now) {
        if let Some(by) = self.stopping {
            self.wind_up(by, now);
            return;
        }
        if now.mono < self.patient_until {
            return;
        }
        while let Some(action) = self.writer.poll(now.mono) {
            match action {
                Action::Run { key, term, until, .. } => self.run(key, term, until, now),
                Action::Prove { term } => {
                    let next = self.election.prove(term, &self.statement(now));
                    self.arbitrate(next, now);
                }
                Action::Claim { term, reason } => {
                    let next = self.election.claim(term, reason);
                    self.arbitrate(next, now);
                }
                Action::Resign { .. } => {
                    if let Some(request) = self.election.resign(&self.statement(now)) {
                        self.arbitrate(ElectionStep::Send(request), now);
                    }
                }
            }
            self.follow_role(now);
        }
    }

    pub(super) fn run(&mut self, work: Work, term: Term, until: Duration, now: &Now) {
        let next = match &work {
            Work::Lease(uid) => self.next_request(*uid, term, now),
            Work::Object(id) => self.removal(id).map(|removal| {
                let object = id.clone();
                let stale = self.objects.get(id).is_some_and(|object| object.stale);
                let version = self.objects.get(id).map(|object| object.version).unwrap_or_default();
                let leases = self.objects.get(id).map(|object| response::leases_of(object, Some(&removal)));
                let request =
                    if stale { Request::ReadObject { object } } else { Request::Remove { object, removal } };
                (Cause::Object(id.clone(), version, leases.unwrap_or_default()), request)
            }),
        };
        match next {
            Some((cause, request)) => self.send(cause, request, until, now),
            None => {
                self.writer.done(&work, WorkResult::None, false, now.mono, now.mono);
                self.touch(&work, now);
            }
        }
    }

    /// The request that the next step of a lease takes.
    pub(super) fn next_request(&mut self, uid: Uuid, term: Term, now: &Now) -> Option<(Cause, Request)> {
        let step = self.step(uid, now)?;
        let deadline = self.leases.deadline(uid);
        let entry = self.leases.get(&uid)?;
        let record = &entry.record;
        let lease = record.name.clone();
        let version = record.version;
        let write = |status: &StatusSnapshot| Request::WriteStatus {
            lease: lease.clone(),
            uid,
            version,
            status: status.to_patch(&self.settings.identity, term, record.other_conditions()),
            grants: matches!(step, NextStep::Send(LeaseRequest::Grant(_))),
        };
        let (doing, request) = match &step {
            NextStep::Send(LeaseRequest::Read) => (Doing::Read, Request::ReadLease { lease }),
            NextStep::Send(LeaseRequest::Confirm(Confirm::Lease)) => {
                (Doing::Read, Request::ReadLease { lease })
            }
            NextStep::Send(LeaseRequest::Confirm(Confirm::Source)) => {
                (Doing::Confirm, self.confirmation(uid, now)?)
            }
            NextStep::Send(LeaseRequest::AddFinalizer) => {
                let finalizers = record.finalizers_with(true);
                (Doing::Prepare, Request::SetFinalizers { lease, uid, version, finalizers })
            }
            NextStep::Send(LeaseRequest::Grant(status)) => (Doing::Grant, write(status)),
            NextStep::Send(LeaseRequest::End(status)) => {
                let deadline = deadline.filter(|_| status.state() == Some(State::Expired));
                (Doing::End(deadline, status.attached.unwrap_or_default()), write(status))
            }
            NextStep::Send(LeaseRequest::Publish(status)) => (news(&record.status, status), write(status)),
            NextStep::Refresh(status) => (news(&record.status, status), write(status)),
            NextStep::Send(LeaseRequest::RemoveFinalizer) => {
                let finalizers = record.finalizers_with(false);
                let doing = if record.status.has_ended() { Doing::Release } else { Doing::Abandon };
                (doing, Request::SetFinalizers { lease, uid, version, finalizers })
            }
            NextStep::Send(LeaseRequest::Delete) => (Doing::Delete, Request::DeleteLease { lease, uid }),
            NextStep::Rest | NextStep::Wait(_) | NextStep::Blocked(_) => return None,
        };
        if doing == Doing::Confirm {
            self.confirming(uid, &request, now);
        }
        if let Some(entry) = self.leases.get_mut(&uid) {
            entry.in_flight = true;
            entry.releasing |= matches!(step, NextStep::Send(LeaseRequest::RemoveFinalizer));
        }
        Some((Cause::Lease(uid, doing), request))
    }

    /// Sends a request, to be answered by `by`.
    pub(super) fn send(&mut self, cause: Cause, request: Request, by: Duration, now: &Now) {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.in_flight.insert(ticket, Flight { cause, request: request.clone(), sent_at: now.mono });
        self.out.requests.push((ticket, request, by));
    }
}

/// What a write of status says that people should hear of.
fn news(old: &StatusSnapshot, new: &StatusSnapshot) -> Doing {
    let following = |status: &StatusSnapshot| {
        let followed = status.follows()?;
        followed.condition.as_ref().map(|(alive, reason, _)| (*alive, reason.clone()))
    };
    match following(new) {
        Some(now) if following(old).as_ref() != Some(&now) => Doing::Follow,
        _ if new.is_expiring() && !old.is_expiring() => Doing::Warn,
        _ => Doing::Publish,
    }
}
