//! What the lessor's operations cost, at 10,000, 100,000 and a million leases. `cargo bench --bench lessor`.

#![allow(missing_docs, clippy::unwrap_used)]

use std::{hint::black_box, time::Duration};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use lease_engine::{Config, LeaseTime, Lessor, Ttl, queue::DeadlineQueue};

const SIZES: [u64; 3] = [10_000, 100_000, 1_000_000];
const TTL: Ttl = Ttl::from_secs(3600);

/// Spreads numbers over all ids, and back into no order.
fn id(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn primary(leases: u64) -> Lessor<u64, u64> {
    let mut lessor = Lessor::new(Config::default());
    lessor.promote(Duration::ZERO);
    for n in 0..leases {
        lessor.grant(id(n), TTL, LeaseTime::ZERO).unwrap();
    }
    lessor
}

/// Walks over all leases with steps that no cache foresees.
struct Walk {
    at: u64,
    leases: u64,
}

impl Walk {
    fn over(leases: u64) -> Self {
        Self { at: 0, leases }
    }

    fn next(&mut self) -> u64 {
        self.at = (self.at + 7_368_787) % self.leases;
        self.at
    }
}

fn operations(c: &mut Criterion) {
    for leases in SIZES {
        let mut lessor = primary(leases);
        let mut walk = Walk::over(leases);
        let mut now = LeaseTime::ZERO;
        c.bench_with_input(BenchmarkId::new("renew", leases), &(), |b, ()| {
            b.iter(|| {
                now = now + Duration::from_nanos(100);
                black_box(lessor.renew(id(walk.next()), now))
            });
        });
        c.bench_with_input(BenchmarkId::new("lookup", leases), &(), |b, ()| {
            b.iter(|| black_box(lessor.lookup(id(walk.next()))));
        });
        c.bench_with_input(BenchmarkId::new("revoke and grant", leases), &(), |b, ()| {
            b.iter(|| {
                let id = id(walk.next());
                lessor.revoke(id).unwrap();
                black_box(lessor.grant(id, TTL, now))
            });
        });
        c.bench_with_input(BenchmarkId::new("attach and detach", leases), &(), |b, ()| {
            b.iter(|| {
                let id = id(walk.next());
                lessor.attach(id, id).unwrap();
                black_box(lessor.detach(id, &id))
            });
        });
        c.bench_with_input(BenchmarkId::new("demote and promote", leases), &(), |b, ()| {
            b.iter(|| {
                lessor.demote();
                black_box(&mut lessor).promote(Duration::ZERO);
            });
        });
    }
}

fn endings(c: &mut Criterion) {
    let mut group = c.benchmark_group("one deadline for all");
    group.sample_size(10);
    for leases in SIZES {
        let deadline = LeaseTime::ZERO + TTL.as_duration();
        group.bench_with_input(BenchmarkId::from_parameter(leases), &(), |b, ()| {
            b.iter_batched(
                || primary(leases),
                |mut lessor| {
                    while lessor.counts().leases > 0 {
                        for id in lessor.poll(deadline, 1000) {
                            lessor.ended(id).unwrap();
                        }
                    }
                    lessor
                },
                BatchSize::PerIteration,
            );
        });
    }
}

fn queue(c: &mut Criterion) {
    let mut queue = DeadlineQueue::default();
    let mut now = 0;
    c.bench_function("queue: insert and take out", |b| {
        b.iter(|| {
            now += 1;
            queue.insert(now, LeaseTime::from_millis(now + 60_000));
            black_box(queue.pop_due(LeaseTime::from_millis(now)))
        });
    });
}

criterion_group!(benches, operations, endings, queue);
criterion_main!(benches);
