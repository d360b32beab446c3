//! What waits for a time: timers, and the budget of status refreshes.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
    num::NonZeroU32,
    time::Duration,
};

use lease_engine::{Rate, Timers};
use uuid::Uuid;

use crate::{index::attachments::ObjectId, metadata::NamespacedName};

/// How often what failed before is retried, all leases and objects together.
const RETRIES: Rate = const {
    let burst = NonZeroU32::new(8).expect("above zero: the compiler checks it");
    Rate::new(NonZeroU32::MIN, burst)
};
/// A follower that can't check what is due looks for all that is due this often.
const LOOK_FOR_DUE: Duration = Duration::from_secs(1);

/// What a timer is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// The next step of a lease.
    Lease(Uuid),
    /// The next try to remove what is due in an object. Boxed, since most timers are of leases.
    Object(Box<ObjectId>),
    /// Whether something is still attached to a lease that doesn't exist.
    PendingAttachment(Box<NamespacedName>),
}

/// All timers, on the replica's clock.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    timers: Timers<Timer>,
    /// The leases that linger after their end, each with a timer. A watch that recovers is a reason to look at them, and must
    /// not cost a look at all leases.
    lingering: BTreeSet<Uuid>,
    /// How many refreshes of status may be written.
    budget: Rate,
    /// The leases that wait for that budget, each with the time since when.
    refreshes: Timers<Uuid>,
    /// When sources may be read again, after a failure.
    read_sources_at: Duration,
    /// How many retries may be sent.
    retries: Rate,
    /// When a follower that can't check what is due looks for more.
    look_for_due_at: Duration,
}

impl Schedule {
    /// Nothing waits. `status_rate`: refreshes per second.
    pub(super) fn new(status_rate: f64) -> Self {
        Self {
            timers: Timers::default(),
            lingering: BTreeSet::new(),
            budget: Rate::per_second(status_rate),
            refreshes: Timers::default(),
            read_sources_at: Duration::ZERO,
            retries: RETRIES,
            look_for_due_at: Duration::ZERO,
        }
    }

    // --- Timers --------------------------------------------------------------------------------------------------

    /// Sets a timer, in place of the one that there is.
    pub(super) fn set(&mut self, timer: Timer, at: Duration) {
        self.timers.set(timer, at);
    }

    /// Sets a timer unless there is one.
    pub(super) fn set_if_absent(&mut self, timer: Timer, at: Duration) {
        self.timers.set_if_absent(timer, at);
    }

    /// Clears a timer.
    pub(super) fn clear(&mut self, timer: &Timer) {
        self.timers.clear(timer);
    }

    /// Takes the first timer that is due.
    pub(super) fn pop(&mut self, now: Duration) -> Option<Timer> {
        self.timers.pop(now)
    }

    /// When the first timer is due.
    pub(super) fn first(&self) -> Option<Duration> {
        self.timers.first()
    }

    // --- Leases that linger --------------------------------------------------------------------------------------

    /// Sets the timer of a lease that lingers after its end.
    pub(super) fn linger(&mut self, uid: Uuid, until: Duration) {
        self.lingering.insert(uid);
        self.timers.set(Timer::Lease(uid), until);
    }

    /// Clears the timer of such a lease.
    pub(super) fn stop_lingering(&mut self, uid: Uuid) {
        self.lingering.remove(&uid);
        self.timers.clear(&Timer::Lease(uid));
    }

    /// The leases that linger.
    pub(super) fn lingering(&self) -> Vec<Uuid> {
        self.lingering.iter().copied().collect()
    }

    // --- Refreshes -----------------------------------------------------------------------------------------------

    /// Lets a lease wait for the budget. Returns whether it has to wait longer than until now; `None`: the budget is zero.
    pub(super) fn await_refresh(&mut self, uid: Uuid, now: Duration) -> Option<bool> {
        let at = self.budget.next()?;
        Some(self.refreshes.set_if_absent(uid, now) && at > now)
    }

    /// Lets a lease wait for the budget no longer.
    pub(super) fn drop_refresh(&mut self, uid: Uuid) {
        self.refreshes.clear(&uid);
    }

    /// Takes the lease that has waited longest, if the budget allows a refresh now.
    pub(super) fn next_refresh(&mut self, now: Duration) -> Option<Uuid> {
        if self.refresh_at(now)? > now {
            return None;
        }
        self.refreshes.pop(now)
    }

    /// A refresh is being written.
    pub(super) fn spend_refresh(&mut self, now: Duration) {
        self.budget.take(1, now);
    }

    /// When the next refresh may be written, if a lease waits for that.
    pub(super) fn refresh_at(&mut self, now: Duration) -> Option<Duration> {
        self.refreshes.first()?;
        self.budget.next().map(|at| at.max(now))
    }

    // --- Retries -------------------------------------------------------------------------------------------------

    /// A retry is being sent. Returns when the next may be.
    pub(super) fn spend_retry(&mut self, now: Duration) -> Duration {
        self.retries.take(1, now);
        self.retries.next().unwrap_or(now)
    }

    /// A retry has succeeded: others may, too.
    pub(super) fn retry_succeeded(&mut self) {
        self.retries = RETRIES;
    }

    // --- What a follower looks for --------------------------------------------------------------------------------

    /// Whether to look for all that is due.
    pub(super) fn look_for_due(&mut self, now: Duration) -> bool {
        let looks = self.look_for_due_at <= now;
        if looks {
            self.look_for_due_at = now + LOOK_FOR_DUE;
        }
        looks
    }

    /// When to look for all that is due.
    pub(super) fn look_for_due_at(&self) -> Duration {
        self.look_for_due_at
    }

    // --- Sources -------------------------------------------------------------------------------------------------

    /// Reads no source before then.
    pub(super) fn read_sources_at(&mut self, at: Duration) {
        self.read_sources_at = at;
    }

    /// When sources may be read.
    pub(super) fn sources_readable_at(&self) -> Duration {
        self.read_sources_at
    }

    /// Hashes everything that decides what comes next, except the budget.
    pub(super) fn hash_state(&self, state: &mut impl Hasher) {
        (&self.timers, &self.lingering, &self.refreshes, self.read_sources_at, self.look_for_due_at)
            .hash(state);
    }
}
