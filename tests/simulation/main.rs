//! Three whole operators in a simulated world: an API server in memory, virtual time, and everything going wrong that can.
//! The checker looks at every run.
//!
//! All that happens in a run follows from its seed. A run that fails prints its seed; that seed again, with all that the
//! API server did: `just simulate SEED..SEED+1`.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod clients;
mod followers;
mod plan;
mod process;
mod random;
mod server;
mod wire;
mod world;

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use world::{Outcome, World};

/// How many worlds there are by default.
const WORLDS: u64 = 12;

#[test]
fn no_promise_is_broken_in_any_world() {
    let seeds = seeds();
    println!("seeds {seeds:?}");
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new(Vec::new());
    let total = Mutex::new((Duration::ZERO, 0, 0, 0));
    let print = std::env::var_os("SEEDS").is_some() && seeds.end - seeds.start == 1;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || found.lock().len() >= 5 {
                        return;
                    }
                    let outcome = World::new(seed, print).run();
                    let mut total = total.lock();
                    total.0 += outcome.length;
                    total.1 += outcome.requests;
                    total.2 += outcome.report.figures.expired + outcome.report.figures.revoked;
                    total.3 += outcome.report.figures.primaries.len();
                    drop(total);
                    if seed % 1000 == 999 {
                        println!("seed {seed}: {}", outcome.report.figures);
                    }
                    if is_bad(&outcome) {
                        println!("{}", describe(seed, &outcome));
                        found.lock().push(seed);
                    }
                }
            });
        }
    });
    let (length, requests, ends, primaries) = *total.lock();
    println!("{length:?} of virtual time, {requests} requests, {ends} ends of leases, {primaries} primaries");
    let found = found.into_inner();
    if let Some(first) = found.first() {
        panic!(
            "seeds that fail: {found:?}; to see each request of the first: \
             SEEDS={first}..{} cargo test --test simulation no_promise -- --nocapture",
            first + 1
        );
    }
}

#[test]
fn a_world_can_be_repeated() {
    for seed in 1..4 {
        let [first, second] = [(); 2].map(|()| World::new(seed, false).run());
        assert_eq!(first.fingerprint, second.fingerprint, "seed {seed}");
    }
}

fn is_bad(outcome: &Outcome) -> bool {
    !outcome.report.violations.is_empty() || !outcome.problems.is_empty()
}

fn describe(seed: u64, outcome: &Outcome) -> String {
    let Outcome { report, problems, plan, .. } = outcome;
    format!("seed {seed} fails:\n{plan:?}\n{problems:#?}\n{report}")
}

/// Those that `SEEDS` names, as a count or as a range.
fn seeds() -> Range<u64> {
    let Ok(seeds) = std::env::var("SEEDS") else { return 0..WORLDS };
    let number =
        |text: &str| text.parse().unwrap_or_else(|_| panic!("SEEDS={seeds:?} is neither 500 nor 7..8"));
    match seeds.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => 0..number(&seeds),
    }
}
