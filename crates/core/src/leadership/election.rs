//! The election: replicas compete for the `Lessor` object. A claim, a proof and a release are each a compare-and-swap of its
//! status.
//!
//! The [writer lease](writer_lease) decides when; this module decides how.
//!
//! # Terms
//!
//! No two claims may ever get the same term, whatever happens to the `Lessor` between them: a user may delete it, and the
//! replica that recreates it may know no term. Therefore **the first claim of a `Lessor` takes the object's own
//! resourceVersion as its term** (or one more than the highest term observed, if that is higher). Each later claim takes one
//! more than the highest observed. The API server gives each write a higher version than all earlier writes, so
//!
//! 1. no term is above the version of the write that claimed it: the first isn't, since a write comes after the version
//!    that it names; one more than an observed term isn't, since a write comes after what its writer has observed;
//! 2. a recreated `Lessor` has a version above every write of its predecessors, and so above all of their terms;
//! 3. of two claims of one version of one `Lessor` the API server accepts one.
//!
//! This requires that a term is written to a `Lessor` only by a claim of that very object. A primary whose `Lessor` was deleted
//! can't prove itself on a new one: it claims the new one, under a new term.

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use lessor_api::{Lessor, LessorStatus, time};
use serde_json::{Value, json};
use writer_lease::{Holder, Reason, Term};

use crate::{
    lease_object::{ResourceVersion, Unreadable, version_of},
    request::{Request, RequestError, Response},
    work::Work,
};

/// The `Lessor` as last observed.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Its uid, which changes when it is recreated.
    pub uid: Option<String>,
    /// Its version.
    pub version: ResourceVersion,
    /// Its status.
    pub status: LessorStatus,
    /// Since when it carries a challenge that the primary hasn't answered, on the replica's clock.
    pub challenged_at: Option<Duration>,
}

impl Known {
    /// Its term; 0 before the first claim.
    pub fn term(&self) -> Term {
        self.status.term.unwrap_or_default()
    }

    /// What only primaries write. Another value is a sign that one lives.
    fn sign(&self) -> Sign {
        let status =
            LessorStatus { challenged_by: None, challenge_time: None, overdue: None, ..self.status.clone() };
        Sign { uid: self.uid.clone(), status }
    }

    /// Whether a primary has answered a challenge: it lives, and no lease is due. A claim or a resignation is no answer.
    fn answers(&self, before: &Self) -> bool {
        let is_proof = self.status.primary == before.status.primary
            && self.status.term == before.status.term
            && self.status.proved_time != before.status.proved_time;
        is_proof && self.challenged_at.is_none() && self.status.overdue.is_none()
    }

    /// The lowest term that may be claimed on it: see [the module](self).
    fn next_term(&self) -> Term {
        match self.term() {
            0 => Term::try_from(self.version).unwrap_or_default(),
            term => term.saturating_add(1),
        }
    }
}

/// What a primary has written into the `Lessor`.
#[derive(Clone, Debug, PartialEq)]
struct Sign {
    uid: Option<String>,
    status: LessorStatus,
}

/// What a new version of the `Lessor` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Whom it names.
    pub holder: Holder,
    /// Its term.
    pub term: Term,
    /// Whether a primary has written it since the version before. Otherwise another replica has challenged the primary, or
    /// a user has changed the metadata.
    pub is_sign: bool,
    /// Its primary has answered the challenge that was written at this time: no lease was due then.
    pub answered: Option<Duration>,
}

/// What a write of the `Lessor` carries beside its writer.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    /// The time.
    pub at: Timestamp,
    /// How many leases exist.
    pub leases: usize,
    /// How many leases are due and have not ended. Counted only to answer a challenge.
    pub overdue: usize,
}

impl Statement {
    /// What a primary writes: an answer to any challenge.
    fn in_status(&self, known: &Known) -> LessorStatus {
        LessorStatus {
            leases: i64::try_from(self.leases).ok(),
            challenged_by: None,
            challenge_time: None,
            overdue: i64::try_from(self.overdue).ok().filter(|overdue| *overdue > 0),
            ..known.status.clone()
        }
    }
}

/// What comes next in an election.
#[derive(Clone, Debug, PartialEq)]
pub enum ElectionStep {
    /// Send this, and pass the response to [`Election::answered`].
    Send(Request),
    /// Read the object of this work, and pass to [`Election::checked`] whether the work is still undone.
    Check(Work),
    /// The election has ended.
    Decided(Outcome),
}

/// Whether work that seemed overdue is still undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// It is done, or isn't due.
    No,
    /// It is undone.
    Yes,
    /// By this replica's knowledge of time it is undone. The primary may know better: it has this long to answer.
    Ask {
        /// See above.
        patience: Duration,
    },
}

/// How an election ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This replica is still primary.
    Proved(Term),
    /// This replica has become primary.
    Claimed(Term),
    /// Another replica is primary.
    Lost,
    /// There was no reason to claim.
    Abstained,
    /// The primary has until this time to answer a challenge.
    Challenged(Duration),
    /// Unknown: try again.
    Failed,
    /// The kind `Lessor` isn't installed any more, so no other replica can be primary.
    CrdMissing(Term),
}

#[derive(Clone, Debug, PartialEq, Hash)]
enum Stage {
    Idle,
    Proving(Term),
    Claiming { term: Term, reason: Reason<Work> },
    Challenging,
    Resigning,
}

/// The elections of one replica, one at a time.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    /// The namespaces of this installation, as they are published.
    namespaces: Vec<String>,
    known: Option<Known>,
    stage: Stage,
    /// The term of the claim in flight.
    claiming: Term,
    /// What the primary had written when the wait for it ended.
    before: Option<Sign>,
    /// How long the primary has to answer.
    patience: Duration,
    /// The version at which a write of this election has met a conflict.
    conflict_at: Option<ResourceVersion>,
}

impl Election {
    /// Elections under this name.
    pub fn new(identity: impl Into<String>) -> Self {
        Self {
            identity: identity.into(),
            namespaces: Vec::new(),
            known: None,
            stage: Stage::Idle,
            claiming: 0,
            before: None,
            patience: Duration::ZERO,
            conflict_at: None,
        }
    }

    /// Publishes the namespaces of this installation with each claim.
    pub fn serving(self, namespaces: Vec<String>) -> Self {
        Self { namespaces, ..self }
    }

    /// The `Lessor` as last observed.
    pub fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    /// Whether an election is under way.
    pub fn is_busy(&self) -> bool {
        self.stage != Stage::Idle
    }

    /// Hashes everything that decides what comes next.
    pub(crate) fn hash_state(&self, state: &mut impl Hasher) {
        let known = self.known.as_ref();
        known
            .map(|known| (known.version, &known.status.primary, known.status.term, known.challenged_at))
            .hash(state);
        let before = self.before.as_ref().map(|before| (&before.status.primary, before.status.term));
        (&self.stage, self.claiming, before, self.before == self.known.as_ref().map(Known::sign)).hash(state);
        self.conflict_at.hash(state);
    }

    /// Applies a version of our `Lessor`. Returns what it shows, if the version is newer than the known one. `written_at`: no
    /// challenge in it is older, as far as this replica has observed none.
    ///
    /// # Errors
    /// [`Unreadable`] when the metadata lacks what every stored object has.
    pub fn observe(&mut self, lessor: &Lessor, written_at: Duration) -> Result<Option<Sighting>, Unreadable> {
        let version = version_of(lessor.metadata.resource_version.as_deref())?;
        if self.known.as_ref().is_some_and(|known| known.version >= version) {
            return Ok(None);
        }
        let status = lessor.status.clone().unwrap_or_default();
        let before = self.known.take();
        let same = before.as_ref().filter(|before| before.status.challenge_time == status.challenge_time);
        let challenged_at = status
            .challenge_time
            .as_ref()
            .map(|_| same.and_then(|before| before.challenged_at).unwrap_or(written_at));
        let known = Known { uid: lessor.metadata.uid.clone(), version, status, challenged_at };
        let sighting = Sighting {
            holder: self.holder(&known),
            term: known.term(),
            is_sign: before.as_ref().is_none_or(|before| before.sign() != known.sign()),
            answered: before.filter(|before| known.answers(before)).and_then(|before| before.challenged_at),
        };
        self.known = Some(known);
        Ok(Some(sighting))
    }

    /// Notes that our `Lessor` doesn't exist.
    pub fn observe_none(&mut self) {
        self.known = None;
    }

    fn holder(&self, known: &Known) -> Holder {
        match known.status.primary.as_deref() {
            None | Some("") => Holder::Nobody,
            Some(name) if name == self.identity => Holder::Me,
            Some(_) => Holder::Other,
        }
    }

    /// Begins a proof that this replica is primary under `term`. If the `Lessor` was deleted since, this becomes a claim of a
    /// new one.
    pub fn prove(&mut self, term: Term, statement: &Statement) -> ElectionStep {
        self.stage = Stage::Proving(term);
        self.conflict_at = None;
        self.write_proof(term, statement)
    }

    /// Begins a claim.
    pub fn claim(&mut self, term: Term, reason: Reason<Work>) -> ElectionStep {
        self.before = self.known.as_ref().map(Known::sign);
        self.stage = Stage::Claiming { term, reason };
        self.conflict_at = None;
        ElectionStep::Send(Request::ReadLessor)
    }

    /// The request that asks the primary whether it lives; `None` if it was asked already, or there is none.
    pub fn challenge(&self, statement: &Statement) -> Option<Request> {
        let known = self.known.as_ref().filter(|known| self.holder(known) == Holder::Other)?;
        let status = LessorStatus {
            challenged_by: Some(self.identity.clone()),
            challenge_time: Some(time::micro(statement.at)),
            ..known.status.clone()
        };
        let status = patch(&status, known.status.primary.as_deref());
        let is_new = known.challenged_at.is_none();
        is_new.then_some(Request::WriteLessor { version: known.version, status })
    }

    /// Begins the release; `None` if this replica doesn't hold the `Lessor`.
    pub fn resign(&mut self, statement: &Statement) -> Option<Request> {
        let known = self.known.as_ref().filter(|known| self.holder(known) == Holder::Me)?;
        self.stage = Stage::Resigning;
        let status = statement.in_status(known);
        Some(Request::WriteLessor { version: known.version, status: patch(&status, None) })
    }

    /// Continues with the response to the last request. The `Lessor` in it must have been [observed](Self::observe) before.
    pub fn answered(&mut self, answer: &Response, was: &Request, statement: &Statement) -> ElectionStep {
        let is_write = matches!(was, Request::WriteLessor { .. });
        match (answer, self.stage.clone()) {
            (_, Stage::Idle) => ElectionStep::Decided(Outcome::Failed),
            (_, Stage::Resigning) => self.decide(Outcome::Lost),
            (Response::Lessor(_), Stage::Proving(term)) if is_write => self.decide(Outcome::Proved(term)),
            (Response::Lessor(_), Stage::Claiming { .. }) if is_write => {
                self.decide(Outcome::Claimed(self.claiming))
            }
            (Response::Lessor(_), Stage::Challenging) => self.await_answer(),
            (Response::Lessor(_), Stage::Proving(term)) => self.write_proof(term, statement),
            (Response::Lessor(_), Stage::Claiming { reason, .. }) => self.read_for_claim(reason, statement),
            (_, Stage::Challenging) => self.decide(Outcome::Failed),
            (Response::Gone | Response::Deleted, _) => {
                self.known = None;
                ElectionStep::Send(Request::CreateLessor)
            }
            // Another write came first, perhaps of this replica: read it.
            (Response::Refused(RequestError::Conflict | RequestError::LowerTerm), _) => {
                self.conflict_at = was.version();
                ElectionStep::Send(Request::ReadLessor)
            }
            (Response::Refused(RequestError::NoSuchKind), Stage::Proving(term)) => {
                self.decide(Outcome::CrdMissing(term))
            }
            _ => self.decide(Outcome::Failed),
        }
    }

    /// Continues after an [`ElectionStep::Check`].
    pub fn checked(&mut self, still: Undone, statement: &Statement, now: Duration) -> ElectionStep {
        if still == Undone::No {
            return self.decide(Outcome::Abstained);
        }
        // Another replica has taken over meanwhile. A claim of the version that it wrote would depose it.
        if let Some(known) = &self.known
            && self.before != Some(known.sign())
            && self.holder(known) != Holder::Nobody
        {
            return self.decide(Outcome::Lost);
        }
        let Undone::Ask { patience } = still else { return self.write_claim(statement) };
        if let Some(challenge) = self.challenge(statement) {
            self.patience = patience;
            self.stage = Stage::Challenging;
            return ElectionStep::Send(challenge);
        }
        match self.known.as_ref().and_then(|known| known.challenged_at) {
            Some(at) if at.saturating_add(patience) > now => {
                self.decide(Outcome::Challenged(at.saturating_add(patience)))
            }
            _ => self.write_claim(statement),
        }
    }

    fn await_answer(&mut self) -> ElectionStep {
        let challenged_at = self.known.as_ref().and_then(|known| known.challenged_at);
        let until = challenged_at.map(|at| at.saturating_add(self.patience));
        self.decide(until.map_or(Outcome::Lost, Outcome::Challenged))
    }

    /// Gives up the election under way.
    pub fn abandon(&mut self) -> Outcome {
        self.stage = Stage::Idle;
        Outcome::Failed
    }

    fn read_for_claim(&mut self, reason: Reason<Work>, statement: &Statement) -> ElectionStep {
        let Some(known) = &self.known else { return ElectionStep::Send(Request::ReadLessor) };
        let named = self.holder(known);
        match reason {
            _ if named == Holder::Nobody => self.write_claim(statement),
            Reason::Empty if named == Holder::Me => self.write_claim(statement),
            Reason::Empty => self.decide(Outcome::Lost),
            // The incumbent has written it since the wait ended.
            Reason::Overdue(_) | Reason::Unanswered if self.before != Some(known.sign()) => {
                self.decide(Outcome::Lost)
            }
            Reason::Unanswered if known.challenged_at.is_none() => self.decide(Outcome::Lost),
            Reason::Unanswered => self.write_claim(statement),
            Reason::Overdue(work) => ElectionStep::Check(work),
        }
    }

    fn write_claim(&mut self, statement: &Statement) -> ElectionStep {
        let (Some(known), Stage::Claiming { term, .. }) = (&self.known, &self.stage) else {
            return ElectionStep::Send(Request::ReadLessor);
        };
        if self.is_unchanged(known) {
            return self.decide(Outcome::Failed);
        }
        self.claiming = (*term).max(known.next_term());
        let status = LessorStatus {
            term: Some(self.claiming),
            acquire_time: Some(time::micro(statement.at)),
            proved_time: None,
            transitions: Some(known.status.transitions.unwrap_or_default().saturating_add(1)),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            namespaces: self.namespaces.clone(),
            ..statement.in_status(known)
        };
        ElectionStep::Send(Request::WriteLessor {
            version: known.version,
            status: patch(&status, Some(&self.identity)),
        })
    }

    fn write_proof(&mut self, term: Term, statement: &Statement) -> ElectionStep {
        let Some(known) = &self.known else { return ElectionStep::Send(Request::ReadLessor) };
        if self.holder(known) == Holder::Other || known.term() > term {
            return self.decide(Outcome::Lost);
        }
        if known.term() < term {
            self.before = Some(known.sign());
            self.stage = Stage::Claiming { term: term.saturating_add(1), reason: Reason::Empty };
            return self.write_claim(statement);
        }
        if self.is_unchanged(known) {
            return self.decide(Outcome::Failed);
        }
        let status = LessorStatus {
            term: Some(term),
            proved_time: Some(time::micro(statement.at)),
            namespaces: self.namespaces.clone(),
            ..statement.in_status(known)
        };
        ElectionStep::Send(Request::WriteLessor {
            version: known.version,
            status: patch(&status, Some(&self.identity)),
        })
    }

    /// Whether a write of this version has met a conflict already. It would again: something else is wrong.
    fn is_unchanged(&self, known: &Known) -> bool {
        self.conflict_at == Some(known.version)
    }

    fn decide(&mut self, outcome: Outcome) -> ElectionStep {
        self.stage = Stage::Idle;
        ElectionStep::Decided(outcome)
    }
}

/// A merge patch of the status. A field that is absent is removed.
fn patch(status: &LessorStatus, primary: Option<&str>) -> Value {
    json!({
        "primary": primary,
        "term": status.term,
        "acquireTime": status.acquire_time,
        "provedTime": status.proved_time,
        "transitions": status.transitions,
        "challengedBy": status.challenged_by,
        "challengeTime": status.challenge_time,
        "overdue": status.overdue,
        "leases": status.leases,
        "version": status.version,
        "namespaces": status.namespaces,
    })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const STATEMENT: Statement = Statement { at: Timestamp::UNIX_EPOCH, leases: 0, overdue: 0 };

    fn lessor(version: u64, primary: &str, term: Term) -> Lessor {
        serde_json::from_value(json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lessor",
            "metadata": {"name": "default", "resourceVersion": version.to_string()},
            "status": {"primary": primary, "term": term},
        }))
        .expect("a lessor")
    }

    fn answered(election: &mut Election, answer: Lessor, was: &Request) -> ElectionStep {
        election.observe(&answer, Duration::ZERO).expect("readable");
        election.answered(&Response::Lessor(Box::new(answer)), was, &STATEMENT)
    }

    /// A claim for overdue work that has read the `Lessor` and now looks at the work.
    fn checking() -> Election {
        let mut election = Election::new("me");
        election.observe(&lessor(7, "other", 1), Duration::ZERO).expect("readable");
        let work = Work::Lease(Uuid::nil());
        let ElectionStep::Send(read) = election.claim(2, Reason::Overdue(work.clone())) else {
            panic!("no request")
        };
        assert_eq!(answered(&mut election, lessor(7, "other", 1), &read), ElectionStep::Check(work));
        election
    }

    /// A `Lessor` without a status.
    fn fresh(version: u64) -> Lessor {
        Lessor { status: None, ..lessor(version, "", 0) }
    }

    /// The version that is written next, and the term that it gets.
    fn claimed(next: &ElectionStep) -> (ResourceVersion, Term) {
        match next {
            ElectionStep::Send(Request::WriteLessor { version, status }) if status["primary"] == "me" => {
                (*version, status["term"].as_i64().expect("a term"))
            }
            next => panic!("no claim: {next:?}"),
        }
    }

    #[test]
    fn the_first_claim_takes_the_version_of_the_lessor_for_its_term_and_later_ones_one_more_than_the_last() {
        let claim = |lessor: Lessor, term| {
            let mut election = Election::new("me");
            let ElectionStep::Send(read) = election.claim(term, Reason::Empty) else { panic!("no request") };
            claimed(&answered(&mut election, lessor, &read))
        };
        assert_eq!(claim(fresh(40), 1), (40, 40));
        assert_eq!(claim(lessor(40, "", 7), 1), (40, 8));
        // What a lease carries may not be repeated either.
        assert_eq!(claim(fresh(40), 90), (40, 90));
        assert_eq!(claim(lessor(40, "", 7), 90), (40, 90));
    }

    /// The incumbent, a replica that starts just then, and a `Lessor` that is deleted again and again, before any
    /// lease carries a term.
    #[test]
    fn no_term_is_claimed_twice_however_often_the_lessor_is_deleted() {
        let mut version = 10;
        let mut terms = Vec::new();
        let mut incumbent = Election::new("me");
        let mut led = 0;
        for _ in 0..3 {
            // The incumbent makes it anew.
            version += 1;
            let proof =
                if led == 0 { incumbent.claim(1, Reason::Empty) } else { incumbent.prove(led, &STATEMENT) };
            let ElectionStep::Send(read) = proof else { panic!("no request: {proof:?}") };
            incumbent.observe_none();
            assert_eq!(
                incumbent.answered(&Response::Gone, &read, &STATEMENT),
                ElectionStep::Send(Request::CreateLessor)
            );
            let claim = answered(&mut incumbent, fresh(version), &Request::CreateLessor);
            let (at, term) = claimed(&claim);
            assert_eq!(at, version);
            version += 1;
            let ElectionStep::Send(write) = claim else { panic!("no request") };
            let won = answered(&mut incumbent, lessor(version, "me", term), &write);
            assert_eq!(won, ElectionStep::Decided(Outcome::Claimed(term)));
            led = term;
            terms.push(term);
            // It is deleted, and a replica that has just started is faster. It has observed no term.
            version += 1;
            let mut started = Election::new("me");
            let ElectionStep::Send(_) = started.claim(1, Reason::Empty) else { panic!("no request") };
            terms.push(claimed(&answered(&mut started, fresh(version), &Request::CreateLessor)).1);
            // It's deleted again before the incumbent knows.
            version += 1;
        }
        assert!(terms.is_sorted_by(|earlier, later| earlier < later), "{terms:?}");
    }

    #[test]
    fn a_claim_is_bound_to_the_version_that_was_overdue() {
        let ElectionStep::Send(Request::WriteLessor { version, .. }) =
            checking().checked(Undone::Yes, &STATEMENT, Duration::ZERO)
        else {
            panic!("no claim")
        };
        assert_eq!(version, 7);
    }

    #[test]
    fn a_takeover_seen_while_the_work_is_looked_at_is_not_taken_over() {
        let mut election = checking();
        election.observe(&lessor(8, "third", 2), Duration::ZERO).expect("readable");
        assert_eq!(
            election.checked(Undone::Yes, &STATEMENT, Duration::ZERO),
            ElectionStep::Decided(Outcome::Lost)
        );
    }

    #[test]
    fn a_release_seen_while_the_work_is_looked_at_is_claimed() {
        let mut election = checking();
        election.observe(&lessor(8, "", 1), Duration::ZERO).expect("readable");
        let next = election.checked(Undone::Yes, &STATEMENT, Duration::ZERO);
        assert!(matches!(next, ElectionStep::Send(Request::WriteLessor { version: 8, .. })), "{next:?}");
    }

    #[test]
    fn a_conflict_though_the_lessor_has_not_changed_ends_the_election() {
        let mut election = checking();
        let ElectionStep::Send(write) = election.checked(Undone::Yes, &STATEMENT, Duration::ZERO) else {
            panic!("no claim")
        };
        let conflict = Response::Refused(RequestError::Conflict);
        let next = election.answered(&conflict, &write, &STATEMENT);
        assert_eq!(next, ElectionStep::Send(Request::ReadLessor));
        assert_eq!(
            election.checked(Undone::Yes, &STATEMENT, Duration::ZERO),
            ElectionStep::Decided(Outcome::Failed)
        );
        // The next one tries again.
        let mut election = Election::new("me");
        election.observe(&lessor(7, "me", 1), Duration::ZERO).expect("readable");
        let ElectionStep::Send(write) = election.prove(1, &STATEMENT) else { panic!("no proof") };
        election.answered(&conflict, &write, &STATEMENT);
        let failed = answered(&mut election, lessor(7, "me", 1), &Request::ReadLessor);
        assert_eq!(failed, ElectionStep::Decided(Outcome::Failed));
        assert!(matches!(election.prove(1, &STATEMENT), ElectionStep::Send(Request::WriteLessor { .. })));
    }
}
