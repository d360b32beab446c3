//! Three replicas as separate processes, on a real API server, and everything that can go wrong with them; and leases that
//! follow something.
//!
//! These are the judges of P2–P8. Each prints its figures, and lets the [checker](lessor_checker) read its audit log.
//! They mostly wait, so all run at once; a filter, or `--test-threads=1`, makes them quieter neighbours. Those of
//! [followers](../follow) are in this program only because it waits for the longest of all: beside it they take no time.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stdout)]

#[path = "../follow/outage.rs"]
mod follow_outage;
#[path = "../follow/takeover.rs"]
mod follow_takeover;
#[path = "../follow/heartbeats.rs"]
mod heartbeats;
#[allow(dead_code, reason = "each test binary uses its part of the kit")]
#[path = "../e2e/history.rs"]
mod history;
mod holder;
mod late;
#[path = "../follow/leases.rs"]
mod leases;
mod outage;
#[path = "../follow/pods.rs"]
mod pods;
mod quiet;
mod replicas;
mod rolling;
mod soak;
#[path = "../follow/sources.rs"]
mod sources;
mod storm;
mod stubborn;
mod takeover;
#[path = "../follow/unseen.rs"]
mod unseen;
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
        outage::no_lease_ends_while_the_api_server_cannot_write,
        quiet::at_rest_nobody_writes,
        outage::followers_hold_what_the_primary_held_while_the_api_server_could_not_write,
        outage::a_replica_that_is_cut_off_alone_ends_nothing_early_and_little_late,
        outage::leases_end_though_each_answer_takes_more_than_a_second,
        outage::a_lease_ends_though_idle_connections_are_cut_again_and_again,
        quiet::replicas_with_different_settings_do_not_fight,
        takeover::a_killed_primary_is_replaced_within_a_lease_duration_and_no_deadline_moves,
        takeover::a_primary_that_stops_in_order_is_replaced_at_once,
        late::a_grant_that_arrives_when_its_sender_is_dead_counts_from_then,
        late::what_is_said_of_a_late_grant_is_corrected_and_what_is_recorded_stays,
        takeover::a_primary_that_was_paused_does_nothing_wrong_when_it_wakes_up,
        stubborn::a_lease_that_cannot_end_or_be_released_does_not_change_the_primary,
        stubborn::a_lease_whose_writes_fail_keeps_no_other_from_ending,
        stubborn::an_absurd_term_is_reported_and_locks_nobody_out,
        upheaval::a_lessor_deleted_by_hand_comes_back_and_terms_go_on,
        upheaval::both_crds_deleted_at_once_hang_on_nothing,
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
        leases::a_lease_ends_though_a_long_chain_is_read_slowly,
        leases::leases_that_follow_one_another_in_a_circle_live_by_themselves,
        leases::a_source_in_another_namespace_cannot_be_named,
        follow_outage::no_lease_ends_since_a_node_could_not_beat_in_an_outage,
        follow_takeover::a_takeover_moves_no_deadline_and_ends_nothing_that_beats,
        follow_takeover::restarts_end_nothing_that_beats,
        unseen::what_is_not_enabled_keeps_its_followers_from_ending_until_it_is,
        unseen::a_right_that_is_taken_away_ends_no_lease_and_one_that_is_given_back_lets_them_go_on,
    ];
    // Not unless it is asked for by `--ignored`, as `just soak` does.
    let soak = trials![soak::leases_come_and_go_while_everything_breaks_again_and_again,];
    let trials =
        trials.into_iter().chain(soak.into_iter().map(|trial| trial.with_ignored_flag(true))).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
