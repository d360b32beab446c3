//! A hash table whose entries have numbers, valid until they are removed, by which other structures link them.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};
use slab::Slab;

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// The numbers above are for the wheel's own rings, and for [`NONE`].
const MAX_LEN: usize = 0xffff_0000;

/// The outcome of adding an entry, with the number of the entry that has the key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    New(u32),
    Old(u32),
    Full,
}

/// The number of the entry in this place; `None` if there are too many.
#[inline]
pub(super) fn number(place: usize) -> Option<u32> {
    (place < MAX_LEN).then_some(place as u32)
}

#[derive(Clone, Debug)]
pub(super) struct Table<K, V> {
    index: HashTable<u32>,
    entries: Slab<(K, V)>,
    hasher: RandomState,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { index: HashTable::new(), entries: Slab::new(), hasher: RandomState::default() }
    }
}

impl<K, V> Table<K, V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry with this number, if there is one.
    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<(&K, &V)> {
        self.entries.get(at as usize).map(|(key, value)| (key, value))
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut V> {
        self.entries.get_mut(at as usize).map(|(_, value)| value)
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// The number of the entry with this key.
    pub(super) fn find(&self, key: &K) -> Option<u32> {
        let is = |at: &u32| self.entries[*at as usize].0 == *key;
        self.index.find(self.hasher.hash_one(key), is).copied()
    }

    /// Adds an entry. One that has this key already stays as it is.
    pub(super) fn insert(&mut self, key: K, value: V) -> Found {
        let Self { index, entries, hasher } = self;
        let key_of = |at: &u32| &entries[*at as usize].0;
        let entry =
            index.entry(hasher.hash_one(&key), |at| *key_of(at) == key, |at| hasher.hash_one(key_of(at)));
        match entry {
            Entry::Occupied(entry) => Found::Old(*entry.get()),
            Entry::Vacant(entry) => {
                let Some(at) = number(entries.vacant_key()) else { return Found::Full };
                entry.insert(at);
                entries.insert((key, value));
                Found::New(at)
            }
        }
    }

    /// Takes the entry with this number out. A later entry gets the number again.
    pub(super) fn remove(&mut self, at: u32) -> Option<(K, V)> {
        let Self { index, entries, hasher } = self;
        let (key, _) = entries.get(at as usize)?;
        if let Ok(entry) = index.find_entry(hasher.hash_one(key), |other| *other == at) {
            entry.remove();
        }
        entries.try_remove(at as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_of_removed_entries_are_used_again() {
        let mut table = Table::default();
        for round in 0..1000u32 {
            assert_eq!(table.insert(round, ()), Found::New(0));
            assert_eq!(table.remove(0), Some((round, ())));
            assert_eq!(table.remove(0), None);
        }
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn there_is_an_end_to_numbers() {
        assert_eq!((number(MAX_LEN - 1), number(MAX_LEN)), (Some(0xfffe_ffff), None));
    }

    proptest! {
        #[test]
        fn a_key_is_stored_once_until_it_is_removed(
            steps in prop::collection::vec((0..300u16, any::<bool>()), 0..1000),
        ) {
            let mut table = Table::default();
            let mut model = BTreeMap::new();
            for (step, (key, add)) in steps.into_iter().enumerate() {
                if add {
                    let expected = model.get(&key).map(|(at, _)| *at);
                    match table.insert(key, step) {
                        Found::Old(at) => prop_assert_eq!(Some(at), expected),
                        Found::New(at) => prop_assert_eq!(model.insert(key, (at, step)), None),
                        Found::Full => prop_assert!(false, "full"),
                    }
                } else {
                    let found = table.find(&key);
                    let removed = found.and_then(|at| table.remove(at));
                    prop_assert_eq!(removed.map(|(_, step)| (found, step)), model.remove(&key).map(|(at, step)| (Some(at), step)));
                }
                prop_assert_eq!(table.len(), model.len());
            }
            for (key, (at, step)) in &model {
                prop_assert_eq!(table.find(key), Some(*at));
                prop_assert_eq!(table.get(*at), Some((key, step)));
            }
        }
    }
}
