//! What the writer lease's state machine costs per piece of work, with many of them due at once.

#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::{hint::black_box, time::Duration};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use writer_lease::{Action, Config, Holder, WorkResult, WriterLease};

const WORKS: u64 = 20_000;

/// A leader, and its work due at once.
fn leader() -> WriterLease<u64> {
    let now = Duration::ZERO;
    let mut lease = WriterLease::new(Config::default());
    lease.observe_claim(Holder::Me, 1, now);
    lease.claimed(2, now, now);
    for key in 0..WORKS {
        lease.try_work(key, now);
    }
    lease
}

fn drain(lease: &mut WriterLease<u64>) {
    let now = Duration::ZERO;
    while let Some(action) = lease.poll(now) {
        if let Action::Run { key, .. } = action {
            lease.done(&key, WorkResult::Extend, false, now, now);
        }
        black_box(lease.wake_at(now));
    }
}

fn works(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("writer_lease");
    group.throughput(Throughput::Elements(WORKS));
    group.bench_function("try", |bencher| bencher.iter_with_large_drop(leader));
    group.bench_function("poll, run and done", |bencher| {
        bencher.iter_batched(leader, |mut lease| drain(&mut lease), BatchSize::LargeInput);
    });
    group.finish();
}

criterion_group!(benches, works);
criterion_main!(benches);
