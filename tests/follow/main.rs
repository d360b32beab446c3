//! Leases that follow something, on a real API server: what keeps them alive, what doesn't, and what it costs.
//!
//! Each test has its own namespace, `Lessor` and operator on one cluster, and prints its figures. They mostly wait, so
//! several run at once; `--test-threads=1` makes them quieter neighbours.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and prints its figures"
)]

mod heartbeats;
#[allow(dead_code, reason = "each test binary uses its part of the kit")]
#[path = "../e2e/history.rs"]
mod history;
mod leases;
mod outage;
mod pods;
mod replicas;
mod sources;
mod unseen;
#[allow(dead_code, reason = "each test binary uses its part of the kit")]
#[path = "../e2e/world.rs"]
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// How many run at once, unless `--test-threads` says so.
const AT_ONCE: usize = 8;

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
        heartbeats::a_thousand_leases_follow_one_heartbeat_at_no_request_and_end_in_time_when_it_stops,
        heartbeats::a_heartbeat_that_is_deleted_and_made_anew_is_followed_again,
        heartbeats::a_heartbeat_that_comes_late_is_followed_once_it_is_there,
        heartbeats::a_beat_that_no_watch_has_shown_yet_counts,
        heartbeats::renewals_by_hand_count_beside_the_heartbeat,
        heartbeats::another_source_renews_nothing_by_itself,
        pods::a_lease_lives_as_long_as_its_pod_and_its_ttl_longer,
        pods::a_lease_ends_at_once_with_its_pod_where_it_was_told_to,
        pods::another_pod_of_the_name_is_another_pod,
        pods::a_pod_that_has_succeeded_or_failed_is_over,
        pods::a_pod_that_was_replaced_while_no_operator_ran_is_noticed,
        pods::many_pods_are_followed_with_one_watch,
        leases::a_lease_lives_by_the_renewals_of_another_and_outlives_it_by_its_ttl,
        leases::leases_that_follow_one_another_in_a_circle_live_by_themselves,
        leases::a_source_in_another_namespace_cannot_be_named,
        outage::no_lease_ends_since_a_node_could_not_beat_in_an_outage,
        replicas::a_takeover_moves_no_deadline_and_ends_nothing_that_beats,
        replicas::restarts_end_nothing_that_beats,
        unseen::what_is_not_enabled_keeps_its_followers_from_ending_until_it_is,
        unseen::a_right_that_is_taken_away_ends_no_lease_and_one_that_is_given_back_lets_them_go_on,
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
