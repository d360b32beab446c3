//! A hash index over numbered entries that lie elsewhere.
//!
//! An open table with linear probing, of one word per place: an entry's number, and 32 bits of its key's
//! hash. So a look-up costs one line of memory besides the entry's own, where a table with a separate array
//! of tags costs two; and an entry is looked at only if it's very likely the right one. An entry's home is
//! told by the highest bits of its hash, so when the table doubles, its entries stay in order: it's copied
//! from front to back, without looking at any entry.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::RandomState;

/// The most entries that can be numbered; the numbers above are for the owners' own ends.
pub(super) const MAX_LEN: usize = 0xffff_0000;

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

const SMALLEST: usize = 16;

/// What became of an entry that was to be added, and the number of that with this key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    New(u32),
    Old(u32),
    Full,
}

/// Half of a key's hash, and the number of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(u64);

impl Place {
    const EMPTY: Self = Self(u64::MAX);

    #[inline]
    fn new(hash: u32, at: u32) -> Self {
        Self(u64::from(hash) << 32 | u64::from(at))
    }

    #[inline]
    fn hash(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    fn at(self) -> u32 {
        self.0 as u32
    }
}

/// A key's hash, its home, and what lies there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought {
    hash: u32,
    home: usize,
    first: Place,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// A power of two of them, at most two thirds taken; or none at all.
    places: Vec<Place>,
    len: usize,
    hasher: RandomState,
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Looks where a key's entry would be. What's found holds until the index changes.
    #[inline]
    pub(super) fn seek(&self, key: &impl Hash) -> Sought {
        self.seek_hash((self.hasher.hash_one(key) >> 32) as u32)
    }

    #[inline]
    fn seek_hash(&self, hash: u32) -> Sought {
        let home = self.home(hash);
        Sought { hash, home, first: self.places.get(home).map_or(Place::EMPTY, |place| *place) }
    }

    /// The number of the entry with this key; `is` tells whether it's the entry with a number.
    #[inline]
    pub(super) fn find(&self, key: &impl Hash, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.probe(self.seek(key), is).ok().map(|(_, at)| at)
    }

    /// The number of the entry with the key that was sought, or `next` for a new one.
    #[inline]
    pub(super) fn find_or_add(&mut self, sought: Sought, is: impl Fn(u32) -> bool, next: usize) -> Found {
        let empty = match self.probe(sought, &is) {
            Ok((_, at)) => return Found::Old(at),
            Err(_) if next >= MAX_LEN => return Found::Full,
            Err(_) if 3 * (self.len + 1) > 2 * self.places.len() => {
                self.grow();
                self.probe(self.seek_hash(sought.hash), |_| false)
            }
            Err(p) => Err(p),
        };
        if let Err(p) = empty {
            self.places[p] = Place::new(sought.hash, next as u32);
            self.len += 1;
        }
        Found::New(next as u32)
    }

    /// Forgets the entry with this key, and answers its number.
    #[inline]
    pub(super) fn remove(&mut self, key: &impl Hash, is: impl Fn(u32) -> bool) -> Option<u32> {
        let (mut gap, at) = self.probe(self.seek(key), is).ok()?;
        self.len -= 1;
        // Those behind move up, unless that would take them in front of their homes.
        let mask = self.places.len() - 1;
        let mut p = gap;
        loop {
            p = (p + 1) & mask;
            let place = self.places[p];
            if place == Place::EMPTY {
                break;
            }
            let from_home = p.wrapping_sub(self.home(place.hash())) & mask;
            if from_home >= p.wrapping_sub(gap) & mask {
                self.places[gap] = place;
                gap = p;
            }
        }
        self.places[gap] = Place::EMPTY;
        Some(at)
    }

    /// Where the entry is and its number, or else the empty place where it would go.
    #[inline]
    fn probe(&self, sought: Sought, is: impl Fn(u32) -> bool) -> Result<(usize, u32), usize> {
        let Sought { hash, home: mut p, first: mut place } = sought;
        loop {
            if place == Place::EMPTY {
                return Err(p);
            }
            if place.hash() == hash && is(place.at()) {
                return Ok((p, place.at()));
            }
            p = (p + 1) & (self.places.len() - 1);
            place = self.places[p];
        }
    }

    #[cold]
    fn grow(&mut self) {
        let doubled = (2 * self.places.len()).max(SMALLEST);
        let old = std::mem::replace(&mut self.places, vec![Place::EMPTY; doubled]);
        for place in old {
            if place != Place::EMPTY
                && let Err(p) = self.probe(self.seek_hash(place.hash()), |_| false)
            {
                self.places[p] = place;
            }
        }
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.places.len() as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A key whose hash is wholly in the test's hand can't be made; so many keys in small tables collide
    /// instead.
    fn check(steps: Vec<(u16, bool)>) -> Result<(), TestCaseError> {
        let mut index = Index::default();
        let mut model = BTreeMap::new();
        let mut keys = Vec::new();
        for (key, add) in steps {
            let is = |at: u32| keys[at as usize] == key;
            if add {
                let next = keys.len();
                match index.find_or_add(index.seek(&key), is, next) {
                    Found::New(at) => prop_assert_eq!(model.insert(key, at), None),
                    Found::Old(at) => prop_assert_eq!(model.get(&key), Some(&at)),
                    Found::Full => prop_assert!(false, "full"),
                }
                keys.push(key);
            } else {
                prop_assert_eq!(index.remove(&key, is), model.remove(&key));
            }
            prop_assert_eq!(index.len(), model.len());
        }
        for (key, at) in &model {
            prop_assert_eq!(index.find(key, |at| keys[at as usize] == *key), Some(*at));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn keys_are_found_until_they_are_removed(
            steps in prop::collection::vec((0..300u16, any::<bool>()), 0..1000),
        ) {
            check(steps)?;
        }
    }

    #[test]
    fn there_is_an_end_to_numbers() {
        let mut index = Index::default();
        assert_eq!(index.find_or_add(index.seek(&1), |_| false, MAX_LEN), Found::Full);
        assert_eq!(index.len(), 0);
    }
}
