//! A queue of timers, for whatever is due at some lease time.

use std::{fmt, hash::Hash, mem};

use super::{
    LeaseTime,
    index::Found,
    table::Table,
    wheel::{NEVER, Node, Wheel},
};

/// Keys ordered by when they're due: the structure that the lessor keeps its deadlines in, on its own.
///
/// All operations are O(1); a key moves inside at most ten times, usually twice, before it comes out. Times
/// are whole milliseconds, rounded up, so nothing comes out early, or more than a millisecond late. A clock
/// that steps back does no harm.
///
/// ```
/// use lease_engine::{LeaseTime, queue::DeadlineQueue};
///
/// let mut queue = DeadlineQueue::default();
/// queue.insert("b", LeaseTime::from_millis(200));
/// queue.insert("a", LeaseTime::from_millis(100));
/// queue.insert("b", LeaseTime::from_millis(300)); // moves
/// assert_eq!(queue.pop_due(LeaseTime::from_millis(250)), Some("a"));
/// assert_eq!(queue.pop_due(LeaseTime::from_millis(250)), None);
/// assert_eq!(queue.due_at(&"b"), Some(LeaseTime::from_millis(300)));
/// ```
pub struct DeadlineQueue<K> {
    /// The keys, and when they're due, in milliseconds.
    keys: Table<K, u64>,
    /// Their nodes, by the same numbers.
    nodes: Vec<Node>,
    wheel: Wheel,
}

impl<K> Default for DeadlineQueue<K> {
    fn default() -> Self {
        Self { keys: Table::default(), nodes: Vec::new(), wheel: Wheel::new(0) }
    }
}

impl<K> fmt::Debug for DeadlineQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadlineQueue").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<K> DeadlineQueue<K> {
    /// How many keys wait.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.keys.len() == 0
    }

    /// When to call [`pop_due`](Self::pop_due) next: nothing is due before, but possibly nothing yet at that
    /// time either; `None` if nothing waits.
    pub fn next(&self) -> Option<LeaseTime> {
        self.wheel.next().map(LeaseTime::from_millis)
    }

    /// What waits and until when, in no particular order. O(n).
    pub fn iter(&self) -> impl Iterator<Item = (&K, LeaseTime)> {
        self.keys.iter().map(|(key, at)| (key, LeaseTime::from_millis(*at)))
    }
}

impl<K: Eq + Hash> DeadlineQueue<K> {
    /// Makes the key due at this time, whether or not it waits already; false if there's no room for it (at
    /// about four billion keys). [`LeaseTime::NEVER`] takes it out.
    pub fn insert(&mut self, key: K, at: LeaseTime) -> bool {
        if at == LeaseTime::NEVER {
            self.remove(&key);
            return true;
        }
        let at = at.millis_up();
        match self.keys.find_or_insert(key, at) {
            Found::New(n) => {
                if self.nodes.len() == n as usize {
                    self.nodes.push(Node::default());
                    self.nodes[n as usize].unfile(n);
                }
                self.wheel.file(&mut self.nodes, n, at);
            }
            Found::Old(n) => {
                let before = self.keys.get_mut(n).map(|due| mem::replace(due, at));
                // What is filed too early is filed anew when its time comes.
                if before.is_some_and(|before| at < before) {
                    self.wheel.file(&mut self.nodes, n, at);
                }
            }
            Found::Full => return false,
        }
        true
    }

    /// Takes a key out; false if it didn't wait.
    pub fn remove(&mut self, key: &K) -> bool {
        match self.keys.remove_key(key) {
            Some((n, _)) => {
                self.wheel.remove(&mut self.nodes, n);
                true
            }
            None => false,
        }
    }

    /// Takes the key out that has been due for longest, if any is.
    pub fn pop_due(&mut self, now: LeaseTime) -> Option<K> {
        let Self { keys, nodes, wheel } = self;
        let time = |_: &Vec<Node>, n, _| keys.get(n).map_or(NEVER, |(_, at)| *at);
        let n = wheel.first_due(nodes, now.millis_down(), &mut { usize::MAX }, time)?;
        wheel.remove(nodes, n);
        keys.remove(n).map(|(key, _)| key)
    }

    /// When a key is due.
    pub fn due_at(&self, key: &K) -> Option<LeaseTime> {
        let (_, at) = self.keys.get(self.keys.find(key)?)?;
        Some(LeaseTime::from_millis(*at))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_due_in_one_millisecond_comes_out_in_the_order_of_arrival() {
        let mut queue = DeadlineQueue::default();
        (0..100).for_each(|key| assert!(queue.insert(key, LeaseTime::from_millis(70_000))));
        let out: Vec<_> = std::iter::from_fn(|| queue.pop_due(LeaseTime::from_millis(70_000))).collect();
        assert_eq!(out, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn never_takes_a_key_out() {
        let mut queue = DeadlineQueue::default();
        queue.insert(1, LeaseTime::from_millis(5));
        queue.insert(1, LeaseTime::NEVER);
        assert!(queue.is_empty());
        assert_eq!(queue.next(), None);
    }

    /// Steps of all sizes: within a slot, across levels, and back.
    fn time_step() -> impl Strategy<Value = i64> {
        prop_oneof![-2000..2000i64, 0..100_000i64, (0..40u32).prop_map(|bits| 1 << bits)]
    }

    proptest! {
        #[test]
        fn keys_come_out_as_from_a_sorted_list(
            steps in prop::collection::vec((0..20u8, time_step(), time_step(), 0..4u8), 1..200),
        ) {
            let mut queue = DeadlineQueue::default();
            let mut model: BTreeMap<u8, u64> = BTreeMap::new();
            let mut now: u64 = 1 << 40;
            for (key, step, ahead, what) in steps {
                now = now.saturating_add_signed(step).min(1 << 43);
                match what {
                    0 | 1 => {
                        let at = now.saturating_add_signed(ahead);
                        queue.insert(key, LeaseTime::from_millis(at));
                        model.insert(key, LeaseTime::from_millis(at).millis_up());
                    }
                    2 => prop_assert_eq!(queue.remove(&key), model.remove(&key).is_some()),
                    _ => {
                        let due = model.values().filter(|at| **at <= LeaseTime::from_millis(now).millis_down()).count();
                        for _ in 0..due {
                            let earliest = model.values().copied().min();
                            let out = queue.pop_due(LeaseTime::from_millis(now));
                            prop_assert_eq!(out.and_then(|out| model.remove(&out)), earliest);
                        }
                        prop_assert_eq!(queue.pop_due(LeaseTime::from_millis(now)), None);
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
                let earliest = model.values().copied().min().map(LeaseTime::from_millis);
                prop_assert_eq!(queue.next().is_some(), earliest.is_some());
                prop_assert!(queue.next() <= earliest);
            }
        }
    }
}
