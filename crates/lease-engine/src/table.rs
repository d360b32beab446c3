//! A hash table whose entries have numbers, valid until they're removed, by which other structures link them.

use std::{hash::Hash, mem};

use super::index::{Found, Index, NONE, Sought};

#[derive(Clone, Debug)]
enum Entry<K, V> {
    Free { next: u32 },
    Used { key: K, value: V },
}

#[derive(Clone, Debug)]
pub(super) struct Table<K, V> {
    index: Index,
    entries: Vec<Entry<K, V>>,
    free: u32,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { index: Index::default(), entries: Vec::new(), free: NONE }
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
    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut V> {
        match self.entries.get_mut(at as usize) {
            Some(Entry::Used { value, .. }) => Some(value),
            _ => None,
        }
    }

    #[cfg(any(feature = "queue", test))]
    /// All entries, in the order of their numbers. O(the most entries that there ever were).
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Used { key, value } => Some((key, value)),
            Entry::Free { .. } => None,
        })
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// The number of the entry with this key.
    pub(super) fn find(&self, key: &K) -> Option<u32> {
        self.index.find(key, |at| has_key(&self.entries, at, key))
    }

    /// Looks where a key's entry would be, so that its memory is on its way while the caller does something
    /// else. What's found holds until the table changes.
    pub(super) fn seek(&self, key: &K) -> Sought {
        self.index.seek(key)
    }

    #[cfg(any(feature = "queue", test))]
    /// Adds an entry, unless there is one with this key, which then stays as it is.
    pub(super) fn find_or_insert(&mut self, key: K, value: V) -> Found {
        self.insert_sought(self.index.seek(&key), key, value)
    }

    /// As [`find_or_insert`](Self::find_or_insert), of a key that was sought.
    pub(super) fn insert_sought(&mut self, sought: Sought, key: K, value: V) -> Found {
        let Self { index, entries, free } = self;
        let next = if *free == NONE { entries.len() } else { *free as usize };
        let found = index.find_or_add(sought, |at| has_key(entries, at, &key), next);
        if let Found::New(at) = found {
            let used = Entry::Used { key, value };
            match entries.get_mut(at as usize) {
                None => entries.push(used),
                Some(entry) => {
                    if let Entry::Free { next } = mem::replace(entry, used) {
                        *free = next;
                    }
                }
            }
        }
        found
    }

    /// Takes the entry with this number out. The number is given to a later entry again.
    pub(super) fn remove(&mut self, at: u32) -> Option<(K, V)> {
        let Self { index, entries, .. } = self;
        let Some(Entry::Used { key, .. }) = entries.get(at as usize) else { return None };
        index.remove(key, |other| other == at);
        self.vacate(at)
    }

    #[cfg(any(feature = "queue", test))]
    /// Takes the entry with this key out, and says which number it had.
    pub(super) fn remove_key(&mut self, key: &K) -> Option<(u32, V)> {
        let Self { index, entries, .. } = self;
        let at = index.remove(key, |at| has_key(entries, at, key))?;
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
        assert_eq!(table.iter().map(|(key, ())| *key).collect::<Vec<_>>(), [0, 1, 3, 4]);
    }
}
