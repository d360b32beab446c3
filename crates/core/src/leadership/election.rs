//! The competition for the `Lessor` object: claim, proof and release, each a compare-and-swap of its status.
//!
//! When to try is the [writer lease](writer_lease)'s decision; this is how.
//!
//! # Terms
//!
//! No two claims may ever get the same term, whatever becomes of the `Lessor` between them: somebody may delete it, and
//! whoever makes it anew may know of no term at all. Therefore **the first claim of a `Lessor` takes the object's own
//! resourceVersion for its term** (or one more than the highest term seen, if that's higher); each later claim takes one
//! more than the highest seen. The API server gives each write a version above all earlier ones, so
//!
//! 1. no term is above the version of the write that claimed it: the first isn't, since a write comes after the version
//!    that it names; and one more than a term that was seen isn't, since a write comes after what its writer has seen;
//! 2. a `Lessor` made anew has a version above every write of its predecessors, and so above all of their terms;
//! 3. of two claims of one version of one `Lessor` the API server accepts one.
//!
//! It takes that a term gets onto a `Lessor` by a claim of that very object only. A primary whose `Lessor` was deleted
//! can't prove itself on a new one: it claims it, and goes on under a new term.

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

/// The `Lessor` as last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Which object it is: somebody may delete it, and another is made.
    pub uid: Option<String>,
    /// The version that this is.
    pub version: ResourceVersion,
    /// Its status.
    pub status: LessorStatus,
}

impl Known {
    /// Its term; 0 if it never had one.
    pub fn term(&self) -> Term {
        self.status.term.unwrap_or_default()
    }

    /// For how long altogether nothing could be written.
    pub fn held(&self) -> Duration {
        let held = self.status.paused_milliseconds.map(u64::try_from);
        held.and_then(Result::ok).map_or(Duration::ZERO, Duration::from_millis)
    }

    /// The lowest term that may be claimed on it: see [the module](self).
    fn next_term(&self) -> Term {
        match self.term() {
            0 => Term::try_from(self.version).unwrap_or_default(),
            term => term.saturating_add(1),
        }
    }
}

/// What a write of the `Lessor` says beside who writes it.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    /// The time.
    pub at: Timestamp,
    /// How many leases there are.
    pub leases: usize,
    /// For how long altogether nothing could be written.
    pub held: Duration,
}

impl Statement {
    fn in_status(&self, known: &Known) -> LessorStatus {
        let held = self.held.max(known.held());
        LessorStatus {
            leases: i64::try_from(self.leases).ok(),
            // Most have never held anything.
            paused_milliseconds: i64::try_from(held.as_millis()).ok().filter(|held| *held > 0),
            ..known.status.clone()
        }
    }
}

/// What is to be done next in an arbitration.
#[derive(Clone, Debug, PartialEq)]
pub enum ElectionStep {
    /// Send this, and come back with the answer.
    Send(Request),
    /// Look at this work afresh, and come back with whether it is still undone.
    Check(Work),
    /// It is decided.
    Decided(Outcome),
}

/// How an arbitration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This replica is primary still.
    Proved(Term),
    /// This replica is primary now.
    Claimed(Term),
    /// Another replica is primary.
    Lost,
    /// There was no reason to claim.
    Abstained,
    /// Nobody knows; to be tried again.
    Failed,
    /// There is no kind `Lessor` any more, so nobody can be primary in our place.
    CrdMissing(Term),
}

#[derive(Clone, Debug, PartialEq, Hash)]
enum Stage {
    Idle,
    Proving(Term),
    /// `before`: the version that was known when the wait for the primary ended.
    Claiming {
        term: Term,
        reason: Reason<Work>,
        before: Option<ResourceVersion>,
    },
    Resigning,
}

/// The arbitration of one replica: one at a time.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    known: Option<Known>,
    stage: Stage,
    /// The term of a claim that was sent and not yet answered.
    claiming: Term,
}

impl Election {
    /// Competes under this name.
    pub fn new(identity: impl Into<String>) -> Self {
        Self { identity: identity.into(), known: None, stage: Stage::Idle, claiming: 0 }
    }

    /// The `Lessor` as last seen.
    pub fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    /// Whether a request of an arbitration is under way.
    pub fn is_busy(&self) -> bool {
        self.stage != Stage::Idle
    }

    /// Feeds all that decides what is next.
    pub(crate) fn hash_state(&self, state: &mut impl Hasher) {
        let known = self.known.as_ref();
        known
            .map(|known| {
                (known.version, &known.status.primary, known.status.term, known.status.paused_milliseconds)
            })
            .hash(state);
        (&self.stage, self.claiming).hash(state);
    }

    /// Takes in a version of our `Lessor`. Answers with whom it names, if it is news.
    ///
    /// # Errors
    /// [`Unreadable`] when the metadata lacks what every stored object has.
    pub fn see(&mut self, lessor: &Lessor) -> Result<Option<(Holder, Term)>, Unreadable> {
        let version = version_of(lessor.metadata.resource_version.as_deref())?;
        if self.known.as_ref().is_some_and(|known| known.version >= version) {
            return Ok(None);
        }
        let status = lessor.status.clone().unwrap_or_default();
        let known = Known { uid: lessor.metadata.uid.clone(), version, status };
        let news = (self.holder(&known), known.term());
        self.known = Some(known);
        Ok(Some(news))
    }

    /// Takes in that there is no such `Lessor`.
    pub fn see_none(&mut self) {
        self.known = None;
    }

    fn holder(&self, known: &Known) -> Holder {
        match known.status.primary.as_deref() {
            None | Some("") => Holder::Nobody,
            Some(name) if name == self.identity => Holder::Me,
            Some(_) => Holder::Other,
        }
    }

    /// Begins a proof that this replica is primary under `term`. If the `Lessor` has been deleted since, it becomes a
    /// claim of a new one.
    pub fn prove(&mut self, term: Term, said: &Statement) -> ElectionStep {
        self.stage = Stage::Proving(term);
        self.write_proof(term, said)
    }

    /// Begins a claim.
    pub fn claim(&mut self, term: Term, reason: Reason<Work>) -> ElectionStep {
        let before = self.known.as_ref().map(|known| known.version);
        self.stage = Stage::Claiming { term, reason, before };
        ElectionStep::Send(Request::ReadLessor)
    }

    /// Begins the release; `None` if there is nothing to release.
    pub fn resign(&mut self, said: &Statement) -> Option<Request> {
        let known = self.known.as_ref().filter(|known| self.holder(known) == Holder::Me)?;
        self.stage = Stage::Resigning;
        let status = said.in_status(known);
        Some(Request::WriteLessor { version: known.version, status: patch(&status, None) })
    }

    /// Goes on with the answer to what was sent last. What it shows must have been [seen](Self::see) before.
    pub fn answered(&mut self, answer: &Response, was: &Request, said: &Statement) -> ElectionStep {
        let wrote = matches!(was, Request::WriteLessor { .. });
        match (answer, self.stage.clone()) {
            (_, Stage::Idle) => ElectionStep::Decided(Outcome::Failed),
            (_, Stage::Resigning) => self.decide(Outcome::Lost),
            (Response::Lessor(_), Stage::Proving(term)) if wrote => self.decide(Outcome::Proved(term)),
            (Response::Lessor(_), Stage::Claiming { .. }) if wrote => {
                self.decide(Outcome::Claimed(self.claiming))
            }
            (Response::Lessor(_), Stage::Proving(term)) => self.write_proof(term, said),
            (Response::Lessor(_), Stage::Claiming { reason, before, .. }) => {
                self.read_for_claim(reason, before, said)
            }
            (Response::Gone | Response::Deleted, _) => {
                self.known = None;
                ElectionStep::Send(Request::CreateLessor)
            }
            // Somebody wrote it meanwhile, perhaps an earlier self: look who.
            (Response::Refused(RequestError::Conflict | RequestError::LowerTerm), _) => {
                ElectionStep::Send(Request::ReadLessor)
            }
            (Response::Refused(RequestError::NoSuchKind), Stage::Proving(term)) => {
                self.decide(Outcome::CrdMissing(term))
            }
            _ => self.decide(Outcome::Failed),
        }
    }

    /// Goes on after a [`ElectionStep::Check`].
    pub fn checked(&mut self, still_undone: bool, said: &Statement) -> ElectionStep {
        if !still_undone {
            return self.decide(Outcome::Abstained);
        }
        // Somebody was faster while this replica looked: a claim of the version that this one made would depose whoever has
        // just taken over.
        if let (Stage::Claiming { before, .. }, Some(known)) = (&self.stage, &self.known)
            && *before != Some(known.version)
            && self.holder(known) != Holder::Nobody
        {
            return self.decide(Outcome::Lost);
        }
        self.write_claim(said)
    }

    /// Gives up whatever is under way.
    pub fn abandon(&mut self) -> Outcome {
        self.stage = Stage::Idle;
        Outcome::Failed
    }

    fn read_for_claim(
        &mut self,
        reason: Reason<Work>,
        before: Option<ResourceVersion>,
        said: &Statement,
    ) -> ElectionStep {
        let Some(known) = &self.known else { return ElectionStep::Send(Request::ReadLessor) };
        let named = self.holder(known);
        match reason {
            _ if named == Holder::Nobody => self.write_claim(said),
            Reason::Empty if named == Holder::Me => self.write_claim(said),
            Reason::Empty => self.decide(Outcome::Lost),
            // The incumbent has given a sign of life since the wait for it ended.
            Reason::Overdue(_) if before != Some(known.version) => self.decide(Outcome::Lost),
            Reason::Overdue(work) => ElectionStep::Check(work),
        }
    }

    fn write_claim(&mut self, said: &Statement) -> ElectionStep {
        let (Some(known), Stage::Claiming { term, .. }) = (&self.known, &self.stage) else {
            return ElectionStep::Send(Request::ReadLessor);
        };
        self.claiming = (*term).max(known.next_term());
        let status = LessorStatus {
            term: Some(self.claiming),
            acquire_time: Some(time::micro(said.at)),
            proved_time: None,
            transitions: Some(known.status.transitions.unwrap_or_default().saturating_add(1)),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            ..said.in_status(known)
        };
        ElectionStep::Send(Request::WriteLessor {
            version: known.version,
            status: patch(&status, Some(&self.identity)),
        })
    }

    fn write_proof(&mut self, term: Term, said: &Statement) -> ElectionStep {
        let Some(known) = &self.known else { return ElectionStep::Send(Request::ReadLessor) };
        if self.holder(known) == Holder::Other || known.term() > term {
            return self.decide(Outcome::Lost);
        }
        if known.term() < term {
            let before = Some(known.version);
            self.stage = Stage::Claiming { term: term.saturating_add(1), reason: Reason::Empty, before };
            return self.write_claim(said);
        }
        let status = LessorStatus {
            term: Some(term),
            proved_time: Some(time::micro(said.at)),
            ..said.in_status(known)
        };
        ElectionStep::Send(Request::WriteLessor {
            version: known.version,
            status: patch(&status, Some(&self.identity)),
        })
    }

    fn decide(&mut self, verdict: Outcome) -> ElectionStep {
        self.stage = Stage::Idle;
        ElectionStep::Decided(verdict)
    }
}

/// A merge patch of the status; what is absent is removed.
fn patch(status: &LessorStatus, primary: Option<&str>) -> Value {
    json!({
        "primary": primary,
        "term": status.term,
        "acquireTime": status.acquire_time,
        "provedTime": status.proved_time,
        "transitions": status.transitions,
        "pausedMilliseconds": status.paused_milliseconds,
        "leases": status.leases,
        "version": status.version,
    })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const SAID: Statement = Statement { at: Timestamp::UNIX_EPOCH, leases: 0, held: Duration::ZERO };

    fn lessor(version: u64, primary: &str, term: Term) -> Lessor {
        serde_json::from_value(json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lessor",
            "metadata": {"name": "default", "resourceVersion": version.to_string()},
            "status": {"primary": primary, "term": term},
        }))
        .expect("a lessor")
    }

    fn answered(election: &mut Election, answer: Lessor, was: &Request) -> ElectionStep {
        election.see(&answer).expect("readable");
        election.answered(&Response::Lessor(Box::new(answer)), was, &SAID)
    }

    /// A claim for overdue work that has read the `Lessor` and now looks at the work.
    fn checking() -> Election {
        let mut election = Election::new("me");
        election.see(&lessor(7, "other", 1)).expect("readable");
        let work = Work::Lease(Uuid::nil());
        let ElectionStep::Send(read) = election.claim(2, Reason::Overdue(work.clone())) else {
            panic!("no request")
        };
        assert_eq!(answered(&mut election, lessor(7, "other", 1), &read), ElectionStep::Check(work));
        election
    }

    /// A `Lessor` in which nobody has put anything yet.
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

    /// The incumbent, a replica that starts just then, and a `Lessor` that somebody deletes again and again, before any
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
                if led == 0 { incumbent.claim(1, Reason::Empty) } else { incumbent.prove(led, &SAID) };
            let ElectionStep::Send(read) = proof else { panic!("no request: {proof:?}") };
            incumbent.see_none();
            assert_eq!(
                incumbent.answered(&Response::Gone, &read, &SAID),
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
            // It's deleted, and who has just started is faster. It has seen no term anywhere.
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
        let ElectionStep::Send(Request::WriteLessor { version, .. }) = checking().checked(true, &SAID) else {
            panic!("no claim")
        };
        assert_eq!(version, 7);
    }

    #[test]
    fn a_takeover_seen_while_the_work_is_looked_at_is_not_taken_over() {
        let mut election = checking();
        election.see(&lessor(8, "third", 2)).expect("readable");
        assert_eq!(election.checked(true, &SAID), ElectionStep::Decided(Outcome::Lost));
    }

    #[test]
    fn a_release_seen_while_the_work_is_looked_at_is_claimed() {
        let mut election = checking();
        election.see(&lessor(8, "", 1)).expect("readable");
        let next = election.checked(true, &SAID);
        assert!(matches!(next, ElectionStep::Send(Request::WriteLessor { version: 8, .. })), "{next:?}");
    }
}
