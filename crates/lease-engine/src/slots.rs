//! Memory of the leases: slots of one cache line each, so that each operation touches little memory.
//!
//! A slot contains the lease's node in the [wheel](super::wheel). After the lease's end the node stays filed, and the
//! next granted lease takes the slot. Its deadline is rarely earlier, so the node rarely has to move.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};

use super::{
    table::{Found, NONE, number},
    wheel::{NEVER, Node, Nodes},
};

/// Slots are allocated by this number, and never move, so growing copies none.
const CHUNK: usize = 4096;

/// A lease. Times are milliseconds on the inner clock.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Slot<I> {
    pub(super) id: I,
    /// Regardless of `end_by`. While the lease is suspended: how much remains.
    pub(super) deadline: u64,
    pub(super) end_by: u64,
    pub(super) ttl: u64,
    pub(super) node: Node,
    /// Its first item.
    pub(super) items: u32,
    /// The reign under which its end began.
    pub(super) reign: u16,
    /// How often its end was offered.
    pub(super) tries: u8,
    pub(super) phase: Phase,
}

/// The phase of a lease. It is ending only under the reign in which its end began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Active,
    Suspended,
    Ending,
    /// It reached its cap, or was revoked, while it was suspended.
    EndingSuspended,
    /// It has ended.
    Gone,
}

impl<I> Slot<I> {
    pub(super) fn new(id: I, ttl: u64, deadline: u64) -> Self {
        Self {
            id,
            deadline,
            end_by: NEVER,
            ttl,
            node: Node::default(),
            items: NONE,
            reign: 0,
            tries: 0,
            phase: Phase::Active,
        }
    }

    /// When it ends unless it is renewed.
    #[inline]
    pub(super) fn due(&self) -> u64 {
        match self.phase {
            Phase::Active | Phase::Ending => self.deadline.min(self.end_by),
            Phase::Suspended | Phase::EndingSuspended => self.end_by,
            Phase::Gone => NEVER,
        }
    }

    pub(super) fn is_suspended(&self) -> bool {
        matches!(self.phase, Phase::Suspended | Phase::EndingSuspended)
    }

    /// Whether its end has begun under this reign.
    #[inline]
    pub(super) fn has_begun(&self, reign: u16) -> bool {
        matches!(self.phase, Phase::Ending | Phase::EndingSuspended) && self.reign == reign
    }

    /// Begins its end.
    pub(super) fn begin(&mut self, reign: u16) {
        self.reign = reign;
        self.tries = 0;
        self.phase = if self.is_suspended() { Phase::EndingSuspended } else { Phase::Ending };
    }

    /// Cancels its end.
    pub(super) fn live(&mut self) {
        self.tries = 0;
        self.phase = if self.is_suspended() { Phase::Suspended } else { Phase::Active };
    }
}

#[derive(Clone, Debug)]
pub(super) struct Slots<I> {
    /// The slots of all leases, by id.
    index: HashTable<u32>,
    hasher: RandomState,
    chunks: Vec<Vec<Slot<I>>>,
    len: usize,
    free: Vec<u32>,
}

impl<I> Default for Slots<I> {
    fn default() -> Self {
        Self {
            index: HashTable::new(),
            hasher: RandomState::default(),
            chunks: Vec::new(),
            len: 0,
            free: Vec::new(),
        }
    }
}

impl<I> Slots<I> {
    /// How many leases there are.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    #[cfg(test)]
    pub(super) fn ever_used(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, n: u32) -> &Slot<I> {
        slot(&self.chunks, n)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, n: u32) -> &mut Slot<I> {
        &mut self.chunks[n as usize / CHUNK][n as usize % CHUNK]
    }

    /// All leases.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<I>> {
        self.chunks.iter().flatten().filter(|slot| slot.phase != Phase::Gone)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot<I>> {
        self.chunks.iter_mut().flatten()
    }
}

#[inline]
fn slot<I>(chunks: &[Vec<Slot<I>>], n: u32) -> &Slot<I> {
    &chunks[n as usize / CHUNK][n as usize % CHUNK]
}

impl<I: Copy + Eq + Hash> Slots<I> {
    #[inline]
    pub(super) fn find(&self, id: I) -> Option<u32> {
        self.index.find(self.hasher.hash_one(id), |n| self.get(*n).id == id).copied()
    }

    /// Adds a lease, in a slot that may be filed.
    pub(super) fn insert(&mut self, mut new: Slot<I>) -> Found {
        let Self { index, hasher, chunks, len, free } = self;
        let hash = hasher.hash_one(new.id);
        let is = |n: &u32| slot(chunks, *n).id == new.id;
        let entry = match index.entry(hash, is, |n| hasher.hash_one(slot(chunks, *n).id)) {
            Entry::Occupied(entry) => return Found::Old(*entry.get()),
            Entry::Vacant(entry) => entry,
        };
        if let Some(n) = free.pop() {
            entry.insert(n);
            let old = &mut chunks[n as usize / CHUNK][n as usize % CHUNK];
            new.node = old.node;
            *old = new;
            return Found::New(n);
        }
        let Some(n) = number(*len) else { return Found::Full };
        entry.insert(n);
        if len.is_multiple_of(CHUNK) {
            chunks.push(Vec::with_capacity(CHUNK));
        }
        new.node.unfile(n);
        chunks[*len / CHUNK].push(new);
        *len += 1;
        Found::New(n)
    }

    /// Removes a lease, and returns its slot, whose contents stay readable.
    #[inline]
    pub(super) fn remove(&mut self, id: I) -> Option<u32> {
        let Self { index, hasher, chunks, free, .. } = self;
        let entry = index.find_entry(hasher.hash_one(id), |n| slot(chunks, *n).id == id).ok()?;
        let (n, _) = entry.remove();
        free.push(n);
        Some(n)
    }
}

impl<I> Nodes for Slots<I> {
    #[inline]
    fn node(&self, n: u32) -> &Node {
        &self.get(n).node
    }

    #[inline]
    fn node_mut(&mut self, n: u32) -> &mut Node {
        &mut self.get_mut(n).node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_one_cache_line_also_for_ids_of_16_bytes() {
        assert_eq!(size_of::<Slot<u64>>(), 64);
        assert_eq!(size_of::<Slot<u128>>(), 64);
    }

    #[test]
    fn slots_of_ended_leases_are_used_again() {
        let mut slots = Slots::default();
        for id in 0..1000u64 {
            assert_eq!(slots.insert(Slot::new(id, 1, 1)), Found::New(0));
            assert_eq!(slots.insert(Slot::new(id, 1, 1)), Found::Old(0));
            assert_eq!(slots.remove(id), Some(0));
            assert_eq!(slots.remove(id), None);
        }
        assert_eq!(slots.len(), 0);
    }

    #[test]
    fn leases_are_found_across_chunks() {
        let mut slots = Slots::default();
        let ids = 0..3 * CHUNK as u64 + 1;
        ids.clone().for_each(|id| assert_eq!(slots.insert(Slot::new(id, id, 1)), Found::New(id as u32)));
        assert!(ids.clone().all(|id| slots.find(id).is_some_and(|n| slots.get(n).ttl == id)));
        assert!(slots.iter().map(|slot| slot.id).eq(ids));
    }
}
