//! The order in which leases end that are due at the same time: namespaces take turns, so that many in one delay none in another. In
//! each namespace, so do those that the primary of before had time for, and all others.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use lease_engine::{LeaseTime, Rate};
use uuid::Uuid;

use crate::clocks::Now;

/// Leases that wait for their turn to end, within the rate of expiries.
#[derive(Clone)]
pub(super) struct Turns {
    /// By lane, in the order in which they came. No queue is empty.
    waiting: HashMap<Lane, VecDeque<Uuid>>,
    /// The lanes, the next first.
    order: VecDeque<Lane>,
    rate: Rate,
}

/// A namespace, and whether the primary of before had time for these leases.
type Lane = (Arc<str>, bool);

impl Turns {
    pub(super) fn new(rate: Rate) -> Self {
        Self { waiting: HashMap::new(), order: VecDeque::new(), rate }
    }

    pub(super) fn push(&mut self, lane: Lane, uid: Uuid) {
        match self.waiting.get_mut(&lane) {
            Some(queue) => queue.push_back(uid),
            None => {
                self.waiting.insert(lane.clone(), [uid].into());
                self.order.push_back(lane);
            }
        }
    }

    /// Takes the lease whose turn it is, if the rate allows another expiry now.
    pub(super) fn next(&mut self, now: &Now) -> Option<Uuid> {
        if self.order.is_empty() || self.rate.available(now.lease.since_start()) == 0 {
            return None;
        }
        let lane = self.order.pop_front()?;
        let queue = self.waiting.get_mut(&lane)?;
        let uid = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&lane);
        } else {
            self.order.push_back(lane);
        }
        uid
    }

    /// A lease ends.
    pub(super) fn spend(&mut self, now: &Now) {
        self.rate.take(1, now.lease.since_start());
    }

    /// When the next may end, if one waits.
    pub(super) fn next_at(&self) -> Option<LeaseTime> {
        self.order.front()?;
        self.rate.next().map(LeaseTime::from_duration)
    }

    /// Nothing waits any more.
    pub(super) fn clear(&mut self) {
        (self.waiting, self.order) = Default::default();
    }
}
