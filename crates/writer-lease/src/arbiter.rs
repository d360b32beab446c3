//! The object that writers compete for, as the worker sees it, and one in memory.

use std::{future::Future, sync::Arc};

use tokio::sync::watch;

use super::{Holder, Reason, Term};

/// Access to the arbitration object for one writer. Each method is one attempt, without retries of its own:
/// the machine spaces them. It may take a lease duration, then it's dropped and its outcome counts as
/// unknown.
pub trait Arbiter<K>: Send + Sync + 'static {
    /// Writes the object, on condition that it still names this writer under `term`.
    fn prove(&self, term: Term) -> impl Future<Output = Verdict> + Send;

    /// Looks afresh whether `reason` holds; if so, puts this writer's name on the object, under `term` or one
    /// more than the object's own, whichever is higher. See [`Reason`].
    fn claim(&self, term: Term, reason: Reason<K>) -> impl Future<Output = Verdict> + Send;

    /// Clears the object, on condition that it still names this writer under `term`.
    fn resign(&self, term: Term) -> impl Future<Output = ()> + Send;
}

/// What came of a proof or a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The object names this writer under this term, by this write or by an earlier one whose outcome was
    /// unknown.
    Held(Term),
    /// It names another, or nobody (which a claim takes and a proof doesn't).
    Lost {
        /// Whom it names.
        holder: Holder,
        /// Under which term.
        term: Term,
    },
    /// There was no reason to claim, and nothing was written.
    Abstained,
    /// The outcome is unknown, or the object couldn't be reached.
    Unknown,
}

/// An arbitration object in memory, for tests and for writers that share a process.
#[derive(Clone, Debug, Default)]
pub struct Arbitration(Arc<watch::Sender<Claim>>);

/// What an [`Arbitration`] holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The name of the primary, if there is one.
    pub holder: Option<String>,
    /// The term of the last claim.
    pub term: Term,
    /// Counts the writes.
    pub writes: u64,
}

impl Claim {
    /// Whom this names, as seen by the writer of this name.
    pub fn holder_for(&self, name: &str) -> Holder {
        match self.holder.as_deref() {
            None => Holder::Nobody,
            Some(holder) if holder == name => Holder::Me,
            Some(_) => Holder::Other,
        }
    }
}

impl Arbitration {
    /// The access of the writer of this name.
    pub fn arbiter(&self, name: impl Into<String>) -> MemoryArbiter {
        MemoryArbiter { name: name.into(), object: self.clone() }
    }

    /// What it holds now.
    pub fn read(&self) -> Claim {
        self.0.borrow().clone()
    }

    /// Follows its changes.
    pub fn watch(&self) -> watch::Receiver<Claim> {
        self.0.subscribe()
    }
}

/// One writer's access to an [`Arbitration`]. Takes every overdue claim at its word, since it knows no work.
#[derive(Clone, Debug)]
pub struct MemoryArbiter {
    name: String,
    object: Arbitration,
}

impl MemoryArbiter {
    /// Writes if `decide` answers with a new holder and term for the present ones.
    fn swap(&self, decide: impl FnOnce(&Claim) -> Option<(Option<String>, Term)>) -> Verdict {
        let mut verdict = Verdict::Unknown;
        self.object.0.send_if_modified(|claim| {
            let Some((holder, term)) = decide(claim) else {
                verdict = Verdict::Lost { holder: claim.holder_for(&self.name), term: claim.term };
                return false;
            };
            *claim = Claim { holder, term, writes: claim.writes + 1 };
            verdict = Verdict::Held(term);
            true
        });
        verdict
    }

    fn holds(&self, claim: &Claim, term: Term) -> bool {
        claim.term == term && claim.holder_for(&self.name) == Holder::Me
    }
}

impl<K: Send + 'static> Arbiter<K> for MemoryArbiter {
    async fn prove(&self, term: Term) -> Verdict {
        self.swap(|claim| self.holds(claim, term).then(|| (claim.holder.clone(), term)))
    }

    async fn claim(&self, term: Term, reason: Reason<K>) -> Verdict {
        self.swap(|claim| {
            let free = claim.holder_for(&self.name) != Holder::Other;
            let overdue = matches!(reason, Reason::Overdue(_)) && claim.term < term;
            (free || overdue).then(|| (Some(self.name.clone()), term.max(claim.term.saturating_add(1))))
        })
    }

    async fn resign(&self, term: Term) {
        self.swap(|claim| self.holds(claim, term).then_some((None, term)));
    }
}
