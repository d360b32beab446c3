//! Three replicas as separate processes, on a real API server, and everything that can go wrong with them; and leases that
//! [follow] something.
//!
//! They check P2–P8. Each prints its figures, and has the [checker](lessor_checker) read its audit log. They mostly wait, so
//! many run at once; a filter, or `--test-threads=1`, makes them quieter neighbours.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stdout)]

mod follow;
mod holder;
mod late;
mod outage;
mod quiet;
mod replicas;
mod rolling;
mod soak;
mod storm;
mod stubborn;
mod takeover;
mod upheaval;

use std::process::ExitCode;

use lessor_kit::trials;

/// How many run at once, unless `--test-threads` says so. With twice as many, an API server on two processors needs more than a
/// second for some requests, and each such request extends deadlines that the tests measure.
const AT_ONCE: usize = 8;

fn main() -> ExitCode {
    // Those that follow something come last: beside the others they take no time.
    let (following, others): (Vec<_>, Vec<_>) =
        trials::of(module_path!()).partition(|function| function.name().starts_with("follow::"));
    trials::run(AT_ONCE, others.into_iter().chain(following).map(trials::Function::trial))
}
