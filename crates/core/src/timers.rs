//! Timers by key: each key has one at most.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    time::Duration,
};

/// Timers on the replica's clock. Trees, which take no more than what is in them, however many there once were.
#[derive(Clone, Debug)]
pub struct Timers<K> {
    by_time: BTreeSet<(Duration, K)>,
    times: BTreeMap<K, Duration>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), times: BTreeMap::new() }
    }
}

impl<K: Hash> Hash for Timers<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.by_time.hash(state);
    }
}

impl<K: Clone + Ord> Timers<K> {
    /// Sets the timer of `key`, in place of the one that it has.
    pub fn set(&mut self, key: K, at: Duration) {
        self.clear(&key);
        self.times.insert(key.clone(), at);
        self.by_time.insert((at, key));
    }

    /// Sets the timer of `key` unless it has one; whether it had none.
    pub fn set_if_absent(&mut self, key: K, at: Duration) -> bool {
        let absent = !self.times.contains_key(&key);
        if absent {
            self.set(key, at);
        }
        absent
    }

    /// Clears the timer of `key`, if it has one.
    pub fn clear(&mut self, key: &K) {
        if let Some(at) = self.times.remove(key) {
            self.by_time.remove(&(at, key.clone()));
        }
    }

    /// When the first one goes off.
    pub fn first(&self) -> Option<Duration> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes the first one out, if its time has come.
    pub fn pop(&mut self, now: Duration) -> Option<K> {
        if self.first()? > now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.times.remove(&key);
        Some(key)
    }
}
