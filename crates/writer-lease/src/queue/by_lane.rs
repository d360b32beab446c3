//! Keys in the order of their times, by lane.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::Lane;

/// Keys, each in a lane and with a time. The first of each lane is found without a look at the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ByLane<K: Ord> {
    /// No set is empty.
    lanes: BTreeMap<Option<Lane>, BTreeSet<(Duration, K)>>,
    firsts: BTreeSet<(Duration, K, Option<Lane>)>,
}

impl<K: Ord> Default for ByLane<K> {
    fn default() -> Self {
        Self { lanes: BTreeMap::new(), firsts: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> ByLane<K> {
    pub(super) fn insert(&mut self, lane: Option<Lane>, at: Duration, key: K) {
        self.change(lane, |keys| keys.insert((at, key)));
    }

    /// Removes a key, and returns whether it was there.
    pub(super) fn remove(&mut self, lane: Option<Lane>, at: Duration, key: &K) -> bool {
        self.change(lane, |keys| keys.remove(&(at, key.clone())))
    }

    /// Whether a lane has a key.
    pub(super) fn has(&self, lane: Option<Lane>) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// The first of each lane, in order.
    pub(super) fn firsts(&self) -> impl Iterator<Item = &(Duration, K, Option<Lane>)> {
        self.firsts.iter()
    }

    /// Takes everything out.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (Option<Lane>, K)> + use<K> {
        let lanes = std::mem::take(self).lanes;
        lanes.into_iter().flat_map(|(lane, keys)| keys.into_iter().map(move |(_, key)| (lane, key)))
    }

    fn change(
        &mut self,
        lane: Option<Lane>,
        change: impl FnOnce(&mut BTreeSet<(Duration, K)>) -> bool,
    ) -> bool {
        let keys = self.lanes.entry(lane).or_default();
        let before = keys.first().cloned();
        let changed = change(keys);
        let after = keys.first().cloned();
        if keys.is_empty() {
            self.lanes.remove(&lane);
        }
        if before != after {
            if let Some((at, key)) = before {
                self.firsts.remove(&(at, key, lane));
            }
            if let Some((at, key)) = after {
                self.firsts.insert((at, key, lane));
            }
        }
        changed
    }
}
