//! No leader is known.

use super::*;

#[test]
fn an_election_without_work_or_observation_returns_no_action() {
    let mut lease = election();
    assert_eq!(lease.state(), State::Election);
    assert_eq!(all(&mut lease, s(100)), nothing());
    assert_eq!(lease.wake_at(s(100)), None);
}

#[test]
fn work_in_an_election_is_run_once_the_claim_is_won() {
    let mut lease = election();
    lease.try_work("a", s(1));
    assert_eq!(all(&mut lease, s(1)), [claim_empty(1)]);
    lease.claimed(1, s(1), ms(1010));
    assert_eq!(lease.state(), State::Leader { until: s(6) });
    let run = Action::Run { key: "a", attempt: 1, term: 1, until: s(6) };
    assert_eq!(all(&mut lease, ms(1010)), [run]);
}

#[test]
fn a_lost_claim_makes_a_follower() {
    let mut lease = election();
    lease.try_work("a", s(1));
    assert_eq!(all(&mut lease, s(1)), [claim_empty(1)]);
    lease.lost(s(2));
    assert_eq!(lease.state(), State::Follower { until: s(7) });
    assert_eq!(all(&mut lease, s(2)), nothing());
    assert_eq!(lease.len(), 1);
}

#[test]
fn a_vacant_arbitration_object_is_claimed_without_work() {
    let mut lease = election();
    assert_eq!(lease.observe_claim(Holder::Nobody, 7, s(1)), Observation::Vacant);
    assert_eq!(all(&mut lease, s(1)), [claim_empty(8)]);
    assert_eq!(all(&mut lease, s(1)), nothing(), "one claim at a time");
}

#[test]
fn replicas_claim_a_vacant_object_at_different_times() {
    let times: std::collections::BTreeSet<_> = (0..10)
        .map(|seed| {
            let mut lease = WriterLease::<u8>::new(Config { seed, ..Config::default() });
            lease.observe_claim(Holder::Nobody, 0, s(1));
            let at = wake(&lease, s(1));
            assert!(at >= s(1) && at < ms(1080), "{at:?}");
            at
        })
        .collect();
    assert!(times.len() > 5, "{times:?}");
}

#[test]
fn a_vacant_object_that_another_claimed_first_is_left_alone() {
    let mut lease = election();
    lease.observe_claim(Holder::Nobody, 0, s(1));
    assert_eq!(all(&mut lease, s(1)), [claim_empty(1)]);
    lease.lost(s(1));
    assert_eq!(lease.wake_at(s(1)), None);
}
