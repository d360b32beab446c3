//! Three replicas as separate processes, on a real API server, and everything that can go wrong with them.
//!
//! These are the judges of P2–P8. Each prints its figures, and lets the [checker](lessor_checker) read its audit log.
//! They mostly wait, so all run at once; a filter, or `--test-threads=1`, makes them quieter neighbours.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stdout)]

#[allow(dead_code, reason = "each test binary uses its part of the kit")]
#[path = "../e2e/history.rs"]
mod history;
mod holder;
mod outage;
mod quiet;
mod replicas;
mod rolling;
mod soak;
mod storm;
mod stubborn;
mod takeover;
mod upheaval;
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
    // The longest first.
    let trials = trials![
        rolling::a_lease_that_nobody_renews_ends_in_time_under_a_rolling_restart,
        storm::a_thousand_leases_expire_through_faulty_networks_and_nothing_else_goes,
        outage::no_lease_ends_while_the_api_server_is_stopped,
        outage::no_lease_ends_while_the_api_server_hangs,
        quiet::at_rest_nobody_writes,
        outage::a_replica_that_is_cut_off_alone_ends_nothing_early_and_little_late,
        quiet::replicas_with_different_settings_do_not_fight,
        takeover::a_killed_primary_is_replaced_within_a_lease_duration_and_no_deadline_moves,
        takeover::a_primary_that_stops_in_order_is_replaced_at_once,
        takeover::a_primary_that_was_paused_does_nothing_wrong_when_it_wakes_up,
        stubborn::a_lease_that_cannot_end_or_be_released_does_not_change_the_primary,
        stubborn::an_absurd_term_is_reported_and_locks_nobody_out,
        upheaval::a_lessor_deleted_by_hand_comes_back_and_terms_go_on,
        upheaval::both_crds_deleted_at_once_hang_on_nothing,
    ];
    // Not unless it is asked for by `--ignored`, as `just soak` does.
    let soak = trials![soak::leases_come_and_go_while_everything_breaks_again_and_again,];
    let trials =
        trials.into_iter().chain(soak.into_iter().map(|trial| trial.with_ignored_flag(true))).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
