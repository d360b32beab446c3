//! The chart: what helm makes of it, and what a real API server and a real operator make of that.
//!
//! There are no nodes here, so a test plays the kubelet: it runs the operator with the arguments of the chart's
//! Deployment, under the chart's ServiceAccount.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and prints its figures"
)]

mod access;
mod account;
mod admission;
mod events;
mod generated;
mod install;
mod lifecycle;
mod metrics;
mod release;
mod render;
mod rights;

use std::process::ExitCode;

use lessor_kit::trials;

/// How many run at once, unless `--test-threads` says so: they wait more than they work.
const AT_ONCE: usize = 10;

fn main() -> ExitCode {
    let own = trials::of(module_path!()).map(trials::Function::trial);
    trials::run(AT_ONCE, own.chain(access::trials()))
}
