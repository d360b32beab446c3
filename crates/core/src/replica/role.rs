//! Elections, promotion, demotion, and the stop.

use std::time::Duration;

use lease_engine::LeaseTime;
use uuid::Uuid;
use writer_lease::WorkResult;

use super::{
    Replica, Work,
    requests::{InFlight, Purpose},
};
use crate::{
    clocks::Now,
    decide::lease::{LeaseRequest, NextStep},
    index::{attachments::ObjectId, leases::Pending},
    leadership::election::{ElectionStep, Outcome, Statement, Undone},
    lease_status::State,
    metadata::ResourceVersion,
    metric_event::MetricEvent,
    request::{Request, RequestError, Response},
    user_event::{About, UserEvent},
};

/// How long the first check of what seems overdue may take.
const CHECK: Duration = Duration::from_secs(1);
/// By how much later than others a replica acts that knows less than they may.
const SLIGHTLY: Duration = Duration::from_millis(500);

impl Replica {
    // --- Elections -----------------------------------------------------------------------------------------------

    /// Does what comes next in an election.
    pub(super) fn elect(&mut self, step: ElectionStep, now: &Now) {
        self.elect_since(step, now.mono, now);
    }

    /// The same, after the response to a request that was sent at `sent_at`.
    fn elect_since(&mut self, step: ElectionStep, sent_at: Duration, now: &Now) {
        // A request that gets no response must leave the time for another before followers take over.
        let by = now.mono.saturating_add(self.settings.lease_duration / 2);
        match step {
            ElectionStep::Send(request) => self.send(Purpose::Election, request, by, now),
            ElectionStep::Check(work) => {
                let lease = |uid| self.index.leases.get(uid).map(|entry| entry.record.name.clone());
                let request = match &work {
                    Work::Lease(uid) => lease(uid).map(|lease| Request::ReadLease { lease }),
                    Work::Object(id) => Some(Request::ReadObject { object: id.clone() }),
                };
                match request {
                    Some(request) => {
                        let by = self.check_limit(&work, now);
                        self.send(Purpose::Check(work), request, by, now);
                    }
                    None => {
                        self.leadership.drop_work(&work);
                        let statement = self.statement(now);
                        let next = self.leadership.checked(Undone::No, &statement, now.mono);
                        self.elect_since(next, sent_at, now);
                    }
                }
            }
            ElectionStep::Decided(outcome) => {
                match outcome {
                    Outcome::Proved(_) | Outcome::Claimed(_) | Outcome::CrdMissing(_) => {
                        self.liveness.write_accepted(sent_at);
                    }
                    Outcome::Lost | Outcome::Abstained | Outcome::Challenged(_) | Outcome::Failed => {}
                }
                self.leadership.decide(outcome, sent_at, now.mono);
            }
        }
    }

    /// When a check fails that isn't answered. A short time at first, so that what can't be read delays other work little.
    fn check_limit(&self, work: &Work, now: &Now) -> Duration {
        let limit = CHECK.saturating_mul(1 << self.leadership.failed_checks(work).min(8));
        now.mono.saturating_add(limit.min(self.settings.lease_duration / 2))
    }

    /// What this replica would write into the `Lessor`.
    pub(super) fn statement(&self, now: &Now) -> Statement {
        let overdue = match self.leadership.is_primary() && self.leadership.is_challenged() {
            true if !self.settings.dry_run => self.index.leases.count_overdue(now),
            _ => 0,
        };
        Statement { at: now.wall, leases: self.index.leases.len(), overdue }
    }

    /// A request of an election was answered.
    pub(super) fn election_answered(&mut self, request: &InFlight, response: &Response, now: &Now) {
        match response {
            Response::Lessor(lessor) => self.apply_lessor(lessor, request.written_at(now), now),
            Response::Refused(error) => self.report_refusal("can't lead", error),
            _ => {}
        }
        let statement = self.statement(now);
        let next = self.leadership.answered(response, &request.request, &statement);
        self.elect_since(next, request.sent_at, now);
    }

    fn report_refusal(&mut self, what: &str, error: &RequestError) {
        if self.leadership.refused(error) {
            let note = format!("{} {what}: {error}", self.settings.identity);
            self.notify(UserEvent::warning(About::Lessor, "WriteRefused", note));
        }
    }

    /// A follower has read what seemed overdue.
    pub(super) fn check_answered(&mut self, work: &Work, request: &InFlight, response: Response, now: &Now) {
        match (work, response) {
            (_, Response::Refused(error)) => {
                self.report_refusal("can't read what is due", &error);
                if matches!(error, RequestError::Throttled(_)) {
                    let failed = self.leadership.abandon();
                    self.elect_since(ElectionStep::Decided(failed), request.sent_at, now);
                } else {
                    // The `Lessor` was read right before, so the API server responds.
                    self.leadership.unreadable(work, now.mono);
                }
                return;
            }
            (_, Response::Lease(lease)) => self.apply_lease(&lease, now),
            (_, response @ (Response::Source(_) | Response::Gone))
                if matches!(request.request, Request::ReadSource { .. }) =>
            {
                self.source_checked(request, response, now);
            }
            (Work::Object(id), Response::Object(meta)) => self.apply_response(id, &meta, request, now),
            (Work::Lease(uid), _) => self.remove_lease(*uid, ResourceVersion::MAX, now),
            (Work::Object(id), _) => self.remove_object(id, None, now),
        }
        if let Some(next) = self.also_to_check(work, request, now) {
            self.send(Purpose::Check(work.clone()), next, self.check_limit(work, now), now);
            return;
        }
        self.leadership.readable(work);
        let undone = match work {
            Work::Lease(uid) => self.undone_of_lease(*uid, now),
            Work::Object(id) if self.removal(id).is_some() => Undone::Yes,
            Work::Object(_) => Undone::No,
        };
        let statement = self.statement(now);
        let next = self.leadership.checked(undone, &statement, now.mono);
        self.elect_since(next, request.sent_at, now);
    }

    /// Whether the next step of a lease is still to be done. That its time is over, the primary may know better.
    fn undone_of_lease(&mut self, uid: Uuid, now: &Now) -> Undone {
        let Some(NextStep::Send(request)) = self.step(uid, now) else { return Undone::No };
        let by_time = match &request {
            LeaseRequest::Confirm(_) => true,
            LeaseRequest::End(status) => status.state() == Some(State::Expired),
            _ => false,
        };
        let recovered = self.index.leases.get(&uid).is_some_and(|entry| entry.recovered);
        if by_time { Undone::Ask { patience: self.leadership.patience(recovered) } } else { Undone::Yes }
    }

    // --- Challenges ----------------------------------------------------------------------------------------------

    /// Hesitates while this replica knows less of the time of leases than others may, and on the primary answers challenges.
    pub(super) fn respect_others(&mut self, now: &Now) {
        let recovered = self.index.leases.has_recovered();
        let in_grace = now.lease.since(LeaseTime::ZERO) < self.settings.start_grace;
        let hesitation = match (recovered, in_grace) {
            (false, _) => Duration::ZERO,
            (true, true) => self.leadership.patience(false),
            (true, false) => SLIGHTLY,
        };
        self.leadership.hesitate(hesitation);
        let patience = self.leadership.patience(recovered).saturating_add(SLIGHTLY);
        let patience = if self.settings.dry_run { Duration::MAX } else { patience };
        self.leadership.await_answer(patience);
        if self.leadership.is_primary() && self.leadership.is_challenged() {
            self.leadership.prove_soon(now.mono);
        }
    }

    /// The primary has answered the challenge that was written at this time: no lease was due then. What this replica takes
    /// for due since before has not lost any of its time that is known.
    pub(super) fn not_due(&mut self, challenged_at: Duration, now: &Now) {
        let by = now.lease - now.mono.saturating_sub(challenged_at);
        for uid in self.index.leases.extend_due(by, now) {
            self.enqueue_lease(uid, now);
        }
    }

    // --- Promotion and demotion ----------------------------------------------------------------------------------

    /// Promotes or demotes this replica, after anything that may have changed who leads.
    pub(super) fn follow_role(&mut self, now: &Now) {
        let Some(change) = self.leadership.follow_role(now.mono) else { return };
        if change.before.is_some() {
            self.cancel_work(now);
            self.index.leases.demote();
            self.out.metric_events.push(MetricEvent::Demoted);
        }
        match change.now {
            Some(term) => {
                let had_time = self.settings.lease_duration.saturating_mul(2);
                self.index.leases.promote(now.lease - had_time);
                let note = format!("{} is primary under term {term}", self.settings.identity);
                self.notify(UserEvent::normal(About::Lessor, "Promoted", note));
                self.out.metric_events.push(MetricEvent::Promoted);
            }
            None => tracing::info!(term = change.before, "demoted"),
        }
        // A follower queues work too: the primary may die before it is done.
        self.enqueue_objects(now);
        self.enqueue_leases(now);
    }

    fn enqueue_objects(&mut self, now: &Now) {
        let mut objects: Vec<ObjectId> = self.index.attachments.iter().map(|(id, _)| id.clone()).collect();
        // Sorted, so that the same observations lead to the same requests.
        objects.sort_unstable();
        for id in &objects {
            self.report_problems(id);
            self.index.attachments.take_split(id);
            self.enqueue_object(id, now);
        }
    }

    /// Cancels all work in flight: it began under a term that is over. It may be done nevertheless.
    fn cancel_work(&mut self, now: &Now) {
        for purpose in self.requests.cancel_work(&mut self.out) {
            let work = match purpose {
                Purpose::Lease(uid, _) => {
                    if let Some(entry) = self.index.leases.get_mut(&uid) {
                        entry.pending = Pending::Idle;
                        entry.stale = true;
                    }
                    Work::Lease(uid)
                }
                Purpose::Removal(id, ..) => {
                    if let Some(object) = self.index.attachments.get_mut(&id) {
                        object.stale = true;
                    }
                    Work::Object(id)
                }
                _ => continue,
            };
            self.leadership.finish(&work, WorkResult::None, false, now.mono, now.mono);
        }
    }

    // --- The stop ------------------------------------------------------------------------------------------------

    /// Stops: waits for requests in flight, until `by` at the latest, then resigns.
    pub fn stop(&mut self, by: Duration) {
        self.leadership.stop(by);
    }

    /// Whether the stop is complete.
    pub fn has_stopped(&self) -> bool {
        self.leadership.stop_by().is_some() && !self.leadership.is_primary() && self.requests.is_empty()
    }

    /// Goes on with the stop.
    pub(super) fn wind_down(&mut self, by: Duration, now: &Now) {
        if !self.leadership.is_primary() || (!self.requests.is_empty() && now.mono < by) {
            return;
        }
        self.leadership.resign(now.mono);
        self.follow_role(now);
        let statement = self.statement(now);
        if let Some(request) = self.leadership.release(&statement, now.mono) {
            self.elect(ElectionStep::Send(request), now);
        }
    }
}
