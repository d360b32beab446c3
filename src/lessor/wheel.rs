//! The wheel: numbered nodes ordered by time, every operation O(1).
//!
//! A node is filed by the highest six bits in which its time differs from the *cursor*, the time up to which everything
//! has been taken out: eleven levels of 64 slots cover 64 bits of milliseconds, and there is no horizon. When the cursor
//! enters a slot of a higher level, the slot's nodes move to lower levels (at most ten times, usually twice); a slot of
//! the lowest level holds one millisecond, so nodes come out exactly in order, those of one millisecond in the order in
//! which they were filed. A word of 64 bits per level says which slots hold anything, so empty time costs nothing.
//! (It's the radix heap of Ahuja, Mehlhorn, Orlin and Tarjan, with the digits of Varghese and Lauck's timing wheel.)
//!
//! Slots are rings of nodes through a sentinel, so that a node leaves its slot without knowing which it is in, and a
//! whole slot moves to another ring in O(1).
//!
//! Nodes may be filed too early: whoever takes them out says what their time really is, and those whose time is later
//! are filed anew, there and then. A renewal therefore doesn't touch the wheel at all, and pays later for at most
//! one move; while a lease is renewed, its node hardly ever comes down to the lowest level.

use std::{collections::BTreeSet, iter};

const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 11;

/// The ring of nodes that are on their way from a higher slot to lower ones.
const MOVING: u32 = (LEVELS * SLOTS) as u32;
/// The ring of nodes set aside by [`Wheel::set_aside`], oldest first.
const ASIDE: u32 = MOVING + 1;
/// The number of the first node that isn't a sentinel.
const FIRST: u32 = ASIDE + 1;

/// The time of a node that isn't filed.
pub(super) const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The time under which it's filed, or since when it has been set aside.
    at: u64,
    prev: u32,
    next: u32,
}

#[derive(Debug)]
pub(super) struct Wheel {
    nodes: Vec<Node>,
    occupied: [u64; LEVELS],
    cursor: u64,
    /// Nodes filed under a time before the cursor, which only a clock that stepped back asks for.
    early: BTreeSet<(u64, u32)>,
}

impl Wheel {
    pub(super) fn new(cursor: u64) -> Self {
        let nodes = (0..FIRST).map(|n| Node { at: NEVER, prev: n, next: n }).collect();
        Self { nodes, occupied: [0; LEVELS], cursor, early: BTreeSet::new() }
    }

    /// Makes room for node `n`; nodes are added in the order of their numbers.
    #[inline]
    pub(super) fn add(&mut self, n: u32) {
        let n = n + FIRST;
        if n as usize == self.nodes.len() {
            self.nodes.push(Node { at: NEVER, prev: n, next: n });
        }
    }

    /// The time under which node `n` is filed, or since when it has been set aside.
    pub(super) fn filed_at(&self, n: u32) -> u64 {
        self.nodes[(n + FIRST) as usize].at
    }

    /// Files node `n` under this time, wherever it was before.
    #[inline]
    pub(super) fn file(&mut self, n: u32, at: u64) {
        self.remove(n);
        if at < self.cursor {
            self.nodes[(n + FIRST) as usize].at = at;
            self.early.insert((at, n + FIRST));
        } else if at != NEVER {
            self.place(n + FIRST, at);
        }
    }

    /// Takes node `n` out, wherever it is.
    #[inline]
    pub(super) fn remove(&mut self, n: u32) {
        let n = n + FIRST;
        let Node { at, prev, next } = self.nodes[n as usize];
        if next != n {
            self.nodes[prev as usize].next = next;
            self.nodes[next as usize].prev = prev;
            if prev == next && prev < MOVING {
                self.occupied[prev as usize / SLOTS] &= !(1 << (prev as usize % SLOTS));
            }
        } else if at != NEVER {
            self.early.remove(&(at, n));
        }
        self.nodes[n as usize] = Node { at: NEVER, prev: n, next: n };
    }

    /// Moves node `n` into the ring of those set aside: no longer filed, but not forgotten.
    pub(super) fn set_aside(&mut self, n: u32, since: u64) {
        self.remove(n);
        self.push(n + FIRST, ASIDE, since);
    }

    /// The node that has been set aside for longest, and since when.
    pub(super) fn oldest_aside(&self) -> Option<(u32, u64)> {
        let n = self.nodes[ASIDE as usize].next;
        (n != ASIDE).then(|| (n - FIRST, self.nodes[n as usize].at))
    }

    /// The nodes that have been set aside, oldest first, and since when.
    pub(super) fn aside(&self) -> impl Iterator<Item = (u32, u64)> {
        let mut n = self.nodes[ASIDE as usize].next;
        iter::from_fn(move || {
            let node = self.nodes[n as usize];
            let found = (n != ASIDE).then(|| (n - FIRST, node.at));
            n = node.next;
            found
        })
    }

    /// Whatever is set aside is to be filed again, as soon as nodes are taken out. O(1).
    pub(super) fn recall_aside(&mut self) {
        self.splice_into_moving(ASIDE);
    }

    /// No node comes out before this time; `None` when none is filed. O(levels).
    ///
    /// Not later than the earliest node's time, and earlier where that node has not come down to the lowest level yet.
    pub(super) fn next(&self) -> Option<u64> {
        if self.nodes[MOVING as usize].next != MOVING {
            return Some(self.early.first().map_or(self.cursor, |&(at, _)| at.min(self.cursor)));
        }
        let early = self.early.first().map(|&(at, _)| at);
        early.or_else(|| self.lowest().map(|(.., start)| start))
    }

    /// When nothing is filed the cursor may go anywhere: here. Keeps what is filed next close to the lowest level.
    #[inline]
    pub(super) fn settle(&mut self, now: u64) {
        if self.occupied == [0; LEVELS] && self.early.is_empty() && self.nodes[MOVING as usize].next == MOVING
        {
            self.cursor = now;
        }
    }

    /// The first node whose time has come by `now`; it stays filed. `None` too when `work` is used up: each move of a node takes one.
    ///
    /// `time` tells a node's real time from its number and the time under which it's filed.
    #[inline]
    pub(super) fn first_due(
        &mut self,
        now: u64,
        work: &mut usize,
        time: impl Fn(u32, u64) -> u64,
    ) -> Option<u32> {
        loop {
            let moving = self.nodes[MOVING as usize].next;
            let n = if moving != MOVING {
                moving
            } else if let Some(&(at, n)) = self.early.first() {
                if at > now {
                    return None;
                }
                n
            } else {
                let lowest = self.lowest();
                let Some((level, slot, start)) = lowest.filter(|&(.., start)| start <= now) else {
                    self.cursor = self.cursor.max(now);
                    return None;
                };
                self.cursor = start;
                if level > 0 {
                    self.splice_into_moving((level * SLOTS + slot) as u32);
                    continue;
                }
                self.nodes[slot].next
            };
            let filed = self.nodes[n as usize].at;
            let real = time(n - FIRST, filed);
            if moving == MOVING && real <= filed {
                return Some(n - FIRST);
            }
            if *work == 0 {
                return None;
            }
            *work -= 1;
            self.file(n - FIRST, real);
        }
    }

    /// The first slot that holds anything: level, slot, and the time at which it starts.
    fn lowest(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let above = u64::MAX.checked_shl((level as u32 + 1) * LEVEL_BITS).unwrap_or(0);
        Some((level, slot as usize, self.cursor & above | u64::from(slot) << (level as u32 * LEVEL_BITS)))
    }

    fn place(&mut self, n: u32, at: u64) {
        let differs = at ^ self.cursor;
        let level = (u64::BITS - 1 - (differs | 1).leading_zeros()) / LEVEL_BITS;
        let slot = at >> (level * LEVEL_BITS) & (SLOTS as u64 - 1);
        self.occupied[level as usize] |= 1 << slot;
        self.push(n, level * SLOTS as u32 + slot as u32, at);
    }

    fn push(&mut self, n: u32, ring: u32, at: u64) {
        let last = self.nodes[ring as usize].prev;
        self.nodes[n as usize] = Node { at, prev: last, next: ring };
        self.nodes[last as usize].next = n;
        self.nodes[ring as usize].prev = n;
    }

    fn splice_into_moving(&mut self, ring: u32) {
        let Node { prev: last, next: first, .. } = self.nodes[ring as usize];
        if first == ring {
            return;
        }
        self.nodes[ring as usize] = Node { at: NEVER, prev: ring, next: ring };
        if ring < MOVING {
            self.occupied[ring as usize / SLOTS] &= !(1 << (ring as usize % SLOTS));
        }
        let before = self.nodes[MOVING as usize].prev;
        self.nodes[before as usize].next = first;
        self.nodes[first as usize].prev = before;
        self.nodes[last as usize].next = MOVING;
        self.nodes[MOVING as usize].prev = last;
    }
}
