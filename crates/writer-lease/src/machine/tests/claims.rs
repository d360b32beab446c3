//! Claims whose outcome is unknown, and terms that no writer can have claimed.

use super::*;

#[test]
fn an_own_claim_whose_response_was_lost_is_adopted_and_proved() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(10));
    assert_eq!(all(&mut lease, s(13)), [claim_overdue(2, "a")]);
    lease.arbitration_failed(s(18));
    assert_eq!(lease.observe_claim(Holder::Me, 2, s(19)), Observation::Adopted);
    assert_eq!(lease.leading_term(), Some(2));
    assert_eq!(all(&mut lease, s(19)), [Action::Prove { term: 2 }]);
}

#[test]
fn a_claim_observed_before_its_response_is_the_same_claim() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(10));
    assert_eq!(all(&mut lease, s(13)), [claim_overdue(2, "a")]);
    lease.observe_claim(Holder::Me, 2, s(13));
    assert_eq!(all(&mut lease, s(13)), nothing());
    lease.claimed(2, s(13), s(13));
    assert_eq!(runs(&mut lease, s(13)), ["a"]);
}

#[test]
fn a_claim_under_the_own_name_from_before_the_start_is_replaced() {
    let mut lease = election();
    assert_eq!(lease.observe_claim(Holder::Me, 5, s(1)), Observation::Vacant);
    assert_eq!(all(&mut lease, s(1)), [claim_empty(6)]);
}

#[test]
fn a_claim_that_was_overtaken_before_its_response_makes_no_leader() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(10));
    assert_eq!(all(&mut lease, s(13)), [claim_overdue(2, "a")]);
    lease.observe_claim(Holder::Other, 3, s(14));
    lease.claimed(2, s(13), s(15));
    assert_eq!(lease.state(), State::Follower { until: s(20) });
    assert_eq!(all(&mut lease, s(15)), nothing());
}

#[test]
fn a_claim_below_a_term_that_objects_carry_is_repeated_above_it() {
    let mut lease = election();
    lease.observe_claim(Holder::Nobody, 0, s(1));
    assert_eq!(all(&mut lease, s(1)), [claim_empty(1)]);
    lease.learn_term(5, s(1));
    lease.claimed(1, s(1), s(1));
    assert_eq!(all(&mut lease, s(1)), [claim_empty(6)]);
}

#[test]
fn an_absurd_term_is_reported_and_locks_no_writer_out() {
    let mut lease = leader(s(0));
    let before = lease.clone();
    for term in [i64::MAX, 1_000_002, -1] {
        assert_eq!(lease.observe(term, s(1)), Observation::Absurd);
        assert_eq!(lease.learn_term(term, s(1)), Observation::Absurd);
    }
    assert_eq!(lease.observe_claim(Holder::Other, i64::MAX, s(1)), Observation::Absurd);
    assert_eq!(lease, before);
}

#[test]
fn terms_left_by_a_deleted_arbitration_object_are_valid() {
    let mut lease = election();
    lease.observe_claim(Holder::Nobody, 0, s(0));
    assert_eq!(lease.learn_term(5000, s(0)), Observation::Ignored);
    assert_eq!(all(&mut lease, s(0)), [claim_empty(5001)]);
}

#[test]
fn a_term_that_may_have_been_claimed_is_valid() {
    let mut lease = follower(s(0));
    assert_eq!(lease.observe(5_000_000, s(1)), Observation::Absurd);
    lease.allow_terms(5_000_000);
    lease.allow_terms(7);
    assert_eq!(lease.observe(5_000_001, s(1)), Observation::Absurd);
    assert_eq!(lease.observe(5_000_000, s(1)), Observation::Followed);
    assert_eq!(lease.next_term(), 5_000_001);
}
