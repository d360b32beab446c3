//! Timers by key.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    time::Duration,
};

/// Keys, each with the time at which it is due.
///
/// Times are points on a clock of the caller, by default durations since its start;
/// [`LeaseTime`](super::LeaseTime) works as well. All operations are O(log n).
///
/// Unlike the engine's own queue of deadlines these are trees: equal contents are equal states with equal
/// hashes, [`first`](Self::first) is exact, and removed timers leave no memory behind.
///
/// ```
/// use std::time::Duration;
/// use lease_engine::Timers;
///
/// let at = Duration::from_millis;
/// let mut timers = Timers::default();
/// timers.set("retry", at(100));
/// timers.set("refresh", at(200));
/// timers.set("refresh", at(300)); // replaces
/// assert_eq!(timers.first(), Some(at(100)));
/// assert_eq!(timers.pop(at(250)), Some("retry"));
/// assert_eq!(timers.pop(at(250)), None);
/// ```
#[derive(Clone, Debug)]
pub struct Timers<K, T = Duration> {
    by_time: BTreeSet<(T, K)>,
    times: BTreeMap<K, T>,
}

impl<K, T> Default for Timers<K, T> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), times: BTreeMap::new() }
    }
}

impl<K: Hash, T: Hash> Hash for Timers<K, T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.by_time.hash(state);
    }
}

impl<K: Clone + Ord, T: Copy + Ord> Timers<K, T> {
    /// Sets the timer of `key`. Replaces the one that it has.
    pub fn set(&mut self, key: K, at: T) {
        self.clear(&key);
        self.times.insert(key.clone(), at);
        self.by_time.insert((at, key));
    }

    /// Sets the timer of `key` unless it has one. Returns whether it had none.
    pub fn set_if_absent(&mut self, key: K, at: T) -> bool {
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

    /// When the first timer is due.
    pub fn first(&self) -> Option<T> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes the first timer out, if it is due by `now`. Timers of the same time come out in the order of their
    /// keys.
    pub fn pop(&mut self, now: T) -> Option<K> {
        if self.first()? > now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.times.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_come_out_as_from_a_sorted_list(
            steps in prop::collection::vec((0..20u8, 0..50u32, 0..4u8), 1..200),
        ) {
            let mut timers = Timers::default();
            let mut model: BTreeMap<u8, u32> = BTreeMap::new();
            for (key, time, operation) in steps {
                match operation {
                    0 => {
                        timers.set(key, time);
                        model.insert(key, time);
                    }
                    1 => {
                        prop_assert_eq!(timers.set_if_absent(key, time), !model.contains_key(&key));
                        model.entry(key).or_insert(time);
                    }
                    2 => {
                        timers.clear(&key);
                        model.remove(&key);
                    }
                    _ => {
                        let first = model.iter().map(|(key, at)| (*at, *key)).min();
                        let due = first.filter(|(at, _)| *at <= time).map(|(_, key)| key);
                        prop_assert_eq!(timers.pop(time), due);
                        due.map(|key| model.remove(&key));
                    }
                }
                prop_assert_eq!(timers.first(), model.values().copied().min());
            }
        }
    }
}
