//! A hash index over numbered entries that lie elsewhere.
//!
//! Each place holds an entry's number and 32 bits of its key's hash, so the index grows without looking at a single entry,
//! and an entry is looked at only if it's very likely the right one. It's split into shards that grow one by one: growing
//! a shard stays within the processor's cache, and no insertion ever waits for a million entries to move.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table};

const SHARDS: usize = 64;

/// The most entries that can be numbered; the numbers above are for the owners' own ends.
pub(super) const MAX_LEN: usize = 0xffff_0000;

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// What became of an entry that was to be added, and the number of that with this key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    New(u32),
    Old(u32),
    Full,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    at: u32,
}

impl Place {
    /// The shards look at the lowest bits and the seven highest.
    #[inline]
    fn spread(hash: u32) -> u64 {
        u64::from(hash) << 32 | u64::from(hash)
    }
}

#[derive(Debug)]
pub(super) struct Index {
    shards: Vec<HashTable<Place>>,
    hasher: RandomState,
    len: usize,
}

impl Default for Index {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| HashTable::new()).collect();
        Self { shards, hasher: RandomState::default(), len: 0 }
    }
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of the entry with this key; `is` tells whether it's the entry with a number.
    #[inline]
    pub(super) fn find(&self, key: &impl Hash, is: impl Fn(u32) -> bool) -> Option<u32> {
        let (shard, hash) = self.split(key);
        let found = self.shards[shard].find(Place::spread(hash), |place| place.hash == hash && is(place.at));
        found.map(|place| place.at)
    }

    /// The number of the entry with this key, or the one that `add` gives to it; `None` from there means that there's no room.
    #[inline]
    pub(super) fn find_or_add(
        &mut self,
        key: &impl Hash,
        is: impl Fn(u32) -> bool,
        add: impl FnOnce() -> Option<u32>,
    ) -> Found {
        let (shard, hash) = self.split(key);
        let entry = self.shards[shard].entry(
            Place::spread(hash),
            |place| place.hash == hash && is(place.at),
            |place| Place::spread(place.hash),
        );
        match entry {
            hash_table::Entry::Occupied(old) => Found::Old(old.get().at),
            hash_table::Entry::Vacant(vacant) => match add() {
                Some(at) => {
                    vacant.insert(Place { hash, at });
                    self.len += 1;
                    Found::New(at)
                }
                None => Found::Full,
            },
        }
    }

    /// Forgets the entry with this key, and answers its number.
    #[inline]
    pub(super) fn remove(&mut self, key: &impl Hash, is: impl Fn(u32) -> bool) -> Option<u32> {
        let (shard, hash) = self.split(key);
        let found =
            self.shards[shard].find_entry(Place::spread(hash), |place| place.hash == hash && is(place.at));
        let (place, _) = found.ok()?.remove();
        self.len -= 1;
        Some(place.at)
    }

    /// The shard of a key, and the part of its hash that is kept: different bits.
    #[inline]
    fn split(&self, key: &impl Hash) -> (usize, u32) {
        let hash = self.hasher.hash_one(key);
        ((hash >> 32) as usize % SHARDS, hash as u32)
    }
}
