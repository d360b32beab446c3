//! One lease of the index: its object, what is remembered beside it, and where it waits.

use std::time::Duration;

use lease_engine::LeaseTime;

use crate::{index::sources::TtlState, lease_object::LeaseObject, sparse::Sparse};

/// For so long a release waits for a watch that doesn't show the end of its lease.
const LATE_WATCH: Duration = Duration::from_secs(30);

/// A lease: its object, and the state that isn't stored in the object.
#[derive(Clone, Debug, Hash)]
pub struct Entry {
    /// The newest version of the object.
    pub record: LeaseObject,
    /// Whether the object has changed since: it must be read before it is written.
    pub stale: bool,
    /// The deadline that `status.expiryTime` stands for.
    pub published_deadline: Option<LeaseTime>,
    /// Whether its deadline has come nearer since: `status.expiryTime` must be corrected at once.
    pub nearer: bool,
    /// When a write of its status was last observed.
    pub written_at: Option<Duration>,
    /// Where it waits for its next step.
    pub pending: Pending,
    /// Whether the lessor has handed it out as expired.
    pub handed_out: bool,
    /// Whether it waits for its turn to end since then.
    pub awaits_turn: bool,
    /// Whether its deadline was reconstructed from what is recorded, and nothing was observed of it since. Another replica may
    /// know better.
    pub recovered: bool,
    /// Whether its time runs, as far as its source decides that.
    pub ttl_state: TtlState,
    /// Whether the request that releases it was sent, bound to the version that is known. It may have been done, or be done
    /// late, whatever its answer was: what is attached from then on may be meant for the next lease of this name.
    pub releasing: bool,
    /// What few leases have at a time.
    pub more: Sparse<More>,
}

/// What is remembered of a lease while something happens to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct More {
    /// When it was granted, if that's later than `status.grantTime`: the request took long.
    pub granted_by: Option<i64>,
    /// Until when it lingers after its end.
    pub linger_until: Option<Duration>,
    /// Whether its end is known from a response alone. The watch may be behind, and so may be those of attached kinds.
    pub end_unseen: bool,
    /// Since when its next step is due.
    pub due: Option<Duration>,
    /// Since when what it follows has been asked for, one request after the other, to see whether it may end.
    pub confirming: Option<Duration>,
    /// The deadline at which this replica ended it, while something attached to it is still there.
    pub overran: Option<LeaseTime>,
    /// The version at which a request has met a conflict.
    pub conflict_at: Option<u64>,
    /// The reason of the last warning about it, so that the warning isn't repeated.
    pub last_warning: Option<&'static str>,
    /// Why its last write failed, until one succeeds.
    pub failure: Option<Failure>,
    /// Whether its release was hindered already when this replica became primary.
    pub hindered_before: bool,
}

/// Why the writes of a lease fail, and when the next is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// A word for the reason.
    pub reason: &'static str,
    /// How often it was tried.
    pub tries: u32,
    /// Not before this time, on the replica's clock.
    pub retry_at: Duration,
    /// Whether it was refused, or has failed more than once: a retry will probably fail too.
    pub lasting: bool,
    /// Whether the write that failed was its end.
    pub of_end: bool,
}

/// Where a lease waits for its next step: in one place at a time. Its deadline is on the engine's wheel meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pending {
    /// Nowhere: nothing is next until something changes.
    #[default]
    Idle,
    /// For a timer.
    Timer,
    /// For a timer, since it has ended. A watch that recovers is a reason to look at it earlier.
    Lingering,
    /// For the budget of status refreshes.
    Budget,
    /// In the queue of work that replicas compete for.
    Queued,
    /// In the same queue, on the primary, for a refresh that the budget has allowed.
    QueuedRefresh,
    /// For the response to a request. `refresh`: whether that refreshes its status.
    InFlight {
        /// See above.
        refresh: bool,
    },
}

impl Pending {
    /// Whether it is in the queue of work.
    pub fn is_queued(self) -> bool {
        matches!(self, Self::Queued | Self::QueuedRefresh)
    }

    /// Whether it waits for a response.
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::InFlight { .. })
    }
}

impl Entry {
    /// Whether nothing is attached to it any more after its end: our finalizer is gone.
    pub fn is_released(&self) -> bool {
        self.record.status.has_ended() && !self.record.has_finalizer
    }

    /// See [`More::granted_by`].
    pub fn granted_by(&self) -> Option<i64> {
        self.more.get()?.granted_by
    }

    /// See [`More::linger_until`]. It counts from when the watch shows the end, unless that takes very long.
    pub fn linger_until(&self) -> Duration {
        let Some(more) = self.more.get() else { return Duration::ZERO };
        let late = if more.end_unseen { LATE_WATCH } else { Duration::ZERO };
        more.linger_until.map_or(Duration::ZERO, |until| until.saturating_add(late))
    }

    /// See [`More::due`].
    pub fn due(&self) -> Option<Duration> {
        self.more.get()?.due
    }

    /// See [`More::failure`].
    pub fn failure(&self) -> Option<Failure> {
        self.more.get()?.failure
    }

    /// See [`More::hindered_before`].
    pub fn hindered_before(&self) -> bool {
        self.more.get().is_some_and(|more| more.hindered_before)
    }

    pub(super) fn set_confirming(&mut self, since: Option<Duration>) {
        let known = self.more.get().and_then(|more| more.confirming);
        if known.is_some() != since.is_some() {
            self.more.change(|more| more.confirming = since);
        }
    }

    /// Forgets [`More::overran`], and answers with it.
    pub fn take_overran(&mut self) -> Option<LeaseTime> {
        self.more.get()?.overran?;
        self.more.change(|more| more.overran.take())
    }
}
