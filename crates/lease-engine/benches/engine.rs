//! What the engine's operations cost, at 10,000, 100,000 and a million leases. `cargo bench -p lease-engine --bench engine`.

#![allow(missing_docs, clippy::unwrap_used)]

use std::{hint::black_box, time::Duration};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use lease_engine::{Config, LeaseEngine, LeaseTime, Timers, Ttl};

const SIZES: [u64; 3] = [10_000, 100_000, 1_000_000];
const TTL: Ttl = Ttl::from_secs(3600);

/// Spreads numbers over all ids, and back into no order.
fn id(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn primary(leases: u64) -> LeaseEngine<u64, u64> {
    let mut engine = LeaseEngine::new(Config::default());
    engine.promote(Duration::ZERO);
    for n in 0..leases {
        engine.grant(id(n), TTL, LeaseTime::ZERO).unwrap();
    }
    engine
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
        let mut engine = primary(leases);
        let mut walk = Walk::over(leases);
        let mut now = LeaseTime::ZERO;
        c.bench_with_input(BenchmarkId::new("renew", leases), &(), |b, ()| {
            b.iter(|| {
                now = now + Duration::from_nanos(100);
                black_box(engine.renew(id(walk.next()), now))
            });
        });
        c.bench_with_input(BenchmarkId::new("lookup", leases), &(), |b, ()| {
            b.iter(|| black_box(engine.lookup(id(walk.next()))));
        });
        c.bench_with_input(BenchmarkId::new("revoke and grant", leases), &(), |b, ()| {
            b.iter(|| {
                let id = id(walk.next());
                engine.revoke(id).unwrap();
                black_box(engine.grant(id, TTL, now))
            });
        });
        c.bench_with_input(BenchmarkId::new("attach and detach", leases), &(), |b, ()| {
            b.iter(|| {
                let id = id(walk.next());
                engine.attach(id, id).unwrap();
                black_box(engine.detach(id, &id))
            });
        });
        c.bench_with_input(BenchmarkId::new("demote and promote", leases), &(), |b, ()| {
            b.iter(|| {
                engine.demote();
                black_box(&mut engine).promote(Duration::ZERO);
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
                |mut engine| {
                    while engine.counts().leases > 0 {
                        for id in engine.poll(deadline, 1000) {
                            engine.ended(id).unwrap();
                        }
                    }
                    engine
                },
                BatchSize::PerIteration,
            );
        });
    }
}

fn timers(c: &mut Criterion) {
    let mut timers = Timers::default();
    (0..100_000u64).for_each(|n| timers.set(n, Duration::from_millis(n)));
    let mut now = 0;
    c.bench_function("timers: set and pop", |b| {
        b.iter(|| {
            timers.set(now + 100_000, Duration::from_millis(now + 100_000));
            now += 1;
            black_box(timers.pop(Duration::from_millis(now)))
        });
    });
}

criterion_group!(benches, operations, endings, timers);
criterion_main!(benches);
