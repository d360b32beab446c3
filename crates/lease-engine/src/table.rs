//! A hash table whose entries have numbers, valid until they are removed, by which other structures link them.

use std::hash::Hash;

use slab::Slab;

use super::index::{Found, Index, Sought};

#[derive(Clone, Debug)]
pub(super) struct Table<K, V> {
    index: Index,
    entries: Slab<(K, V)>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { index: Index::default(), entries: Slab::new() }
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
        self.index.find(key, |at| self.entries[at as usize].0 == *key)
    }

    /// Computes where a key's entry would be, so that the processor loads that memory while the caller does
    /// something else. Valid until the table changes.
    pub(super) fn seek(&self, key: &K) -> Sought {
        self.index.seek(key)
    }

    /// Adds an entry under a key that was sought. An entry that has this key already stays as it is.
    pub(super) fn insert_sought(&mut self, sought: Sought, key: K, value: V) -> Found {
        let Self { index, entries } = self;
        let next = entries.vacant_key();
        let found = index.find_or_add(sought, |at| entries[at as usize].0 == key, next);
        if let Found::New(_) = found {
            entries.insert((key, value));
        }
        found
    }

    /// Takes the entry with this number out. A later entry gets the number again.
    pub(super) fn remove(&mut self, at: u32) -> Option<(K, V)> {
        let Self { index, entries } = self;
        let (key, _) = entries.get(at as usize)?;
        index.remove(key, |other| other == at);
        entries.try_remove(at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert<V>(table: &mut Table<&'static str, V>, key: &'static str, value: V) -> Found {
        table.insert_sought(table.seek(&key), key, value)
    }

    #[test]
    fn numbers_of_removed_entries_are_used_again() {
        let mut table = Table::default();
        for round in 0..1000u32 {
            assert_eq!(insert(&mut table, "a", round), Found::New(0));
            assert_eq!(table.remove(0), Some(("a", round)));
            assert_eq!(table.remove(0), None);
        }
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_key_is_stored_once() {
        let mut table = Table::default();
        assert_eq!(insert(&mut table, "a", 1), Found::New(0));
        assert_eq!(insert(&mut table, "a", 2), Found::Old(0));
        assert_eq!(table.find(&"a"), Some(0));
        assert_eq!(table.get(0), Some((&"a", &1)));
        assert_eq!(table.remove(0), Some(("a", 1)));
        assert_eq!(table.find(&"a"), None);
        assert_eq!(table.get(0), None);
    }
}
