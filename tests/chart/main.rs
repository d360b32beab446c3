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
mod served;
mod world;

// The end-to-end tests, with the chart's rights: `served` names those that say something of rights.
#[path = "../e2e/attachment.rs"]
mod attachment;
#[path = "../e2e/bad_input.rs"]
mod bad_input;
#[allow(dead_code, reason = "`served` says which are left out")]
#[path = "../e2e/crash.rs"]
mod crash;
#[allow(dead_code, reason = "`served` says which are left out")]
#[path = "../e2e/expiry.rs"]
mod expiry;
#[path = "../e2e/history.rs"]
mod history;
#[path = "../e2e/lifetime.rs"]
mod lifetime;
#[allow(dead_code, reason = "`served` says which are left out")]
#[path = "../e2e/process.rs"]
mod process;
#[allow(dead_code, reason = "`served` says which are left out")]
#[path = "../e2e/removal.rs"]
mod removal;
#[allow(dead_code, reason = "`served` says which are left out")]
#[path = "../e2e/renewal.rs"]
mod renewal;
#[allow(dead_code, reason = "the modules above use what they need")]
#[path = "../e2e/requests.rs"]
mod requests;
#[path = "../e2e/revoke.rs"]
mod revoke;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// How many run at once, unless `--test-threads` says so: they wait more than they work.
const AT_ONCE: usize = 10;

/// A test with a runtime of its own.
fn trial<F: Future<Output = ()>>(name: String, test: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(name, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(test());
        Ok(())
    })
}

/// Tests by their names.
macro_rules! trials {
    ($($module:ident::$test:ident,)*) => {
        vec![$(trial(concat!(stringify!($module), "::", stringify!($test)).to_owned(), $module::$test)),*]
    };
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    // Those that wait for one another come first.
    let mut trials = trials![
        install::a_fresh_install_serves_the_whole_cluster_and_its_own_test_passes,
        install::a_dry_run_is_tested_by_seeing_that_everything_stays,
        lifecycle::an_upgrade_brings_new_fields_and_a_rollback_keeps_all_leases,
        lifecycle::leases_survive_an_uninstall_can_be_deleted_then_and_are_served_again_by_the_next_install,
        lifecycle::an_uninstall_that_keeps_nothing_leaves_nothing,
        rights::without_any_one_of_its_rights_the_operator_is_refused_that_and_nothing_else,
        rights::no_right_is_missing_and_none_is_too_many,
        rights::the_charts_rights_are_those_that_the_operator_itself_says_it_needs,
        rights::with_namespaces_the_only_right_in_the_whole_cluster_is_about_the_lessor,
        admission::a_lease_has_its_finalizer_from_its_creation_on,
        admission::only_the_operator_writes_the_status_of_leases_and_of_its_lessor,
        events::each_turn_of_a_lease_has_its_event_and_its_log_line_and_no_data_is_told,
        install::a_release_for_two_namespaces_serves_both_and_may_nothing_elsewhere,
        lifecycle::a_namespace_that_was_deleted_with_its_leases_is_freed_by_detaching_their_finalizers,
        metrics::the_counts_are_those_of_what_was_done,
        metrics::a_deletion_that_did_not_happen_is_not_counted,
        metrics::a_missing_right_shows_in_metrics_and_readiness,
        render::each_set_of_values_lints_renders_and_passes_the_servers_strict_dry_run,
        render::a_chart_that_includes_this_one_decides_by_a_condition_whether_it_is_rendered,
        render::replicas_prefer_different_nodes_whether_or_not_nodes_have_zones,
        render::a_wrong_value_is_refused_by_its_name,
        render::a_flags_wrong_value_is_refused_by_its_name,
        render::each_flag_has_an_environment_variable_and_a_chart_value,
        render::the_defaults_of_the_chart_are_those_of_the_operator,
        render::the_dashboard_and_the_alerts_ask_only_for_metrics_that_there_are,
        generated::the_definitions_in_the_chart_are_those_of_the_code,
        generated::what_the_chart_takes_from_deploy_is_the_same_there,
        generated::chart_command_and_file_have_the_same_policy_for_the_same_kinds,
        generated::kinds_that_the_operator_cannot_read_are_refused_by_the_chart_too,
        generated::the_icon_is_part_of_the_chart,
        generated::the_plain_yaml_is_the_rendered_chart,
        generated::the_table_in_the_readme_lists_all_values,
        generated::each_value_has_a_line_that_explains_it,
    ];
    trials.extend(served::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}
