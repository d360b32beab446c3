//! The order in which leases end that are due at the same time: namespaces take turns, so that many in one delay none in another.

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
    /// By namespace, in the order in which they came. No queue is empty.
    waiting: HashMap<Arc<str>, VecDeque<Uuid>>,
    /// The namespaces, the next first.
    order: VecDeque<Arc<str>>,
    rate: Rate,
}

impl Turns {
    pub(super) fn new(rate: Rate) -> Self {
        Self { waiting: HashMap::new(), order: VecDeque::new(), rate }
    }

    pub(super) fn push(&mut self, namespace: &Arc<str>, uid: Uuid) {
        match self.waiting.get_mut(namespace) {
            Some(queue) => queue.push_back(uid),
            None => {
                self.waiting.insert(namespace.clone(), [uid].into());
                self.order.push_back(namespace.clone());
            }
        }
    }

    /// Takes the lease whose turn it is, if the rate allows another expiry now.
    pub(super) fn next(&mut self, now: &Now) -> Option<Uuid> {
        if self.order.is_empty() || self.rate.available(now.lease.since_start()) == 0 {
            return None;
        }
        let namespace = self.order.pop_front()?;
        let queue = self.waiting.get_mut(&namespace)?;
        let uid = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&namespace);
        } else {
            self.order.push_back(namespace);
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
