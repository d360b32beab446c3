//! What the machine asks of its shell, and the words of their exchange.

use std::time::Duration;

/// The number of a primacy: each claim of the arbitration object raises it by one or more. Signed, as
/// Kubernetes' integers are; 0 means that nobody ever was primary.
pub type Term = i64;

/// Work that may get stuck together, by a number of the caller's own: requests to one server that doesn't answer, say.
///
/// A run takes a slot of [`max_running`](super::Config::max_running) until it is done. The keys of a lane may take one more
/// only while as many are left as they have already, and one for work in no lane. So a lane that is stuck has half of all
/// slots at most, two a third each, and however many are stuck, there is a slot for whatever is in no lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u64);

/// What the shell is to do now. Each is to be answered exactly once, whatever becomes of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<K> {
    /// Do the work of `key`, then report [`done`](super::WriterLease::done).
    Run {
        /// Whose work to do.
        key: K,
        /// Counts from 1.
        attempt: u32,
        /// To be written into everything that this run writes.
        term: Term,
        /// When the lease lapses as things stand: whatever the run requests must time out before.
        until: Duration,
    },
    /// Compare-and-swap the arbitration object, on condition that it still names this writer under `term`.
    /// Answer: [`proved`](super::WriterLease::proved), [`lost`](super::WriterLease::lost) or
    /// [`arbitration_failed`](super::WriterLease::arbitration_failed); or, if the object was deleted and had to be
    /// made anew, [`claimed`](super::WriterLease::claimed) under the next term.
    Prove {
        /// The own term.
        term: Term,
    },
    /// Read the arbitration object afresh, and if `reason` still holds, put this writer's name and `term` on
    /// it by compare-and-swap. Answer: [`claimed`](super::WriterLease::claimed),
    /// [`lost`](super::WriterLease::lost), [`abstained`](super::WriterLease::abstained) or
    /// [`arbitration_failed`](super::WriterLease::arbitration_failed).
    Claim {
        /// The lowest term to claim; one more than the object's own if that's higher.
        term: Term,
        /// Why, and so on which condition.
        reason: Reason<K>,
    },
    /// Clear the arbitration object, on condition that it still names this writer under `term`. Needs no
    /// answer: if it fails, the next takeover comes later.
    Resign {
        /// The term that this writer gave up.
        term: Term,
    },
}

/// Why the arbitration object is to be claimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason<K> {
    /// It names nobody, as far as the machine knows. To be claimed only if it names nobody, or this very
    /// writer; otherwise [`lost`](super::WriterLease::lost).
    Empty,
    /// The work of this key is overdue and nothing was seen of the primary. To be claimed, whoever it names,
    /// only if a fresh look finds that work undone (otherwise [`abstained`](super::WriterLease::abstained)),
    /// and nothing on the object that this writer hadn't seen: a term as high as the one to claim, or a
    /// proof, is a sign of life ([`lost`](super::WriterLease::lost)). So, of many who find the same work
    /// overdue, one takes over.
    Overdue(K),
}

/// Whom the arbitration object names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// This writer. A name must belong to one process: a restarted one needs a new name, or it takes an
    /// earlier claim of its predecessor for its own.
    Me,
    /// Another writer.
    Other,
    /// Nobody, or there is no such object.
    Nobody,
}

/// What became of a run, in the words of the one who did the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkResult {
    /// Says nothing about who leads: nothing was written, the outcome is unknown, or it was a conflict.
    None,
    /// A write was accepted.
    Extend,
    /// This writer can't do its work and gives up the lead.
    Release,
}

/// What becomes of the work after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// It is over.
    Finished,
    /// It is queued again, to run not before `at` and not unless this writer leads.
    Retries {
        /// The end of its backoff.
        at: Duration,
    },
    /// It was tried anew while it ran, and will run again.
    Requeued,
    /// It was removed while it ran.
    Removed,
    /// It was to be retried, but has used up its retries and is dropped.
    GaveUp,
    /// No such key was running.
    Unknown,
}

/// What an observation meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Observation {
    /// Nothing: the own doing, or older than what is known.
    Ignored,
    /// Another leads, and was seen alive: a follower's wait starts anew.
    Followed,
    /// Another has taken over from this writer.
    Demoted,
    /// Nobody leads: to be claimed.
    Vacant,
    /// A claim of this writer, whose outcome was unknown, had succeeded. It proves itself before it runs
    /// anything.
    Adopted,
    /// The term can't be true (see [`WriterLease::is_absurd`](super::WriterLease::is_absurd)) and is passed
    /// over: to be reported.
    Absurd,
}
