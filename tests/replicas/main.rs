//! Three replicas as separate processes, on a real API server, and everything that can go wrong with them.
//!
//! These are the judges of P2–P8. Each prints its figures, and lets the [checker](lessor_checker) read its audit log.
//! They mostly wait, so all run at once; a filter, or `--test-threads=1`, makes them quieter neighbours.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stdout)]

#[allow(dead_code, reason = "each test binary uses its part of the kit")]
#[path = "../e2e/history.rs"]
mod history;
mod holder;
mod replicas;
mod takeover;
#[allow(dead_code, reason = "each test binary uses its part of the kit")]
#[path = "../e2e/world.rs"]
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// How many run at once, unless `--test-threads` says so.
const AT_ONCE: usize = 16;

/// Tests by their names.
macro_rules! trials {
    ($($module:ident::$test:ident,)*) => {
        vec![$(Trial::test(concat!(stringify!($module), "::", stringify!($test)), || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            runtime.block_on($module::$test());
            Ok(())
        })),*]
    };
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let trials = trials![
        takeover::a_killed_primary_is_replaced_within_a_lease_duration_and_no_deadline_moves,
        takeover::a_primary_that_stops_in_order_is_replaced_at_once,
        takeover::a_primary_that_was_paused_does_nothing_wrong_when_it_wakes_up,
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
