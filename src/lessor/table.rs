//! A hash table whose entries keep their place: what is stored gets a number, and the number stays valid until it's removed.
//!
//! The hash index holds only these numbers (5 bytes each), the entries lie densely in one vector. That takes a third less
//! memory than a map from keys to numbers beside it, which would hold each key twice, and lets other structures
//! (the wheel, the list of a lease's items) link entries by number.

use std::{hash::BuildHasher, hash::Hash, mem};

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table};

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// The most entries that a table holds. Others add a few numbers of their own to those of the table.
const MAX_LEN: usize = (u32::MAX - 65_536) as usize;

#[derive(Debug)]
enum Entry<K, V> {
    Free { next: u32 },
    Used { key: K, value: V },
}

/// What became of an entry that was to be added, and the number of that with this key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    New(u32),
    Old(u32),
    Full,
}

#[derive(Debug)]
pub(super) struct Table<K, V> {
    index: HashTable<u32>,
    entries: Vec<Entry<K, V>>,
    free: u32,
    hasher: RandomState,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { index: HashTable::new(), entries: Vec::new(), free: NONE, hasher: RandomState::default() }
    }
}

impl<K, V> Table<K, V> {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The entry with this number, if there is one.
    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<(&K, &V)> {
        match self.entries.get(at as usize) {
            Some(Entry::Used { key, value }) => Some((key, value)),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: u32) -> Option<(&K, &mut V)> {
        match self.entries.get_mut(at as usize) {
            Some(Entry::Used { key, value }) => Some((key, value)),
            _ => None,
        }
    }

    /// All entries, in the order of their numbers. O(most entries that there ever were).
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &K, &V)> {
        self.entries.iter().zip(0..).filter_map(|(entry, at)| match entry {
            Entry::Used { key, value } => Some((at, key, value)),
            Entry::Free { .. } => None,
        })
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// The number of the entry with this key.
    #[inline]
    pub(super) fn find(&self, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.index.find(hash, |&at| has_key(&self.entries, at, key)).copied()
    }

    /// Adds an entry, unless there is one with this key, which then stays as it is.
    pub(super) fn find_or_insert(&mut self, key: K, value: V) -> Found {
        let Self { index, entries, free, hasher } = self;
        let hash = hasher.hash_one(&key);
        let found = index.entry(
            hash,
            |&at| has_key(entries, at, &key),
            |&at| match &entries[at as usize] {
                Entry::Used { key, .. } => hasher.hash_one(key),
                Entry::Free { .. } => 0,
            },
        );
        let vacant = match found {
            hash_table::Entry::Occupied(old) => return Found::Old(*old.get()),
            hash_table::Entry::Vacant(vacant) => vacant,
        };
        let at = match entries.get(*free as usize) {
            Some(Entry::Free { next }) => mem::replace(free, *next),
            _ if entries.len() >= MAX_LEN => return Found::Full,
            _ => {
                entries.push(Entry::Free { next: NONE });
                (entries.len() - 1) as u32
            }
        };
        entries[at as usize] = Entry::Used { key, value };
        vacant.insert(at);
        Found::New(at)
    }

    /// Takes the entry with this number out. The number is given to a later entry again.
    pub(super) fn remove(&mut self, at: u32) -> Option<(K, V)> {
        let (key, _) = self.get(at)?;
        let hash = self.hasher.hash_one(key);
        if let Ok(found) = self.index.find_entry(hash, |&other| other == at) {
            found.remove();
        }
        self.vacate(at)
    }

    /// Takes the entry with this key out, and says which number it had.
    pub(super) fn remove_key(&mut self, key: &K) -> Option<(u32, V)> {
        let hash = self.hasher.hash_one(key);
        let Ok(found) = self.index.find_entry(hash, |&at| has_key(&self.entries, at, key)) else {
            return None;
        };
        let (at, _) = found.remove();
        self.vacate(at).map(|(_, value)| (at, value))
    }

    fn vacate(&mut self, at: u32) -> Option<(K, V)> {
        let entry = mem::replace(self.entries.get_mut(at as usize)?, Entry::Free { next: self.free });
        self.free = at;
        match entry {
            Entry::Used { key, value } => Some((key, value)),
            Entry::Free { .. } => None,
        }
    }
}

#[inline]
fn has_key<K: Eq, V>(entries: &[Entry<K, V>], at: u32, key: &K) -> bool {
    matches!(&entries[at as usize], Entry::Used { key: other, .. } if other == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_removed_entries_are_used_again() {
        let mut table = Table::default();
        for round in 0..1000u32 {
            assert_eq!(table.find_or_insert(round, ()), Found::New(0));
            assert_eq!(table.remove(0), Some((round, ())));
        }
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_key_is_held_once() {
        let mut table = Table::default();
        assert_eq!(table.find_or_insert("a", 1), Found::New(0));
        assert_eq!(table.find_or_insert("a", 2), Found::Old(0));
        assert_eq!(table.find(&"a"), Some(0));
        assert_eq!(table.get(0), Some((&"a", &1)));
        assert_eq!(table.remove_key(&"a"), Some((0, 1)));
        assert_eq!(table.find(&"a"), None);
        assert_eq!(table.get(0), None);
    }

    #[test]
    fn iteration_skips_what_was_removed() {
        let mut table = Table::default();
        for key in 0..5u32 {
            table.find_or_insert(key, ());
        }
        table.remove_key(&2);
        assert_eq!(table.iter().map(|(_, key, ())| *key).collect::<Vec<_>>(), [0, 1, 3, 4]);
    }
}
