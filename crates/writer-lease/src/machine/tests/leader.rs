//! This writer leads, and gives up the lead.

use super::*;

#[test]
fn a_leader_runs_work_when_it_falls_due() {
    let mut lease = leader(s(0));
    lease.try_work("later", s(3));
    lease.try_work("now", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["now"]);
    assert_eq!(lease.wake_at(s(1)), Some(s(1) + LEASE / 3));
    assert_eq!(lease.done(&"now", WorkResult::Extend, false, s(1), s(1)), Finish::Finished);
    assert_eq!(lease.wake_at(s(1)), Some(s(3)));
    assert_eq!(runs(&mut lease, s(3)), ["later"]);
}

#[test]
fn success_extends_the_lease_from_before_the_request_was_sent() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.done(&"a", WorkResult::Extend, false, ms(1200), s(2));
    assert_eq!(lease.state(), State::Leader { until: ms(6200) });
    lease.wrote(1, ms(900));
    assert_eq!(lease.lease_until(), Some(ms(6200)), "an earlier write shortens nothing");
}

#[test]
fn a_run_without_result_leaves_the_lease_as_it_is() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.done(&"a", WorkResult::None, false, s(1), s(2));
    assert_eq!(lease.state(), State::Leader { until: s(5) });
    assert!(lease.is_empty());
}

/// Fault of the original: its leader never lapses.
#[test]
fn a_leader_whose_lease_has_lapsed_proves_itself_before_it_runs() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(60));
    assert_eq!(all(&mut lease, s(59)), nothing());
    assert!(!lease.is_leader(s(59)));
    assert_eq!(all(&mut lease, s(60)), [Action::Prove { term: 1 }]);
    lease.proved(1, s(60));
    assert_eq!(runs(&mut lease, s(61)), ["a"]);
}

#[test]
fn a_lease_about_to_lapse_starts_no_work() {
    let mut lease = leader(s(0));
    lease.try_work("a", ms(4374));
    lease.try_work("b", ms(4375));
    assert_eq!(runs(&mut lease, ms(4374)), ["a"]);
    assert_eq!(all(&mut lease, ms(4375)), [Action::Prove { term: 1 }]);
}

#[test]
fn a_proof_that_took_longer_than_the_lease_is_none() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(60));
    assert_eq!(all(&mut lease, s(60)), [Action::Prove { term: 1 }]);
    lease.proved(1, s(60));
    assert_eq!(all(&mut lease, s(66)), [Action::Prove { term: 1 }]);
}

#[test]
fn an_idle_leader_returns_no_action() {
    let lease = leader(s(0));
    assert_eq!(lease.wake_at(s(1)), None);
    assert_eq!(lease.wake_at(s(1000)), None);
}

#[test]
fn a_failed_proof_is_repeated_after_a_growing_backoff_and_demotes_no_leader() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(60));
    let mut now = s(60);
    for wait in [ms(20), ms(80), ms(320), ms(1280), LEASE / 3, LEASE / 3] {
        assert_eq!(all(&mut lease, now), [Action::Prove { term: 1 }]);
        lease.arbitration_failed(now);
        assert_eq!(lease.wake_at(now), Some(now + wait));
        assert_eq!(lease.leading_term(), Some(1));
        now += wait;
    }
}

#[test]
fn release_gives_up_the_lead_and_clears_the_object() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.done(&"a", WorkResult::Release, true, s(1), s(1));
    assert_eq!(lease.state(), State::Follower { until: s(1) + HEAD_START });
    assert_eq!(all(&mut lease, s(1)), [Action::Resign { term: 1 }]);
    assert_eq!(all(&mut lease, s(1)), nothing());
}

#[test]
fn a_writer_that_resigned_lets_others_go_first() {
    let mut lease = leader(s(0));
    lease.resign(s(1));
    assert_eq!(all(&mut lease, s(1)), [Action::Resign { term: 1 }]);
    assert_eq!(lease.observe_claim(Holder::Nobody, 1, s(1)), Observation::Vacant);
    assert_eq!(lease.wake_at(s(1)), Some(s(1) + HEAD_START));
    assert_eq!(all(&mut lease, s(1) + HEAD_START), [claim_empty(2)]);
}

#[test]
fn resigning_without_the_lead_does_nothing() {
    let mut lease = follower(s(0));
    let before = lease.clone();
    lease.resign(s(1));
    assert_eq!(lease, before);
}

#[test]
fn an_expired_lease_is_claimed_again_before_it_runs_work() {
    let mut lease = leader(s(0));
    lease.expire();
    assert_eq!(lease.state(), State::Election);
    lease.try_work("a", s(1));
    assert_eq!(all(&mut lease, s(1)), [claim_empty(2)]);
}

#[test]
fn an_expired_follower_claims_again_but_takes_no_lead_from_a_live_leader() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    lease.expire();
    assert_eq!(all(&mut lease, s(1)), [claim_empty(2)]);
    lease.lost(s(1));
    assert_eq!(lease.state(), State::Follower { until: s(6) });
}

#[test]
fn a_run_from_before_the_lease_expired_extends_no_lease() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.expire();
    lease.done(&"a", WorkResult::Extend, false, s(1), s(1));
    assert_eq!(lease.state(), State::Election);
}
