//! Another takes the lead.

use super::*;

/// Fault of the original: an observed write does not demote a leader.
#[test]
fn a_write_under_a_higher_term_demotes_a_leader_at_once() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(lease.observe(2, s(1)), Observation::Demoted);
    assert_eq!(lease.state(), State::Follower { until: s(6) });
    assert_eq!(all(&mut lease, s(1)), nothing());
    assert_eq!(lease.next_term(), 3);
}

#[test]
fn a_higher_claim_demotes_a_leader_at_once() {
    let mut lease = leader(s(0));
    assert_eq!(lease.observe_claim(Holder::Other, 2, s(1)), Observation::Demoted);
    assert_eq!(lease.leading_term(), None);
}

#[test]
fn a_higher_term_on_an_object_demotes_a_leader_and_raises_the_next_claim() {
    let mut lease = leader(s(0));
    assert_eq!(lease.learn_term(6, s(1)), Observation::Demoted);
    assert_eq!(lease.next_term(), 7);
}

#[test]
fn learned_terms_extend_no_wait() {
    let mut lease = follower(s(0));
    assert_eq!(lease.learn_term(6, s(3)), Observation::Ignored);
    assert_eq!(lease.state(), State::Follower { until: s(5) });
    assert_eq!(lease.next_term(), 7);
}

#[test]
fn a_lost_proof_demotes() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(60));
    assert_eq!(all(&mut lease, s(60)), [Action::Prove { term: 1 }]);
    lease.lost(s(61));
    assert_eq!(lease.state(), State::Follower { until: s(66) });
}

#[test]
fn own_writes_and_claims_are_ignored() {
    let mut lease = leader(s(0));
    assert_eq!(lease.observe(1, s(1)), Observation::Ignored);
    assert_eq!(lease.observe_claim(Holder::Me, 1, s(1)), Observation::Ignored);
    assert_eq!(lease.observe_claim(Holder::Nobody, 0, s(1)), Observation::Ignored, "from before the claim");
    assert_eq!(lease.state(), State::Leader { until: s(5) });
    assert_eq!(lease.wake_at(s(1)), None);
}

/// Fault of the original: a conflict with one's own write demotes.
#[test]
fn a_conflict_is_retried_without_demotion() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    let finish = lease.done(&"a", WorkResult::None, true, s(1), s(1));
    assert_eq!(finish, Finish::Retries { at: ms(1020) });
    assert_eq!(lease.leading_term(), Some(1));
    assert_eq!(runs(&mut lease, ms(1020)), ["a"]);
}

/// Fault of the original: success on two different objects makes two leaders.
#[test]
fn success_without_the_arbitration_object_makes_no_leader() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.observe_claim(Holder::Other, 2, s(2));
    lease.done(&"a", WorkResult::Extend, false, s(1), s(3));
    assert_eq!(lease.state(), State::Follower { until: s(7) });
    lease.wrote(1, s(3));
    assert_eq!(lease.leading_term(), None);
}

#[test]
fn runs_of_an_earlier_term_extend_no_lease() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.observe_claim(Holder::Other, 2, s(2));
    lease.observe_claim(Holder::Nobody, 2, s(2));
    assert_eq!(all(&mut lease, s(2)), [claim_empty(3)]);
    lease.claimed(3, s(2), s(2));
    lease.done(&"a", WorkResult::Extend, false, s(4), s(4));
    assert_eq!(lease.state(), State::Leader { until: s(7) });
}

#[test]
fn a_stale_run_cannot_release_a_later_term() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.observe_claim(Holder::Nobody, 2, s(2));
    assert_eq!(all(&mut lease, s(2)), [claim_empty(3)]);
    lease.claimed(3, s(2), s(2));
    lease.done(&"a", WorkResult::Release, false, s(4), s(4));
    assert_eq!(lease.leading_term(), Some(3));
}

#[test]
fn the_queue_survives_a_demotion() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    lease.try_work("b", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a", "b"]);
    lease.done(&"a", WorkResult::None, true, s(1), s(1));
    lease.observe_claim(Holder::Other, 2, s(1));
    lease.done(&"b", WorkResult::None, true, s(1), s(1));
    assert_eq!(lease.len(), 2);
    assert_eq!(all(&mut lease, s(6)), [claim_overdue(3, "a")]);
}

#[test]
fn an_object_cleared_under_its_leader_is_claimed_again_while_it_works_on() {
    let mut lease = leader(s(0));
    lease.observe_claim(Holder::Nobody, 1, s(1));
    lease.try_work("a", s(1));
    let run = Action::Run { key: "a", attempt: 1, term: 1, until: s(5) };
    assert_eq!(all(&mut lease, s(1)), [claim_empty(2), run]);
    lease.claimed(2, s(1), s(1));
    assert_eq!(lease.leading_term(), Some(2));
}

#[test]
fn a_proof_that_finds_the_object_deleted_claims_it_again_at_once() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(60));
    assert_eq!(all(&mut lease, s(60)), [Action::Prove { term: 1 }]);
    lease.lost(s(60));
    lease.observe_claim(Holder::Nobody, 0, s(60));
    assert_eq!(all(&mut lease, s(60)), [claim_empty(2)]);
}
