//! Work that fails, or takes long.

use super::*;

#[test]
fn a_leader_whose_work_keeps_failing_proves_itself_every_third_of_a_lease_duration() {
    let mut lease = leader(s(0));
    lease.try_work("bad", s(0));
    let (mut now, mut runs, mut proofs) = (s(0), 0, 0);
    while now < s(60) {
        for action in all(&mut lease, now) {
            match action {
                Action::Run { key, .. } => {
                    lease.done(&key, WorkResult::None, true, now, now);
                    runs += 1;
                }
                Action::Prove { term } => {
                    lease.proved(term, now);
                    proofs += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        now = wake(&lease, now);
    }
    // Five retries within the first seconds, then one per lease duration.
    assert!((15..=16).contains(&runs), "{runs} runs in a minute");
    assert!((35..=36).contains(&proofs), "{proofs} proofs in a minute");
}

#[test]
fn proofs_of_a_leader_whose_work_fails_hold_a_follower_back() {
    let mut lease = follower(s(0));
    lease.try_work("bad", s(0));
    let mut now = s(0);
    while now < s(60) {
        now += LEASE / 3;
        assert_eq!(all(&mut lease, now), nothing());
        lease.observe_claim(Holder::Other, 1, now);
    }
}

#[test]
fn a_leader_whose_other_work_succeeds_needs_no_proof() {
    let mut lease = leader(s(0));
    lease.try_work("bad", s(0));
    let (mut now, mut ran) = (s(0), 0);
    while now < s(60) {
        for key in runs(&mut lease, now) {
            assert_eq!(key, "bad");
            lease.done(&key, WorkResult::None, true, now, now);
            ran += 1;
        }
        now += s(1);
        lease.wrote(1, now);
    }
    assert_eq!(ran, 15, "five retries within the first seconds, then one per lease duration");
}

#[test]
fn a_run_that_takes_long_is_covered_by_proofs() {
    let mut lease = leader(s(0));
    lease.try_work("slow", s(0));
    assert_eq!(runs(&mut lease, s(0)), ["slow"]);
    let at = wake(&lease, s(0));
    assert_eq!(at, LEASE / 3);
    assert_eq!(all(&mut lease, at), [Action::Prove { term: 1 }]);
}

#[test]
fn a_requested_sign_of_life_is_proved_once_even_under_a_live_lease() {
    let mut lease = leader(s(0));
    lease.show(s(1));
    assert_eq!(all(&mut lease, s(1)), [Action::Prove { term: 1 }]);
    lease.show(s(2));
    lease.proved(1, s(1));
    assert_eq!((lease.last_sign(), lease.wake_at(s(2))), (s(1), None));
}

#[test]
fn an_accepted_write_is_a_sign_of_life_too() {
    let mut lease = leader(s(0));
    lease.show(s(1));
    lease.wrote(1, s(1));
    assert_eq!(all(&mut lease, s(1)), []);
}
