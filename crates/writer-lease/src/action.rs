//! Actions of the state machine, and the vocabulary of events and results.

use std::time::Duration;

/// The term of a primary. Each claim of the arbitration object raises it by one or more. Signed, like Kubernetes'
/// integers. 0 means that there was no primary yet.
pub type Term = i64;

/// Work that may get stuck together, such as requests to one server that doesn't respond. The caller chooses the number.
///
/// A run takes a slot of [`max_running`](super::Config::max_running) until it is done. A bounded lane may take one more only
/// while as many slots are left as it has, and one for others. So one stuck lane has at most half of all slots, two have a
/// third each, and however many are stuck, other work has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    kind: LaneKind,
    id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum LaneKind {
    Bounded,
    Trusted,
    Patient,
    Spare,
}

impl Lane {
    /// A bounded lane.
    pub const fn bounded(id: u64) -> Self {
        Self { kind: LaneKind::Bounded, id }
    }

    /// A lane that may take all slots while it moves. A run of it that takes longer than half a second gives its slot up, though
    /// it goes on. After such a run, and after one that is retried, the lane is bounded for five seconds.
    pub const fn trusted(id: u64) -> Self {
        Self { kind: LaneKind::Trusted, id }
    }

    /// A [trusted](Self::trusted) lane of work that can wait: work of other lanes goes first that is ready at most ten seconds
    /// later.
    pub const fn patient(id: u64) -> Self {
        Self { kind: LaneKind::Patient, id }
    }

    /// A bounded lane of work that failed before. The caller decides [from when](super::WriterLease::spare_from) it runs, for all
    /// such lanes together.
    pub const fn spare(id: u64) -> Self {
        Self { kind: LaneKind::Spare, id }
    }

    pub(super) fn is_trusted(self) -> bool {
        matches!(self.kind, LaneKind::Trusted | LaneKind::Patient)
    }

    pub(super) fn is_patient(self) -> bool {
        self.kind == LaneKind::Patient
    }

    pub(super) fn is_spare(self) -> bool {
        self.kind == LaneKind::Spare
    }
}

/// What the runtime is to do now. It reports the result of each action exactly once, unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<K> {
    /// Do the work of `key`, then call [`done`](super::WriterLease::done).
    Run {
        /// The key of the work.
        key: K,
        /// Counts from 1.
        attempt: u32,
        /// The term, which every write of this run has to carry.
        term: Term,
        /// When the lease lapses unless it is extended. Requests of this run must time out before.
        until: Duration,
    },
    /// Compare-and-swap the arbitration object, on condition that it still names this writer under `term`. Then call
    /// [`proved`](super::WriterLease::proved), [`lost`](super::WriterLease::lost) or
    /// [`arbitration_failed`](super::WriterLease::arbitration_failed); or, if the object was deleted and had to be
    /// created again, [`claimed`](super::WriterLease::claimed) under the next term.
    Prove {
        /// The own term.
        term: Term,
    },
    /// Read the arbitration object afresh. If `reason` still holds, put this writer's name and `term` on it by
    /// compare-and-swap. Then call [`claimed`](super::WriterLease::claimed), [`lost`](super::WriterLease::lost),
    /// [`abstained`](super::WriterLease::abstained) or
    /// [`arbitration_failed`](super::WriterLease::arbitration_failed).
    Claim {
        /// The lowest term to claim. If the object's own term plus one is higher, claim that.
        term: Term,
        /// The reason, which is also the condition.
        reason: Reason<K>,
    },
    /// Clear the arbitration object, on condition that it still names this writer under `term`. Its result isn't
    /// reported. If it fails, the next takeover comes later.
    Resign {
        /// The term that this writer gave up.
        term: Term,
    },
}

/// Why to claim the arbitration object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason<K> {
    /// By the last observation it is vacant. Claim it only if it is vacant or names this writer; otherwise call
    /// [`lost`](super::WriterLease::lost).
    Empty,
    /// The work of this key is overdue, and no write of the primary was observed. Read the work afresh: if it is done,
    /// call [`abstained`](super::WriterLease::abstained). Read the object afresh: if it carries a term as high as the
    /// one to claim, or a proof that this writer hasn't observed, call [`lost`](super::WriterLease::lost). Otherwise
    /// claim it, whichever writer it names. So, of many writers that find the same work overdue, one takes over.
    Overdue(K),
    /// The primary was challenged, and no write of it was observed [in time](super::WriterLease::await_answer). Read the
    /// object afresh: if it shows an answer, call [`lost`](super::WriterLease::lost). Otherwise claim it.
    Unanswered,
}

/// The writer that the arbitration object names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// This writer. A name must belong to one process. A restarted process that keeps its name takes a claim of its
    /// predecessor for its own.
    Me,
    /// Another writer.
    Other,
    /// No writer, or there is no such object.
    Nobody,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkResult {
    /// No evidence of who leads: nothing was written, the outcome is unknown, or it was a conflict.
    None,
    /// A write was accepted.
    Extend,
    /// This writer can't do its work, and gives up the lead.
    Release,
}

/// What happens to the work after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// It is done.
    Finished,
    /// It is queued again, to run at `at` or later if this writer leads.
    Retries {
        /// The end of its backoff.
        at: Duration,
    },
    /// It was queued again while it ran, and will run again.
    Requeued,
    /// It was removed while it ran.
    Removed,
    /// It was to be retried, but is dropped, since it has used up its retries.
    GaveUp,
    /// No such key was running.
    Unknown,
}

/// The effect of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Observation {
    /// None: it was a write of this writer, or older than the last observation.
    Ignored,
    /// Another leads. A follower's wait starts again.
    Followed,
    /// Another has taken over from this writer.
    Demoted,
    /// No writer leads, and the object can be claimed.
    Vacant,
    /// A claim of this writer, whose outcome was unknown, had succeeded. It proves itself before it runs work.
    Adopted,
    /// The term is invalid (see [`WriterLease::is_absurd`](super::WriterLease::is_absurd)) and was ignored. Report it to
    /// the operators of the system.
    Absurd,
}
