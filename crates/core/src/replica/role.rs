//! Being primary or not: arbitration, promotion, demotion, and leaving in order.

use std::time::Duration;

use uuid::Uuid;
use writer_lease::{Action, WorkResult};

use super::{Cause, Flight, Replica, Work};
use crate::{
    clocks::Now,
    decide::lease::NextStep,
    index::attachments::ObjectId,
    leadership::election::{ElectionStep, Outcome, Statement},
    lease_object::ResourceVersion,
    metric_event::MetricEvent,
    request::{Request, RequestError, Response},
    timers::Timers,
    user_event::{About, UserEvent},
};

impl Replica {
    pub(super) fn arbitrate(&mut self, next: ElectionStep, now: &Now) {
        self.arbitrate_since(next, now.mono, now);
    }

    pub(super) fn arbitrate_since(&mut self, next: ElectionStep, sent_at: Duration, now: &Now) {
        // One that is lost must leave the time for another, before others think that nobody is there.
        let until = now.mono + self.settings.lease_duration / 2;
        match next {
            ElectionStep::Send(request) => {
                if let Request::WriteLessor { .. } = request {
                    self.saying = now.paused_unwritable;
                }
                self.send(Cause::Election, request, until, now);
            }
            ElectionStep::Check(work) => {
                let request = match &work {
                    Work::Lease(uid) => self
                        .leases
                        .get(uid)
                        .map(|entry| Request::ReadLease { lease: entry.record.name.clone() }),
                    Work::Object(id) => Some(Request::ReadObject { object: id.clone() }),
                };
                match request {
                    Some(request) => {
                        self.send(Cause::Check(work), request, until, now);
                    }
                    None => {
                        self.writer.remove(&work);
                        let next = self.election.checked(false, &self.statement(now));
                        self.arbitrate_since(next, sent_at, now);
                    }
                }
            }
            ElectionStep::Decided(verdict) => {
                tracing::debug!(?verdict, "arbitration");
                if let Outcome::Proved(_) | Outcome::Claimed(_) = verdict {
                    self.lessor_refusal = None;
                    self.wrote(sent_at);
                    // Whether or not the definition that is installed knows the field.
                    let saying = self.saying;
                    self.shared_pause.iter_mut().for_each(|held| held.said(saying));
                }
                match verdict {
                    Outcome::Proved(term) => self.writer.proved(term, sent_at),
                    Outcome::Claimed(term) => self.writer.claimed(term, sent_at, now.mono),
                    Outcome::Lost => self.writer.lost(now.mono),
                    Outcome::Abstained => self.writer.abstained(now.mono),
                    Outcome::Failed => self.writer.arbitration_failed(now.mono),
                    Outcome::CrdMissing(term) => {
                        self.lessor_crd_missing = true;
                        // There is nobody to say it to.
                        self.shared_pause.iter_mut().for_each(|held| held.said(now.paused_unwritable));
                        self.wrote(sent_at);
                        self.writer.proved(term, sent_at);
                    }
                }
            }
        }
    }

    pub(super) fn arbitration_answered(&mut self, flight: &Flight, answer: &Response, now: &Now) {
        match answer {
            Response::Lessor(lessor) => self.see_lessor(lessor, now),
            Response::Gone | Response::Deleted => self.election.see_none(),
            Response::Refused(refusal) => self.tell_refused(refusal),
            Response::Lease(_) | Response::Source(_) | Response::Object(_) => {}
        }
        let next = self.election.answered(answer, &flight.request, &self.statement(now));
        self.arbitrate_since(next, flight.sent_at, now);
    }

    /// What this replica would write into the `Lessor`.
    pub(super) fn statement(&self, now: &Now) -> Statement {
        let held = self.shared_pause.as_ref().map_or(Duration::ZERO, |held| held.sum(now));
        Statement { at: now.wall, leases: self.leases.len(), held }
    }

    /// A right that is missing keeps a replica from leading, and perhaps all of them: it is told, but not at each try.
    fn tell_refused(&mut self, refusal: &RequestError) {
        if let RequestError::Forbidden(_) | RequestError::Invalid(_) = refusal
            && self.lessor_refusal.as_ref() != Some(refusal)
        {
            self.lessor_refusal = Some(refusal.clone());
            let note = format!("{} can't lead: {refusal}", self.settings.identity);
            self.out.user_events.push(UserEvent::warning(About::Lessor, "WriteRefused", note));
        }
    }

    /// A follower has looked afresh at what seemed overdue.
    pub(super) fn check_answered(&mut self, work: &Work, flight: &Flight, answer: Response, now: &Now) {
        match (work, answer) {
            (_, Response::Refused(refusal)) => {
                self.tell_refused(&refusal);
                if let Work::Object(id) = work {
                    self.postpone_removals(&id.kind, now);
                }
                let failed = self.election.abandon();
                self.arbitrate_since(ElectionStep::Decided(failed), flight.sent_at, now);
                return;
            }
            (_, Response::Lease(lease)) => self.see_lease(&lease, now),
            (_, answer @ (Response::Source(_) | Response::Gone))
                if matches!(flight.request, Request::ReadSource { .. }) =>
            {
                self.source_checked(flight, answer, now);
            }
            (Work::Object(id), Response::Object(meta)) => self.see_object(id, &meta, now),
            (Work::Lease(uid), _) => self.lose_lease(*uid, ResourceVersion::MAX, now),
            (Work::Object(id), _) => self.lose_object(id, None, now),
        }
        if let Some(request) = self.also_checked(work, flight, now) {
            self.send(Cause::Check(work.clone()), request, now.mono + self.settings.lease_duration, now);
            return;
        }
        let undone = match work {
            Work::Lease(uid) => matches!(self.step(*uid, now), Some(NextStep::Send(_))),
            Work::Object(id) => self.removal(id).is_some(),
        };
        let next = self.election.checked(undone, &self.statement(now));
        self.arbitrate_since(next, flight.sent_at, now);
    }

    /// Tells the lessor in memory whether it is primary, after anything that may have changed that.
    pub(super) fn follow_role(&mut self, now: &Now) {
        let leads = self.writer.leading_term();
        if leads == self.leading {
            return;
        }
        let before = std::mem::replace(&mut self.leading, leads);
        if before.is_some() {
            self.cancel_flights(now);
            self.leases.demote();
            self.unrefreshed = Timers::default();
            self.out.metric_events.push(MetricEvent::Demoted);
        }
        match leads {
            Some(term) => {
                self.leases.promote();
                let note = format!("{} is primary under term {term}", self.settings.identity);
                self.out.user_events.push(UserEvent::normal(About::Lessor, "Promoted", note));
                self.out.metric_events.push(MetricEvent::Promoted);
            }
            None => tracing::info!(term = before, "demoted"),
        }
        // A follower too has to know what is to be done, lest the next primary dies before it is done.
        self.touch_objects(now);
        self.enqueue_leases(now);
    }

    /// Looks at all objects, in one order.
    fn touch_objects(&mut self, now: &Now) {
        let mut objects: Vec<ObjectId> = self.objects.iter().map(|(id, _)| id.clone()).collect();
        objects.sort_unstable();
        for id in &objects {
            self.report_problems(id);
            self.enqueue_object(id, now);
        }
    }

    /// Looks at all leases, in one order.
    pub(super) fn enqueue_leases(&mut self, now: &Now) {
        let mut leases: Vec<Uuid> = self.leases.iter().map(|(uid, _)| *uid).collect();
        leases.sort_unstable();
        for uid in leases {
            self.enqueue_lease(uid, now);
        }
    }

    /// Gives up all work under way: it was begun under a term that is over.
    pub(super) fn cancel_flights(&mut self, now: &Now) {
        let in_flight = std::mem::take(&mut self.in_flight);
        for (ticket, flight) in in_flight {
            let work = match &flight.cause {
                Cause::Election | Cause::Check(_) | Cause::Probe | Cause::Kinds | Cause::Look => {
                    self.in_flight.insert(ticket, flight);
                    continue;
                }
                Cause::Lease(uid, _) => {
                    if let Some(entry) = self.leases.get_mut(uid) {
                        entry.in_flight = false;
                        entry.stale = true;
                    }
                    Work::Lease(*uid)
                }
                Cause::Object(id, ..) => {
                    if let Some(object) = self.objects.get_mut(id) {
                        object.stale = true;
                    }
                    Work::Object(id.clone())
                }
            };
            self.out.cancelled.push(ticket);
            self.writer.done(&work, WorkResult::None, false, now.mono, now.mono);
        }
    }

    /// Stops in order: finishes what is under way (until `by` at the latest), then leaves the lead to others.
    pub fn stop(&mut self, by: Duration) {
        self.stopping = Some(by);
    }

    /// Whether a stop is complete.
    pub fn has_stopped(&self) -> bool {
        self.stopping.is_some() && self.leading.is_none() && self.in_flight.is_empty()
    }

    pub(super) fn wind_up(&mut self, by: Duration, now: &Now) {
        if self.leading.is_none() || (!self.in_flight.is_empty() && now.mono < by) {
            return;
        }
        self.writer.resign(now.mono);
        self.follow_role(now);
        if let Some(Action::Resign { .. }) = self.writer.poll(now.mono)
            && let Some(request) = self.election.resign(&self.statement(now))
        {
            self.arbitrate(ElectionStep::Send(request), now);
        }
    }
}
