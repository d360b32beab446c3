//! Access to the arbitration object, and one in memory.

use std::{future::Future, sync::Arc};

use tokio::sync::watch;

use super::{Holder, Reason, Term};

/// Access to the arbitration object for one writer. Each method is one attempt, and the state machine spaces retries.
/// After a lease duration the worker drops the attempt, and its outcome counts as unknown.
pub trait Arbiter<K>: Send + Sync + 'static {
    /// Writes the object, on condition that it still names this writer under `term`.
    fn prove(&self, term: Term) -> impl Future<Output = Verdict> + Send;

    /// Reads afresh whether `reason` holds. If so, puts this writer's name on the object, under `term` or one more than
    /// the object's own, whichever is higher. See [`Reason`].
    fn claim(&self, term: Term, reason: Reason<K>) -> impl Future<Output = Verdict> + Send;

    /// Clears the object, on condition that it still names this writer under `term`.
    fn resign(&self, term: Term) -> impl Future<Output = ()> + Send;
}

/// The outcome of a proof or a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The object names this writer under this term, by this write or by an earlier one whose outcome was
    /// unknown.
    Held(Term),
    /// It names another writer, or is vacant at a proof.
    Lost {
        /// The writer that it names.
        holder: Holder,
        /// Its term.
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

/// The contents of an [`Arbitration`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The name of the primary, if there is one.
    pub holder: Option<String>,
    /// The term of the last claim.
    pub term: Term,
    /// The number of writes.
    pub writes: u64,
}

impl Claim {
    /// The holder from the view of the writer with this name.
    pub fn holder_for(&self, name: &str) -> Holder {
        match self.holder.as_deref() {
            None => Holder::Nobody,
            Some(holder) if holder == name => Holder::Me,
            Some(_) => Holder::Other,
        }
    }
}

impl Arbitration {
    /// Access for the writer with this name.
    pub fn arbiter(&self, name: impl Into<String>) -> MemoryArbiter {
        MemoryArbiter { name: name.into(), object: self.clone() }
    }

    /// Its contents now.
    pub fn read(&self) -> Claim {
        self.0.borrow().clone()
    }

    /// Watches its changes.
    pub fn watch(&self) -> watch::Receiver<Claim> {
        self.0.subscribe()
    }
}

/// One writer's access to an [`Arbitration`]. It can't read work, and so grants every claim for overdue work.
#[derive(Clone, Debug)]
pub struct MemoryArbiter {
    name: String,
    object: Arbitration,
}

impl MemoryArbiter {
    /// Writes if `decide` returns a new holder and term.
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
            let overdue = !matches!(reason, Reason::Empty) && claim.term < term;
            (free || overdue).then(|| (Some(self.name.clone()), term.max(claim.term.saturating_add(1))))
        })
    }

    async fn resign(&self, term: Term) {
        self.swap(|claim| self.holds(claim, term).then_some((None, term)));
    }
}
