//! Whether this replica leads, and which work it may do: the [writer lease](writer_lease) decides when to claim, prove and
//! resign, the [`election`] does so on the `Lessor` object.
//!
//! A replica queues the same [work](crate::work) whatever its role. The primary runs it; a follower holds it back, and takes
//! over when the primary doesn't do it.

pub mod election;

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

use lessor_api::Lessor;
use writer_lease::{Action, Holder, Lane, Term, WorkResult, WriterLease};

use self::election::{Election, ElectionStep, Known, Outcome, Statement, Undone};
use crate::{
    metadata::ResourceVersion,
    request::{Request, RequestError, Response},
    work::Work,
};

/// The role of a replica, and its queue of work.
#[derive(Clone, Debug)]
pub struct Leadership {
    writer: WriterLease<Work>,
    election: Election,
    /// The term of the role that the rest of the replica acts by. It changes by [`follow_role`](Self::follow_role) alone.
    term: Option<Term>,
    /// Since when it has that role.
    since: Duration,
    /// Why the API server doesn't let this replica compete, as users were notified.
    refusal: Option<RequestError>,
    /// The kind `Lessor` isn't installed: only what no other replica could finish is finished.
    lessor_crd_missing: bool,
    /// The term of the primary that led when this replica started, as far as it's known.
    first_term: Option<Term>,
    /// When to resign at the latest, on the way to a stop.
    stop_by: Option<Duration>,
}

/// What a replica is to do as its role demands.
#[derive(Clone, Debug)]
pub enum Task {
    /// Do this work under `term`. Its request must fail by `until`.
    Run {
        /// The work.
        work: Work,
        /// The term that its writes carry.
        term: Term,
        /// When the writer lease lapses.
        until: Duration,
    },
    /// Do this for the election.
    Elect(ElectionStep),
}

/// A change of role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleChange {
    /// The term that this replica led under, if it did.
    pub before: Option<Term>,
    /// The term that it leads under now, if it does.
    pub now: Option<Term>,
}

/// A new version of the `Lessor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LessorChange {
    /// Whether this replica holds it.
    pub is_own: bool,
    /// Whether the kind `Lessor` was missing before.
    pub reinstalled: bool,
    /// The primary has answered the challenge that was written at this time.
    pub answered: Option<Duration>,
    /// It was written by the primary that led when this replica started, since then.
    pub by_first: bool,
}

impl Leadership {
    /// A replica that has observed nothing yet, under this name, of an installation that serves these namespaces.
    pub fn new(identity: &str, namespaces: Vec<String>, config: writer_lease::Config) -> Self {
        Self {
            writer: WriterLease::new(config),
            election: Election::new(identity).serving(namespaces),
            term: None,
            since: Duration::ZERO,
            refusal: None,
            lessor_crd_missing: false,
            first_term: None,
            stop_by: None,
        }
    }

    // --- The role ------------------------------------------------------------------------------------------------

    /// The term that this replica leads under, if it does.
    pub fn term(&self) -> Option<Term> {
        self.term
    }

    /// Whether this replica is primary.
    pub fn is_primary(&self) -> bool {
        self.term.is_some()
    }

    /// The highest term observed.
    pub fn highest_term(&self) -> Term {
        self.writer.highest_term()
    }

    /// Whether no primary can have written under this term.
    pub fn is_absurd(&self, term: Term) -> bool {
        self.writer.is_absurd(term)
    }

    /// Whether the kind `Lessor` isn't installed.
    pub fn lessor_crd_missing(&self) -> bool {
        self.lessor_crd_missing
    }

    /// When a write of the primary was last observed, or this replica was last disconnected; zero on the primary.
    pub fn last_followed(&self) -> Duration {
        self.writer.last_followed()
    }

    /// Adopts the role that the writer lease has by now. Returns the change, if there is one.
    pub fn follow_role(&mut self, now: Duration) -> Option<RoleChange> {
        let term = self.writer.leading_term();
        let before = std::mem::replace(&mut self.term, term);
        if before == term {
            return None;
        }
        self.since = now;
        Some(RoleChange { before, now: term })
    }

    /// Since when this replica has its role.
    pub fn since(&self) -> Duration {
        self.since
    }

    // --- Work ----------------------------------------------------------------------------------------------------

    /// How much work is queued or in flight.
    pub fn queued(&self) -> usize {
        self.writer.len()
    }

    /// Queues work that is due at this time, before or after now, in a lane of work that may get stuck together.
    pub fn queue(&mut self, lane: Lane, work: Work, due: Duration) {
        self.writer.try_work_in(lane, work, due);
    }

    /// The same, for work that failed before, and isn't tried again before `ready`.
    pub fn queue_later(&mut self, lane: Lane, work: Work, due: Duration, ready: Duration) {
        self.writer.try_work_later(lane, work, due, ready);
    }

    /// Begins no work of spare lanes before this time.
    pub fn spare_from(&mut self, from: Duration) {
        self.writer.spare_from(from);
    }

    /// Whether this work is in flight in a spare lane.
    pub fn runs_spare(&self, work: &Work) -> bool {
        self.writer.runs_spare(work)
    }

    /// Drops work. If it is in flight, it isn't retried.
    pub fn drop_work(&mut self, work: &Work) {
        self.writer.remove(work);
    }

    /// Whether this work is queued or in flight.
    pub fn has_work(&self, work: &Work) -> bool {
        self.writer.contains(work)
    }

    /// Whether this work is in flight.
    pub fn is_running(&self, work: &Work) -> bool {
        self.writer.is_running(work)
    }

    /// The request of this work was answered. `retry`: whether the work stays queued, after a backoff.
    pub fn finish(&mut self, work: &Work, result: WorkResult, retry: bool, sent_at: Duration, now: Duration) {
        self.writer.done(work, result, retry, sent_at, now);
    }

    /// Another client has done this work. Probably it was the primary, and it lives: a follower's wait starts anew. But once
    /// the primary is challenged, it has to answer, and what a user may have done is no sign of it.
    pub fn observe_done(&mut self, work: &Work, now: Duration) {
        if self.is_primary() {
            return;
        }
        if self.is_challenged() {
            self.writer.remove(work);
        } else {
            self.writer.extend(work, now);
        }
    }

    // --- When to act ---------------------------------------------------------------------------------------------

    /// When [`poll`](Self::poll) returns something if nothing happens before; `None`: never.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        self.writer.wake_at(now)
    }

    /// What is to be done now.
    pub fn poll(&mut self, statement: &Statement, now: Duration) -> Option<Task> {
        loop {
            return Some(match self.writer.poll(now)? {
                Action::Run { key, term, until, .. } => Task::Run { work: key, term, until },
                Action::Prove { term } => Task::Elect(self.election.prove(term, statement)),
                Action::Claim { term, reason } => Task::Elect(self.election.claim(term, reason)),
                Action::Resign { .. } => match self.election.resign(statement) {
                    Some(request) => Task::Elect(ElectionStep::Send(request)),
                    None => continue,
                },
            });
        }
    }

    /// Lets the primary prove itself soon, unless another write is accepted before.
    pub fn prove_soon(&mut self, now: Duration) {
        self.writer.show(now);
    }

    /// This replica was disconnected until now, for so long. It can't know what the primary did meanwhile.
    pub fn reconnected(&mut self, lost: Duration, now: Duration) {
        self.writer.reconnected(lost, now);
    }

    /// By how much later than others this replica claims a vacant `Lessor`, from now on.
    pub fn hesitate(&mut self, by: Duration) {
        self.writer.hesitate(by);
    }

    /// How long the primary has to answer a challenge before a replica claims the lead that knows only what was recorded of
    /// the time of leases (`recovered`), or that has observed it.
    pub fn patience(&self, recovered: bool) -> Duration {
        let head_start = self.writer.head_start();
        if recovered { head_start.saturating_mul(2) } else { head_start }
    }

    /// Whether the `Lessor` carries a challenge that the primary hasn't answered.
    pub fn is_challenged(&self) -> bool {
        self.election.known().is_some_and(|known| known.challenged_at.is_some())
    }

    /// The request that challenges the primary; `None` if it was challenged already, or there is none.
    pub fn challenge(&self, statement: &Statement) -> Option<Request> {
        if self.is_primary() || self.election.is_busy() { None } else { self.election.challenge(statement) }
    }

    /// Claims the lead when the primary has not answered a challenge for so long.
    pub fn await_answer(&mut self, patience: Duration) {
        let challenged_at = self.election.known().and_then(|known| known.challenged_at);
        self.writer.await_answer(challenged_at.map(|at| at.saturating_add(patience)));
    }

    // --- The `Lessor` and terms ----------------------------------------------------------------------------------

    /// The `Lessor` as last observed.
    pub fn lessor(&self) -> Option<&Known> {
        self.election.known()
    }

    /// Whether an election is under way.
    pub fn is_electing(&self) -> bool {
        self.election.is_busy()
    }

    /// Applies a version of the `Lessor`. Returns what changed, if the version is newer than the known one. `written_at`: a
    /// challenge in it is not older, unless it was observed before.
    pub fn observe_lessor(
        &mut self,
        lessor: &Lessor,
        written_at: Duration,
        now: Duration,
    ) -> Option<LessorChange> {
        match self.election.observe(lessor, written_at) {
            Ok(Some(sighting)) => {
                if sighting.is_sign {
                    self.writer.observe_claim(sighting.holder, sighting.term, now);
                }
                let is_first = self.first_term.is_none();
                let first_term = *self.first_term.get_or_insert(sighting.term);
                Some(LessorChange {
                    by_first: sighting.is_sign && !is_first && sighting.term == first_term && first_term > 0,
                    is_own: sighting.holder == Holder::Me,
                    reinstalled: std::mem::take(&mut self.lessor_crd_missing),
                    answered: sighting.answered,
                })
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(%error, "unreadable Lessor");
                None
            }
        }
    }

    /// The `Lessor` doesn't exist. Its primary recreates it, before other replicas find it vacant.
    pub fn observe_no_lessor(&mut self, statement: &Statement, now: Duration) -> Option<ElectionStep> {
        self.election.observe_none();
        match self.term {
            Some(term) if self.stop_by.is_none() => {
                (!self.election.is_busy()).then(|| self.election.prove(term, statement))
            }
            _ => {
                self.writer.observe_claim(Holder::Nobody, 0, now);
                None
            }
        }
    }

    /// A version of a lease carries this term; `is_new`: its status was written since the version before. Returns whether no
    /// primary can have written it.
    pub fn observe_term(
        &mut self,
        term: Term,
        version: ResourceVersion,
        is_new: bool,
        now: Duration,
    ) -> bool {
        // No term is above the version of the write that claimed it, see `election`.
        self.writer.allow_terms(Term::try_from(version).unwrap_or_default());
        let observation =
            if is_new { self.writer.observe(term, now) } else { self.writer.learn_term(term, now) };
        if observation == writer_lease::Observation::Demoted {
            // The `Lessor` shows by which replica. Perhaps by none: then this one has to claim a higher term before it can
            // write this lease.
            self.writer.expire();
        }
        observation == writer_lease::Observation::Absurd
    }

    // --- The election --------------------------------------------------------------------------------------------

    /// Continues with the response to an election's request.
    pub fn answered(
        &mut self,
        response: &Response,
        request: &Request,
        statement: &Statement,
    ) -> ElectionStep {
        if matches!(response, Response::Gone | Response::Deleted) {
            self.election.observe_none();
        }
        self.election.answered(response, request, statement)
    }

    /// Continues after a [`ElectionStep::Check`].
    pub fn checked(&mut self, still: Undone, statement: &Statement, now: Duration) -> ElectionStep {
        self.election.checked(still, statement, now)
    }

    /// What was to be checked can't be read, since the API server is busy.
    pub fn abandon(&mut self) -> Outcome {
        self.election.abandon()
    }

    /// What was to be checked can't be read, for a reason of its own: other work is checked before it.
    pub fn unreadable(&mut self, work: &Work, now: Duration) {
        self.election.abandon();
        self.writer.unchecked(work, now);
    }

    /// What was to be checked was read.
    pub fn readable(&mut self, work: &Work) {
        self.writer.checked(work);
    }

    /// How often what is to be checked could not be read, one time after the other.
    pub fn failed_checks(&self, work: &Work) -> u32 {
        self.writer.failed_checks(work)
    }

    /// Whether some work can't be checked.
    pub fn has_unreadable(&self) -> bool {
        self.writer.has_unchecked()
    }

    /// The election has ended, with a request that was sent at `sent_at`.
    pub fn decide(&mut self, outcome: Outcome, sent_at: Duration, now: Duration) {
        tracing::debug!(?outcome, "election");
        match outcome {
            Outcome::Proved(term) => self.writer.proved(term, sent_at),
            Outcome::Claimed(term) => self.writer.claimed(term, sent_at, now),
            Outcome::Lost => self.writer.lost(now),
            Outcome::Abstained => self.writer.abstained(now),
            Outcome::Challenged(until) => self.writer.challenged(until),
            Outcome::Failed => self.writer.arbitration_failed(now),
            Outcome::CrdMissing(term) => {
                self.lessor_crd_missing = true;
                self.writer.proved(term, sent_at);
            }
        }
        if let Outcome::Proved(_) | Outcome::Claimed(_) = outcome {
            self.refusal = None;
        }
    }

    /// A request of an election was refused. Returns whether users should be notified: a missing right keeps a replica from
    /// leading, perhaps all of them, but each refusal is reported once.
    pub fn refused(&mut self, error: &RequestError) -> bool {
        let lasting = matches!(error, RequestError::Forbidden(_) | RequestError::Invalid(_));
        let is_new = lasting && self.refusal.as_ref() != Some(error);
        if is_new {
            self.refusal = Some(error.clone());
        }
        is_new
    }

    // --- The stop ------------------------------------------------------------------------------------------------

    /// Begins no work any more, and resigns by this time.
    pub fn stop(&mut self, by: Duration) {
        self.stop_by = Some(by);
    }

    /// When to resign at the latest, if this replica stops.
    pub fn stop_by(&self) -> Option<Duration> {
        self.stop_by
    }

    /// Gives up the lead. The [role](Self::follow_role) has to follow, then the [release](Self::release).
    pub fn resign(&mut self, now: Duration) {
        self.writer.resign(now);
    }

    /// The request that clears the `Lessor` after a [resignation](Self::resign), so that another replica takes over at once.
    pub fn release(&mut self, statement: &Statement, now: Duration) -> Option<Request> {
        let Some(Action::Resign { .. }) = self.writer.poll(now) else { return None };
        self.election.resign(statement)
    }

    /// Hashes everything that decides what comes next.
    pub(crate) fn hash_state(&self, state: &mut impl Hasher) {
        self.writer.hash(state);
        self.election.hash_state(state);
        (self.term, self.lessor_crd_missing, self.first_term, self.stop_by).hash(state);
    }
}
