//! The wheel: numbered nodes ordered by time, every operation O(1).
//!
//! A node is filed by the highest six bits in which its time differs from the *cursor*, the time up to which
//! everything has been taken out: eleven levels of 64 slots cover 64 bits of milliseconds, and there is no
//! horizon. When the cursor enters a slot of a higher level, the slot's nodes move to lower levels (at most
//! ten times, usually twice); a slot of the lowest level holds one millisecond, so nodes come out exactly in
//! order, those of one millisecond in the order in which they were filed. A word of 64 bits per level says
//! which slots hold anything, so empty time costs nothing. (It's the radix heap of Ahuja, Mehlhorn, Orlin and
//! Tarjan, with the digits of Varghese and Lauck's timing wheel.)
//!
//! Slots are rings of nodes through a head, so that a node leaves its slot without knowing which it is in,
//! and a whole slot moves to another ring in O(1). The nodes lie in whatever they belong to ([`Nodes`]).
//!
//! Nodes may be filed too early: whoever takes them out says what their time really is, and those whose time
//! is later are filed anew, there and then. A renewal therefore doesn't touch the wheel at all, and pays
//! later for at most one move; while a lease is renewed, its node hardly ever comes down to the lowest level.

#![cfg_attr(not(feature = "bench"), allow(unreachable_pub, reason = "public for the benchmark alone"))]
#![cfg_attr(feature = "bench", allow(missing_docs, reason = "public for the benchmark alone"))]

use std::{collections::BTreeSet, iter};

const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 11;

/// Rings are numbered from here: first the slots, level by level.
const HEADS: u32 = 0xffff_0000;
/// The ring of nodes that are on their way from a higher slot to lower ones.
const MOVING: u32 = HEADS + (LEVELS * SLOTS) as u32;
/// The ring of nodes set aside by [`Wheel::set_aside`], oldest first.
const ASIDE: u32 = MOVING + 1;

/// The time of a node that isn't filed.
pub const NEVER: u64 = u64::MAX;

/// A node's place in the wheel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node {
    /// The time under which it's filed, or since when it has been set aside.
    pub at: u64,
    prev: u32,
    next: u32,
}

impl Node {
    /// Makes this node `n`, which is filed nowhere.
    pub fn unfile(&mut self, n: u32) {
        *self = Self { at: NEVER, prev: n, next: n };
    }
}

/// Where the nodes lie, by number.
pub trait Nodes {
    fn node(&self, n: u32) -> &Node;
    fn node_mut(&mut self, n: u32) -> &mut Node;
}

impl Nodes for Vec<Node> {
    fn node(&self, n: u32) -> &Node {
        &self[n as usize]
    }

    fn node_mut(&mut self, n: u32) -> &mut Node {
        &mut self[n as usize]
    }
}

#[derive(Clone, Debug)]
pub struct Wheel {
    heads: Vec<Node>,
    occupied: [u64; LEVELS],
    cursor: u64,
    /// Nodes filed under a time before the cursor, which only a clock that stepped back asks for.
    early: BTreeSet<(u64, u32)>,
}

impl Wheel {
    pub fn new(cursor: u64) -> Self {
        let heads = (HEADS..=ASIDE).map(|head| Node { at: NEVER, prev: head, next: head }).collect();
        Self { heads, occupied: [0; LEVELS], cursor, early: BTreeSet::new() }
    }

    /// Files node `n` under this time, wherever it was before.
    #[inline]
    pub fn file(&mut self, nodes: &mut impl Nodes, n: u32, at: u64) {
        self.remove(nodes, n);
        if at < self.cursor {
            nodes.node_mut(n).at = at;
            self.early.insert((at, n));
        } else if at != NEVER {
            self.place(nodes, n, at);
        }
    }

    /// Takes node `n` out, wherever it is.
    #[inline]
    pub fn remove(&mut self, nodes: &mut impl Nodes, n: u32) {
        let Node { at, prev, next } = *nodes.node(n);
        if next != n {
            self.node(nodes, prev).next = next;
            self.node(nodes, next).prev = prev;
            if prev == next {
                self.vacate(prev);
            }
        } else if at != NEVER {
            self.early.remove(&(at, n));
        }
        nodes.node_mut(n).unfile(n);
    }

    /// Moves node `n` into the ring of those set aside: no longer filed, but not forgotten.
    pub fn set_aside(&mut self, nodes: &mut impl Nodes, n: u32, since: u64) {
        self.remove(nodes, n);
        self.push(nodes, n, ASIDE, since);
    }

    /// The nodes that have been set aside, oldest first, and since when.
    pub fn aside(&self, nodes: &impl Nodes) -> impl Iterator<Item = (u32, u64)> {
        let mut n = self.heads[(ASIDE - HEADS) as usize].next;
        iter::from_fn(move || {
            let node = (n != ASIDE).then(|| *nodes.node(n))?;
            let found = (n, node.at);
            n = node.next;
            Some(found)
        })
    }

    /// Moves all nodes, those set aside too, to another wheel, which files each when it takes nodes out.
    /// O(1): whole rings move.
    pub fn pour_into(&mut self, nodes: &mut impl Nodes, other: &mut Self) {
        for level in 0..LEVELS {
            while self.occupied[level] != 0 {
                let slot = level as u32 * SLOTS as u32 + self.occupied[level].trailing_zeros();
                let ring = self.empty(HEADS + slot);
                other.append_moving(nodes, ring);
            }
        }
        for ring in [MOVING, ASIDE] {
            let ring = self.empty(ring);
            other.append_moving(nodes, ring);
        }
        while let Some((at, n)) = self.early.pop_first() {
            nodes.node_mut(n).unfile(n);
            other.push(nodes, n, MOVING, at);
        }
    }

    /// No node comes out before this time; `None` when none is filed. O(levels).
    ///
    /// Not later than the earliest node's time, and earlier where that node has not come down to the lowest
    /// level yet.
    pub fn next(&self) -> Option<u64> {
        let early = self.early.first().map(|&(at, _)| at);
        if self.first_in(MOVING).is_some() {
            return Some(early.map_or(self.cursor, |at| at.min(self.cursor)));
        }
        early.or_else(|| self.lowest().map(|(.., start)| start))
    }

    /// When nothing is filed the cursor may go anywhere: here. Keeps what is filed next close to the lowest
    /// level.
    #[inline]
    pub fn settle(&mut self, now: u64) {
        if self.occupied == [0; LEVELS] && self.early.is_empty() && self.first_in(MOVING).is_none() {
            self.cursor = now;
        }
    }

    /// The first node whose time has come by `now`; it stays filed. `None` too when `work` is used up: each
    /// move of a node takes one.
    ///
    /// `time` tells a node's real time from its number and the time under which it's filed.
    #[inline]
    pub fn first_due<N: Nodes>(
        &mut self,
        nodes: &mut N,
        now: u64,
        work: &mut usize,
        time: impl Fn(&N, u32, u64) -> u64,
    ) -> Option<u32> {
        loop {
            let moving = self.first_in(MOVING);
            let n = if let Some(n) = moving {
                n
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
                let head = HEADS + (level * SLOTS + slot) as u32;
                if level > 0 {
                    let ring = self.empty(head);
                    self.append_moving(nodes, ring);
                    continue;
                }
                self.first_in(head)?
            };
            let filed = nodes.node(n).at;
            let real = time(nodes, n, filed);
            if moving.is_none() && real <= filed {
                return Some(n);
            }
            if *work == 0 {
                return None;
            }
            *work -= 1;
            self.file(nodes, n, real);
        }
    }

    /// The first slot that holds anything: level, slot, and the time at which it starts.
    fn lowest(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let above = u64::MAX.checked_shl((level as u32 + 1) * LEVEL_BITS).unwrap_or(0);
        Some((level, slot as usize, self.cursor & above | u64::from(slot) << (level as u32 * LEVEL_BITS)))
    }

    fn place(&mut self, nodes: &mut impl Nodes, n: u32, at: u64) {
        let differs = at ^ self.cursor;
        let level = (u64::BITS - 1 - (differs | 1).leading_zeros()) / LEVEL_BITS;
        let slot = at >> (level * LEVEL_BITS) & (SLOTS as u64 - 1);
        self.occupied[level as usize] |= 1 << slot;
        self.push(nodes, n, HEADS + level * SLOTS as u32 + slot as u32, at);
    }

    fn push(&mut self, nodes: &mut impl Nodes, n: u32, ring: u32, at: u64) {
        let last = self.node(nodes, ring).prev;
        *nodes.node_mut(n) = Node { at, prev: last, next: ring };
        self.node(nodes, last).next = n;
        self.node(nodes, ring).prev = n;
    }

    /// Empties a ring: the first and the last of its nodes, if it had any, still linked to one another.
    fn empty(&mut self, ring: u32) -> Option<(u32, u32)> {
        let head = &mut self.heads[(ring - HEADS) as usize];
        let ends = (head.next, head.prev);
        head.unfile(ring);
        self.vacate(ring);
        (ends.0 != ring).then_some(ends)
    }

    fn append_moving(&mut self, nodes: &mut impl Nodes, ring: Option<(u32, u32)>) {
        let Some((first, last)) = ring else { return };
        let before = self.node(nodes, MOVING).prev;
        self.node(nodes, before).next = first;
        self.node(nodes, first).prev = before;
        self.node(nodes, last).next = MOVING;
        self.node(nodes, MOVING).prev = last;
    }

    /// This ring is empty now.
    fn vacate(&mut self, ring: u32) {
        if ring < MOVING {
            let slot = (ring - HEADS) as usize;
            self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        }
    }

    fn first_in(&self, ring: u32) -> Option<u32> {
        let first = self.heads[(ring - HEADS) as usize].next;
        (first != ring).then_some(first)
    }

    /// A node or a head.
    #[inline]
    fn node<'a>(&'a mut self, nodes: &'a mut impl Nodes, n: u32) -> &'a mut Node {
        if n >= HEADS { &mut self.heads[(n - HEADS) as usize] } else { nodes.node_mut(n) }
    }
}
