//! Why a wheel: the structure that the lessor keeps its deadlines in, beside others, on the life of a million
//! leases.
//!
//! All are granted within a third of the TTL, renewed three times each, in another order, while time goes on,
//! and then end. Each queue holds numbers ordered by deadlines that lie in a vector beside it. `benches/run.sh queues`; the number of leases may be given.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    dead_code,
    unreachable_pub
)]

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    env,
    hint::black_box,
    time::Duration,
};

use lease_engine::wheel::{Node, Wheel};
use rustix::time::{ClockId, clock_gettime};

trait Queue {
    const NAME: &'static str;
    fn new(n: usize) -> Self;
    fn file(&mut self, lease: u32, at: u64);
    /// The lease's deadline has become later.
    fn renewed(&mut self, lease: u32, from: u64, to: u64);
    /// Takes out one lease whose deadline has come.
    fn pop(&mut self, now: u64, deadlines: &[u64]) -> Option<u32>;
    /// Takes out a lease; false where it can't.
    fn remove(&mut self, lease: u32, at: u64) -> bool;
}

/// The wheel as the lessor uses it: renewals leave it alone.
struct LazyWheel(Wheel, Vec<Node>);

impl Queue for LazyWheel {
    const NAME: &'static str = "wheel, lazy (ours)";

    fn new(n: usize) -> Self {
        let mut nodes = vec![Node::default(); n];
        nodes.iter_mut().zip(0..).for_each(|(node, n)| node.unfile(n));
        Self(Wheel::new(0), nodes)
    }

    fn file(&mut self, lease: u32, at: u64) {
        self.0.file(&mut self.1, lease, at);
    }

    fn renewed(&mut self, _: u32, _: u64, _: u64) {}

    fn pop(&mut self, now: u64, deadlines: &[u64]) -> Option<u32> {
        let time = |_: &Vec<Node>, n: u32, _| deadlines[n as usize];
        let lease = self.0.first_due(&mut self.1, now, &mut { usize::MAX }, time)?;
        self.0.remove(&mut self.1, lease);
        Some(lease)
    }

    fn remove(&mut self, lease: u32, _: u64) -> bool {
        self.0.remove(&mut self.1, lease);
        true
    }
}

/// A timing wheel as usual: each renewal moves the lease.
struct EagerWheel(LazyWheel);

impl Queue for EagerWheel {
    const NAME: &'static str = "timing wheel, eager";

    fn new(n: usize) -> Self {
        Self(LazyWheel::new(n))
    }

    fn file(&mut self, lease: u32, at: u64) {
        self.0.file(lease, at);
    }

    fn renewed(&mut self, lease: u32, _: u64, to: u64) {
        self.0.file(lease, to);
    }

    fn pop(&mut self, now: u64, deadlines: &[u64]) -> Option<u32> {
        self.0.pop(now, deadlines)
    }

    fn remove(&mut self, lease: u32, at: u64) -> bool {
        self.0.remove(lease, at)
    }
}

/// std's heap; leases that were renewed are put back when they come up.
struct LazyHeap(BinaryHeap<Reverse<(u64, u32)>>);

impl Queue for LazyHeap {
    const NAME: &'static str = "binary heap, lazy";

    fn new(_: usize) -> Self {
        Self(BinaryHeap::new())
    }

    fn file(&mut self, lease: u32, at: u64) {
        self.0.push(Reverse((at, lease)));
    }

    fn renewed(&mut self, _: u32, _: u64, _: u64) {}

    fn pop(&mut self, now: u64, deadlines: &[u64]) -> Option<u32> {
        loop {
            let mut first = self.0.peek_mut()?;
            let Reverse((at, lease)) = *first;
            let real = deadlines[lease as usize];
            if at > now {
                return None;
            } else if real > at {
                *first = Reverse((real, lease));
            } else {
                std::collections::binary_heap::PeekMut::pop(first);
                return Some(lease);
            }
        }
    }

    fn remove(&mut self, _: u32, _: u64) -> bool {
        false
    }
}

/// A heap that knows where each lease is, as etcd has it.
struct IndexedHeap {
    heap: Vec<(u64, u32)>,
    place: Vec<u32>,
}

impl IndexedHeap {
    fn put(&mut self, at: usize, entry: (u64, u32)) {
        self.heap[at] = entry;
        self.place[entry.1 as usize] = at as u32;
    }

    fn up(&mut self, mut at: usize) {
        let entry = self.heap[at];
        while at > 0 && self.heap[(at - 1) / 2] > entry {
            self.put(at, self.heap[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        self.put(at, entry);
    }

    fn down(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let child = (2 * at + 1..self.heap.len().min(2 * at + 3)).min_by_key(|child| self.heap[*child]);
            match child {
                Some(child) if self.heap[child] < entry => {
                    self.put(at, self.heap[child]);
                    at = child;
                }
                _ => break,
            }
        }
        self.put(at, entry);
    }
}

impl Queue for IndexedHeap {
    const NAME: &'static str = "indexed heap, eager (etcd's)";

    fn new(n: usize) -> Self {
        Self { heap: Vec::new(), place: vec![0; n] }
    }

    fn file(&mut self, lease: u32, at: u64) {
        self.heap.push((at, lease));
        self.up(self.heap.len() - 1);
    }

    fn renewed(&mut self, lease: u32, _: u64, to: u64) {
        let at = self.place[lease as usize] as usize;
        self.heap[at].0 = to;
        self.down(at);
    }

    fn pop(&mut self, now: u64, _: &[u64]) -> Option<u32> {
        let &(at, lease) = self.heap.first().filter(|(at, _)| *at <= now)?;
        self.remove(lease, at);
        Some(lease)
    }

    fn remove(&mut self, lease: u32, _: u64) -> bool {
        let at = self.place[lease as usize] as usize;
        let last = self.heap.pop().expect("it is in there");
        if at < self.heap.len() {
            self.put(at, last);
            self.up(at);
            self.down(self.place[last.1 as usize] as usize);
        }
        true
    }
}

struct EagerTree(BTreeSet<(u64, u32)>);

impl Queue for EagerTree {
    const NAME: &'static str = "B-tree, eager";

    fn new(_: usize) -> Self {
        Self(BTreeSet::new())
    }

    fn file(&mut self, lease: u32, at: u64) {
        self.0.insert((at, lease));
    }

    fn renewed(&mut self, lease: u32, from: u64, to: u64) {
        self.0.remove(&(from, lease));
        self.0.insert((to, lease));
    }

    fn pop(&mut self, now: u64, _: &[u64]) -> Option<u32> {
        self.0.first().filter(|(at, _)| *at <= now)?;
        self.0.pop_first().map(|(_, lease)| lease)
    }

    fn remove(&mut self, lease: u32, at: u64) -> bool {
        self.0.remove(&(at, lease))
    }
}

struct LazyTree(BTreeSet<(u64, u32)>);

impl Queue for LazyTree {
    const NAME: &'static str = "B-tree, lazy";

    fn new(_: usize) -> Self {
        Self(BTreeSet::new())
    }

    fn file(&mut self, lease: u32, at: u64) {
        self.0.insert((at, lease));
    }

    fn renewed(&mut self, _: u32, _: u64, _: u64) {}

    fn pop(&mut self, now: u64, deadlines: &[u64]) -> Option<u32> {
        loop {
            self.0.first().filter(|(at, _)| *at <= now)?;
            let (at, lease) = self.0.pop_first()?;
            let real = deadlines[lease as usize];
            if real <= at {
                return Some(lease);
            }
            self.0.insert((real, lease));
        }
    }

    fn remove(&mut self, _: u32, _: u64) -> bool {
        false
    }
}

/// What this thread has been computing for, per lease, in nanoseconds.
fn timed(leases: usize, act: impl FnOnce()) -> f64 {
    let now = || -> Duration { clock_gettime(ClockId::ThreadCPUTime).try_into().expect("a positive time") };
    let start = now();
    act();
    (now() - start).as_nanos() as f64 / leases as f64
}

fn run<Q: Queue>(order: &[u32]) {
    let n = order.len();
    // A grant or renewal per millisecond.
    let ttl = 3 * n as u64;
    let mut best = [f64::INFINITY; 4];
    for _ in 0..3 {
        let mut queue = Q::new(n);
        let mut deadlines = vec![0; n];
        let mut now = 0;
        let file = timed(n, || {
            for (lease, deadline) in deadlines.iter_mut().enumerate() {
                now += 1;
                *deadline = now + ttl;
                queue.file(lease as u32, *deadline);
            }
        });
        let renew = timed(3 * n, || {
            for i in 0..3 * n {
                now += 1;
                let lease = order[i % n];
                let from = std::mem::replace(&mut deadlines[lease as usize], now + ttl);
                queue.renewed(lease, from, now + ttl);
                if i % 1000 == 0 {
                    assert_eq!(queue.pop(now, &deadlines), None, "renewed leases don't end");
                }
            }
        });
        let mut removable = true;
        let remove = timed(n / 2, || {
            for lease in order.iter().step_by(2) {
                removable &= queue.remove(*lease, deadlines[*lease as usize]);
            }
        });
        let left = if removable { n / 2 } else { n };
        let pop = timed(left, || {
            for _ in 0..left {
                assert!(black_box(queue.pop(now + ttl, &deadlines)).is_some());
            }
        });
        let remove = if removable { remove } else { f64::NAN };
        best.iter_mut().zip([file, renew, remove, pop]).for_each(|(best, figure)| *best = best.min(figure));
    }
    let [file, renew, remove, pop] = best;
    let remove = if remove.is_finite() { format!("{remove:.0} ns") } else { "—".to_owned() };
    println!("| {} | {file:.0} ns | {renew:.0} ns | {remove} | {pop:.0} ns |", Q::NAME);
}

fn main() {
    let n = env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(1_000_000);
    let mut order: Vec<u32> = (0..n).collect();
    let mut state = 1u64;
    for i in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    println!("| {n} leases | file | renew | remove | take out |\n|---|---:|---:|---:|---:|");
    run::<LazyWheel>(&order);
    run::<EagerWheel>(&order);
    run::<LazyHeap>(&order);
    run::<IndexedHeap>(&order);
    run::<EagerTree>(&order);
    run::<LazyTree>(&order);
}
