//! Where the leases lie: in slots of one cache line each, so that whatever is done to a lease touches little
//! memory.
//!
//! A slot is also the lease's node in the [wheel](super::wheel). That of a lease that is over stays filed:
//! the next lease that is granted takes it over, and, since its deadline is hardly ever nearer than that of
//! the one before, the wheel mostly doesn't even notice.

use std::hash::Hash;

use super::{
    index::{Found, Index, NONE},
    wheel::{NEVER, Node, Nodes},
};

/// Slots are allocated this many at once, and never move: growing copies nothing.
const CHUNK: usize = 4096;

/// What is kept of one lease. Times are milliseconds on the inner clock.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Slot<I> {
    pub(super) id: I,
    /// Without regard to `end_by`. While suspended: how much remains.
    pub(super) deadline: u64,
    pub(super) end_by: u64,
    pub(super) ttl: u64,
    pub(super) node: Node,
    /// The first of its items.
    pub(super) items: u32,
    /// Under which reign its end began.
    pub(super) reign: u16,
    /// How often its end has been offered.
    pub(super) tries: u8,
    pub(super) phase: Phase,
}

/// What a lease does. It's ending only under the reign in which the end began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Active,
    Suspended,
    Ending,
    /// Its cap came, or it was revoked, while it was suspended.
    EndingSuspended,
    /// It is over and forgotten.
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

    /// When it ends unless something happens.
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

    /// Whether its end has begun, under this reign.
    #[inline]
    pub(super) fn has_begun(&self, reign: u16) -> bool {
        matches!(self.phase, Phase::Ending | Phase::EndingSuspended) && self.reign == reign
    }

    /// Its end begins.
    pub(super) fn begin(&mut self, reign: u16) {
        self.reign = reign;
        self.tries = 0;
        self.phase = if self.is_suspended() { Phase::EndingSuspended } else { Phase::Ending };
    }

    /// It lives, whatever has begun.
    pub(super) fn live(&mut self) {
        self.tries = 0;
        self.phase = if self.is_suspended() { Phase::Suspended } else { Phase::Active };
    }
}

#[derive(Clone, Debug)]
pub(super) struct Slots<I> {
    index: Index,
    chunks: Vec<Vec<Slot<I>>>,
    len: usize,
    free: Vec<u32>,
}

impl<I> Default for Slots<I> {
    fn default() -> Self {
        Self { index: Index::default(), chunks: Vec::new(), len: 0, free: Vec::new() }
    }
}

impl<I> Slots<I> {
    /// How many leases there are.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    #[cfg(all(test, feature = "shared"))]
    pub(super) fn ever_used(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, n: u32) -> &Slot<I> {
        &self.chunks[n as usize / CHUNK][n as usize % CHUNK]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, n: u32) -> &mut Slot<I> {
        &mut self.chunks[n as usize / CHUNK][n as usize % CHUNK]
    }

    /// All leases that are not forgotten.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<I>> {
        self.chunks.iter().flatten().filter(|slot| slot.phase != Phase::Gone)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot<I>> {
        self.chunks.iter_mut().flatten()
    }
}

impl<I: Copy + Eq + Hash> Slots<I> {
    #[inline]
    pub(super) fn find(&self, id: I) -> Option<u32> {
        self.index.find(&id, |n| self.get(n).id == id)
    }

    /// Adds a lease, in a slot that may be filed already.
    pub(super) fn insert(&mut self, mut slot: Slot<I>) -> Found {
        let Self { index, chunks, len, free } = self;
        let n = free.last().map_or(*len, |n| *n as usize);
        let found = index.find_or_add(
            index.seek(&slot.id),
            |n| chunks[n as usize / CHUNK][n as usize % CHUNK].id == slot.id,
            n,
        );
        if found == Found::New(n as u32) {
            if free.pop().is_some() {
                let old = &mut chunks[n / CHUNK][n % CHUNK];
                slot.node = old.node;
                *old = slot;
            } else {
                if n.is_multiple_of(CHUNK) {
                    chunks.push(Vec::with_capacity(CHUNK));
                }
                slot.node.unfile(n as u32);
                chunks[n / CHUNK].push(slot);
                *len += 1;
            }
        }
        found
    }

    /// Forgets a lease, and answers which slot it had. What was in there can still be read.
    #[inline]
    pub(super) fn remove(&mut self, id: I) -> Option<u32> {
        let Self { index, chunks, free, .. } = self;
        let n = index.remove(&id, |n| chunks[n as usize / CHUNK][n as usize % CHUNK].id == id)?;
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
    fn slots_of_forgotten_leases_are_used_again() {
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
