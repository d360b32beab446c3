//! The end-to-end tests once more, by operators that have the chart's rights and no others: those of them that any right
//! could break. How late and how costly things are, and what crashes do, doesn't depend on it.

use crate::{attachment, bad_input, expiry, lifetime, removal, renewal, revoke};

macro_rules! with_the_charts_rights {
    ($($module:ident::$test:ident,)*) => {
        $(#[tokio::test]
        async fn $test() {
            $module::$test().await;
        })*
    };
}

with_the_charts_rights![
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
    bad_input::an_object_with_finalizers_of_its_own_is_waited_for_without_spinning,
    expiry::a_lease_that_is_not_renewed_ends_after_its_deadline_and_never_before,
    expiry::a_lease_with_nothing_attached_ends_too,
    expiry::a_lease_made_before_any_operator_runs_is_granted_a_full_ttl_by_the_first,
    expiry::retain_keeps_the_expired_lease_until_somebody_deletes_it,
    expiry::retain_keeps_no_lease_that_is_revoked,
    expiry::a_shorter_ttl_counts_from_the_change_and_is_published_at_once,
    expiry::a_name_used_again_is_another_lease,
    lifetime::suspension_keeps_what_remained,
    lifetime::a_lease_ends_at_its_maximum_lifetime_however_often_it_is_renewed,
    lifetime::a_warning_comes_before_the_end_and_a_renewal_takes_it_back,
    lifetime::what_is_granted_lies_between_the_minimum_and_the_maximum,
    removal::keys_go_and_no_edit_is_lost_in_an_object_that_others_update_all_the_time,
    renewal::a_renewal_just_before_the_deadline_keeps_the_lease_and_one_just_after_is_refused,
    revoke::a_deleted_lease_is_revoked_and_renewals_after_that_are_refused,
    revoke::a_lease_that_was_never_granted_can_be_deleted,
    revoke::a_namespace_with_leases_can_be_deleted,
];
