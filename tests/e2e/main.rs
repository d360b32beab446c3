//! The operator, as separate processes, against a real API server.
//!
//! Each test has its own namespace, `Lessor` and operator on one cluster, and prints its figures. They mostly wait, so
//! several run at once; `--test-threads=1` makes them quieter neighbours.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and prints its figures"
)]

mod attachment;
mod bad_input;
mod cost;
mod crash;
mod expiry;
mod history;
mod lifetime;
mod process;
mod removal;
mod renewal;
mod requests;
mod revoke;
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// How many run at once, unless `--test-threads` says so.
const AT_ONCE: usize = 8;

/// Tests by their names.
macro_rules! trials {
    ($($module:ident::$test:ident,)*) => {
        vec![$(Trial::test(concat!(stringify!($module), "::", stringify!($test)), || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on($module::$test());
            Ok(())
        })),*]
    };
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let trials = trials![
        attachment::objects_and_keys_attach_by_all_three_annotations,
        attachment::only_attached_keys_go_and_other_keys_and_later_edits_stay,
        attachment::two_keys_of_one_object_go_each_with_its_own_lease,
        attachment::an_object_of_one_lease_may_have_a_key_of_another,
        attachment::what_is_attached_before_its_lease_comes_waits_for_it,
        attachment::what_is_attached_between_an_end_and_the_release_goes_too,
        attachment::detached_in_time_is_saved,
        bad_input::annotations_that_make_no_sense_are_warned_of_and_change_nothing,
        bad_input::one_bad_annotation_spoils_no_other_of_its_object,
        bad_input::a_key_that_is_not_there_counts_as_attached_and_only_its_annotation_goes,
        bad_input::an_immutable_config_map_keeps_its_keys_and_the_lease_says_why,
        bad_input::a_ttl_of_285_years_is_granted_and_hinders_nobody,
        bad_input::an_object_with_finalizers_of_its_own_is_waited_for_without_spinning,
        bad_input::leases_that_cannot_be_are_refused_by_the_api_server_and_leave_the_operator_alone,
        cost::a_grant_costs_two_requests_a_renewal_none_an_expiry_three_and_a_revoke_two_plus_one_per_object,
        cost::renewals_refresh_the_published_expiry_at_most_once_in_half_a_ttl,
        cost::at_rest_nobody_asks_anything_for_thirty_seconds,
        crash::an_end_is_complete_though_the_operator_dies_before_any_step_of_it,
        crash::an_end_is_complete_though_the_operator_dies_after_any_step_of_it,
        crash::what_a_dead_operator_had_sent_does_no_harm_when_it_arrives_late,
        crash::leases_that_ended_while_no_operator_ran_end_afterwards,
        crash::restarts_move_no_deadline_by_more_than_a_few_seconds_however_often,
        expiry::a_lease_that_is_not_renewed_ends_after_its_deadline_and_never_before,
        expiry::a_lease_with_nothing_attached_ends_too,
        expiry::a_lease_made_before_any_operator_runs_is_granted_a_full_ttl_by_the_first,
        expiry::two_hundred_leases_all_end_in_time,
        expiry::retain_keeps_the_expired_lease_until_somebody_deletes_it,
        expiry::retain_keeps_no_lease_that_is_revoked,
        expiry::a_shorter_ttl_counts_from_the_change_and_is_published_at_once,
        expiry::a_name_used_again_is_another_lease,
        lifetime::suspension_keeps_what_remained,
        lifetime::a_suspended_lease_outlives_restarts_and_a_renewal_makes_it_whole_at_once,
        lifetime::a_lease_ends_at_its_maximum_lifetime_however_often_it_is_renewed,
        lifetime::a_warning_comes_before_the_end_and_a_renewal_takes_it_back,
        lifetime::what_is_granted_lies_between_the_minimum_and_the_maximum,
        process::it_waits_for_crds_that_are_missing_and_says_so,
        process::sigterm_ends_it_in_order_and_the_next_one_leads_at_once,
        process::a_dry_run_says_what_would_go_and_removes_nothing,
        removal::an_object_made_anew_on_the_way_of_its_removal_survives,
        removal::an_object_made_anew_without_annotations_on_the_way_of_its_removal_survives,
        removal::an_object_attached_to_another_lease_on_the_way_of_its_removal_survives,
        removal::an_object_detached_on_the_way_of_its_removal_survives,
        removal::a_key_attached_to_another_lease_on_the_way_of_its_removal_survives,
        removal::keys_of_an_object_made_anew_on_the_way_of_their_removal_survive,
        removal::an_edit_on_the_way_of_a_removal_is_kept_and_the_key_goes_all_the_same,
        removal::keys_go_and_no_edit_is_lost_in_an_object_that_others_update_all_the_time,
        removal::a_hundred_keys_of_one_object_on_a_hundred_leases_that_end_together_leave_in_few_patches,
        renewal::a_renewal_just_before_the_deadline_keeps_the_lease_and_one_just_after_is_refused,
        renewal::two_hundred_renewals_race_expiries_and_each_that_is_accepted_is_honoured,
        renewal::kubectl_wait_returns_at_once_after_a_renewal_that_cost_no_request,
        renewal::an_end_that_was_decided_before_a_renewal_never_goes_through,
        renewal::an_end_that_arrives_after_the_death_of_its_operator_spares_a_renewed_lease,
        revoke::a_deleted_lease_is_revoked_and_renewals_after_that_are_refused,
        revoke::a_renewal_between_a_deletion_and_the_commit_of_the_end_saves_nothing,
        revoke::a_deletion_while_no_operator_runs_waits_for_one,
        revoke::a_lease_that_was_never_granted_can_be_deleted,
        revoke::a_namespace_with_leases_can_be_deleted,
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
