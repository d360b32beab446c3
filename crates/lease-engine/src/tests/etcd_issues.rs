//! Faults of etcd's lessor, with the numbers of its issues. The engine has none of them.

use std::time::{Duration, Instant};

use crate::{AboveMax, Backoff, Config, Counts, Error, LeaseEngine, LeaseTime, State, Ttl};

const TTL: Ttl = Ttl::from_secs(10);

fn at(millis: u64) -> LeaseTime {
    LeaseTime::from_millis(millis)
}

fn primary() -> LeaseEngine<u64, &'static str> {
    let mut engine = LeaseEngine::new(Config::default());
    engine.promote(Duration::ZERO);
    engine
}

fn with_leases(ids: impl IntoIterator<Item = u64>) -> LeaseEngine<u64, &'static str> {
    let mut engine = primary();
    for id in ids {
        assert!(engine.grant(id, TTL, at(0)).is_ok());
    }
    engine
}

#[test]
fn etcd_9374_a_huge_ttl_does_not_overflow_into_the_past() {
    let mut engine = primary();
    let asked = Ttl::from_secs(i64::MAX);
    assert_eq!(engine.grant(1, asked, at(0)), Err(Error::TtlTooLarge { asked, max: Ttl::MAX }));
    let granted = engine.grant(2, Ttl::from_secs(9_000_000_000), at(5));
    assert_eq!(granted.map(|granted| granted.ttl), Ok(Ttl::MAX));
    assert!(engine.poll(at(9_000_000_000_004), 9).is_empty());
    assert_eq!(engine.poll(at(9_000_000_000_005), 9), [2]);
}

#[test]
fn a_ttl_above_the_maximum_is_clamped_if_so_configured() {
    let max_ttl = Ttl::from_secs(60);
    let config = Config { max_ttl, above_max: AboveMax::Clamp, ..Config::default() };
    let mut engine: LeaseEngine<u64> = LeaseEngine::new(config);
    let granted = engine.grant(1, Ttl::from_secs(i64::MAX), at(0));
    assert_eq!(granted.map(|granted| granted.ttl), Ok(max_ttl));
}

#[test]
fn a_ttl_of_zero_or_less_becomes_the_minimum() {
    let config = Config { min_ttl: Ttl::from_secs(5), ..Config::default() };
    let mut engine: LeaseEngine<u64> = LeaseEngine::new(config);
    engine.promote(Duration::ZERO);
    for (id, secs) in [(1, 0), (2, -1), (3, i64::MIN)] {
        let granted = engine.grant(id, Ttl::from_secs(secs), at(0));
        assert_eq!(granted.map(|granted| granted.ttl), Ok(Ttl::from_secs(5)));
    }
    assert!(engine.poll(at(4999), 9).is_empty());
    assert_eq!(engine.poll(at(5000), 9), [1, 2, 3]);
}

#[test]
fn etcd_10686_an_end_that_failed_is_offered_until_it_succeeds() {
    let mut engine = with_leases([1]);
    let mut now = at(10_000);
    for tries in 1..20u8 {
        assert_eq!(engine.poll(now, 9), [1]);
        assert_eq!(engine.lookup(1).map(|lease| lease.tries), Some(tries));
        let again = engine.failed(1, now);
        assert!(again.is_some() && engine.next_wakeup() <= again);
        now = again.unwrap_or(LeaseTime::NEVER);
        assert!(engine.poll(now - Duration::from_millis(1), 9).is_empty());
    }
    assert!(engine.counts().leases == 1 && engine.ended(1).is_ok());
}

#[test]
fn etcd_10686_an_unanswered_end_is_offered_again_if_so_configured() {
    let config = Config { answer_within: Some(Duration::from_secs(3)), ..Config::default() };
    let mut engine: LeaseEngine<u64> = LeaseEngine::new(config);
    engine.promote(Duration::ZERO);
    assert!(engine.grant(1, TTL, at(0)).is_ok());
    assert_eq!(engine.poll(at(10_000), 9), [1]);
    assert_eq!(engine.next_wakeup(), Some(at(13_000)));
    assert!(engine.poll(at(13_000), 9).is_empty());
    assert_eq!(engine.poll(at(14_000), 9), [1]);
}

#[test]
fn a_stuck_end_is_visible() {
    let mut engine = with_leases([1, 2]);
    assert_eq!(engine.poll(at(10_000), 1), [1]);
    assert_eq!(engine.poll(at(10_500), 1), [2]);
    assert!(engine.ended(2).is_ok());
    assert_eq!(engine.unanswered().collect::<Vec<_>>(), [(1, at(10_000))]);
    assert_eq!(engine.counts(), Counts { leases: 1, ending: 1, ..Counts::default() });
}

#[test]
fn an_end_that_fails_does_not_delay_others() {
    let mut engine = with_leases([1, 2, 3]);
    assert_eq!(engine.poll(at(10_000), 1), [1]);
    engine.failed(1, at(10_000));
    assert_eq!(engine.poll(at(10_000), 9), [2, 3]);
}

#[test]
fn etcd_9888_a_change_of_primary_resets_no_ttl() {
    let mut engine = with_leases([1]);
    for millis in (1000..10_000).step_by(1000) {
        engine.demote();
        assert!(engine.poll(at(millis), 9).is_empty());
        engine.promote(Duration::ZERO);
        assert_eq!(engine.deadline(1), Some(at(10_000)));
    }
    assert_eq!(engine.poll(at(10_000), 9), [1]);
}

#[test]
fn a_promotion_extends_all_deadlines_on_request() {
    let mut engine = with_leases([1]);
    engine.demote();
    engine.promote(Duration::from_secs(5));
    assert!(engine.poll(at(14_999), 9).is_empty());
    assert!(engine.grant(2, Ttl::from_secs(1), at(14_999)).is_ok());
    assert_eq!(engine.poll(at(15_000), 9), [1]);
    assert_eq!(engine.poll(at(15_999), 9), [2]);
}

#[test]
fn etcd_17132_records_are_right_however_often_they_are_taken() {
    let engine = with_leases([1]);
    for millis in (0..=10_000).step_by(500) {
        let remaining = engine.record(1, at(millis)).map(|record| record.remaining);
        assert_eq!(remaining, Some(Duration::from_millis(10_000 - millis)));
    }
    let record = engine.record(1, at(4000));
    let mut restarted = primary();
    let restored = record.map(|record| restarted.restore(1, record.ttl, record.remaining, at(70_000)));
    assert!(restored.is_some_and(|restored| restored.is_ok()));
    assert_eq!(restarted.remaining(1, at(70_000)), Some(Duration::from_secs(6)));
    assert_eq!(restarted.renew(1, at(70_000)).map(|granted| granted.ttl), Ok(TTL));
}

#[test]
fn etcd_20590_a_renewal_does_not_succeed_once_the_end_has_begun() {
    let mut engine = with_leases([1, 2]);
    assert_eq!(engine.begin_revoke(1, at(0)), Ok(true));
    assert_eq!(engine.renew(1, at(0)), Err(Error::LeaseExpired));
    assert_eq!(engine.poll(at(10_000), 9), [2]);
    assert_eq!(engine.renew(2, at(10_000)), Err(Error::LeaseExpired));
    assert_eq!(engine.renew_with(2, TTL, at(10_000)), Err(Error::LeaseExpired));
    assert_eq!(engine.suspend(2, at(10_000)), Err(Error::LeaseExpired));
}

#[test]
fn a_renewal_that_won_reinstates_the_lease() {
    let mut engine = with_leases([1]);
    assert_eq!(engine.poll(at(10_000), 9), [1]);
    assert!(engine.reinstate(1, TTL, at(10_100)).is_ok());
    assert_eq!(engine.lookup(1).map(|lease| lease.state), Some(State::Active));
    assert_eq!(engine.failed(1, at(10_200)), None, "a late answer about the end that lost");
    assert!(engine.poll(at(20_099), 9).is_empty());
    assert_eq!(engine.poll(at(20_100), 9), [1]);
}

#[test]
fn an_attachment_while_the_end_is_under_way_is_refused_and_orphans_nothing() {
    let mut engine = with_leases([1]);
    assert_eq!(engine.attach(1, "a"), Ok(None));
    assert_eq!(engine.poll(at(10_000), 9), [1]);
    assert_eq!(engine.attach(1, "b"), Err(Error::LeaseExpired));
    assert_eq!(engine.ended(1), Ok(vec!["a"]));
    assert_eq!(engine.counts(), Counts::default());
}

#[test]
fn a_detach_or_revoke_by_a_former_owner_changes_no_item() {
    let mut engine = with_leases([1, 2]);
    assert_eq!(engine.attach(1, "a"), Ok(None));
    assert_eq!(engine.attach(2, "a"), Ok(Some(1)));
    assert_eq!(engine.detach(1, &"a"), Ok(false));
    assert_eq!(engine.revoke(1), Ok(vec![]));
    assert_eq!(engine.lease_of(&"a"), Some(2));
    assert_eq!(engine.revoke(2), Ok(vec!["a"]));
}

#[test]
fn etcd_11495_a_follower_does_not_grow_as_leases_come_and_go() {
    let mut engine: LeaseEngine<u64> = LeaseEngine::new(Config::default());
    for id in 0..100_000 {
        let ttl = if id % 2 == 0 { Ttl::MAX } else { Ttl::from_secs(1) };
        assert!(engine.grant(id, ttl, at(id)).is_ok());
        assert!(engine.renew(id, at(id)).is_ok());
        assert!(engine.ended(id).is_ok());
    }
    assert_eq!(engine.slots_ever_used(), 1);
}

#[test]
fn etcd_16053_revoked_leases_leave_no_item_behind() {
    let mut engine: LeaseEngine<u64, String> = LeaseEngine::new(Config::default());
    for round in 0..100u64 {
        assert!(engine.grant(round, TTL, at(0)).is_ok());
        for item in 0..10 {
            assert!(engine.attach(round, format!("{item}")).is_ok());
        }
        assert_eq!(engine.revoke(round).map(|items| items.len()), Ok(10));
        assert_eq!(engine.counts(), Counts::default());
    }
}

#[test]
fn etcd_12381_remaining_time_is_never_negative_or_absurd() {
    let mut engine = with_leases([1]);
    assert_eq!(engine.remaining(1, at(10_001)), Some(Duration::ZERO));
    assert_eq!(engine.remaining(1, LeaseTime::NEVER), Some(Duration::ZERO));
    assert_eq!(engine.remaining(1, at(0)), Some(TTL.as_duration()));
    engine.demote();
    assert_eq!(engine.remaining(1, at(4000)), Some(Duration::from_secs(6)));
    engine.promote(Duration::ZERO);
    engine.poll(at(12_000), 9);
    assert_eq!(engine.remaining(1, at(12_000)), Some(Duration::ZERO));
}

/// No benchmark: the limit is far from etcd's seconds, so that no busy machine exceeds it.
fn takes_less_than(limit: Duration, act: impl FnOnce()) {
    #[allow(clippy::disallowed_methods)]
    let start = Instant::now();
    act();
    let took = start.elapsed();
    assert!(took < limit, "took {took:?}");
}

#[test]
fn etcd_9496_a_promotion_does_not_block_at_200_000_leases() {
    let mut engine = with_leases(0..200_000);
    engine.poll(at(10_000), 100_000);
    takes_less_than(Duration::from_millis(50), || {
        for _ in 0..100 {
            engine.demote();
            engine.promote(Duration::from_secs(1));
        }
    });
}

#[test]
fn etcd_12105_leases_that_end_together_end_without_lag_and_once_each() {
    let mut engine = with_leases(0..200_000);
    let mut ended = 0;
    takes_less_than(Duration::from_secs(20), || {
        while engine.counts().leases > 0 {
            assert!(engine.next_wakeup().is_some_and(|at| at <= LeaseTime::from_millis(10_000)));
            for id in engine.poll(at(10_000), 1000) {
                assert_eq!(id, ended);
                assert!(engine.ended(id).is_ok());
                ended += 1;
            }
        }
    });
    assert_eq!(ended, 200_000);
    assert_eq!(engine.next_wakeup(), None);
}

#[test]
fn ends_are_limited_to_the_configured_rate() {
    use std::num::NonZeroU32;
    let (Some(rate), Some(burst)) = (NonZeroU32::new(100), NonZeroU32::new(10)) else { return };
    let config = Config { expiry_rate: Some(crate::Rate::new(rate, burst)), ..Config::default() };
    let mut engine: LeaseEngine<u64> = LeaseEngine::new(config);
    engine.promote(Duration::ZERO);
    (0..30).for_each(|id| assert!(engine.grant(id, TTL, at(0)).is_ok()));
    let mut offered = Vec::new();
    while let Some(wakeup) = engine.next_wakeup() {
        for id in engine.poll(wakeup, 100) {
            offered.push((id, wakeup));
            assert!(engine.ended(id).is_ok());
        }
    }
    assert!(offered.iter().map(|(id, _)| *id).eq(0..30), "in order");
    assert_eq!(offered.iter().filter(|(_, when)| *when == at(10_000)).count(), 10);
    assert_eq!(offered.last().map(|(_, when)| *when), Some(at(10_200)));
}

#[test]
fn renewals_under_heavy_load_get_more_time() {
    let stretch = crate::Stretch { renewals_per_second: 10, at_most: 4 };
    let mut engine: LeaseEngine<u64> =
        LeaseEngine::new(Config { stretch: Some(stretch), ..Config::default() });
    assert!(engine.grant(1, TTL, at(0)).is_ok());
    let last = (0..20).map(|_| engine.renew(1, at(500))).last();
    let granted = last.and_then(Result::ok);
    assert_eq!(granted.map(|granted| granted.ttl), Some(Ttl::from_secs(20)));
    assert_eq!(engine.deadline(1), Some(at(20_500)));
    assert_eq!(engine.renew(1, at(5000)).map(|granted| granted.ttl), Ok(TTL), "the load is over");
    assert_eq!(engine.deadline(1), Some(at(20_500)), "what was granted stays granted");
}

#[test]
fn a_clock_that_jumps_ends_no_lease_early_and_loses_none() {
    let mut engine = with_leases([1]);
    assert!(engine.poll(at(9000), 9).is_empty());
    assert!(engine.grant(2, Ttl::from_millis(500), at(2000)).is_ok(), "the clock stepped back");
    assert_eq!(engine.next_wakeup(), Some(at(2500)));
    assert!(engine.poll(at(2499), 9).is_empty());
    assert_eq!(engine.poll(at(2500), 9), [2]);
    assert_eq!(engine.poll(at(1 << 43), 9), [1], "and far ahead");
}

#[test]
fn a_renewal_after_the_clock_stepped_back_shortens_no_lease() {
    let mut engine = with_leases([1]);
    assert!(engine.renew(1, at(5000)).is_ok());
    assert!(engine.renew(1, at(4000)).is_ok());
    assert_eq!(engine.deadline(1), Some(at(15_000)));
}

#[test]
fn a_renewal_in_the_millisecond_of_the_deadline_counts_until_the_end_has_begun() {
    let mut engine = with_leases([1, 2]);
    let deadline = at(10_000);
    assert!(engine.renew(1, deadline).is_ok());
    assert_eq!(engine.poll(deadline, 9), [2]);
    assert_eq!(engine.renew(2, deadline), Err(Error::LeaseExpired));
}

#[test]
fn an_instant_before_the_deadline_no_lease_ends() {
    let mut engine: LeaseEngine<u64> = LeaseEngine::new(Config::default());
    engine.promote(Duration::ZERO);
    let granted_at = LeaseTime::from_nanos(1);
    assert!(engine.grant(1, Ttl::from_millis(1), granted_at).is_ok());
    assert!(engine.poll(LeaseTime::from_nanos(1_000_000), 9).is_empty());
    assert!(engine.poll(LeaseTime::from_nanos(1_999_999), 9).is_empty());
    assert_eq!(engine.poll(LeaseTime::from_nanos(2_000_000), 9), [1]);
}

#[test]
fn a_second_revoke_finds_no_lease() {
    let mut engine = with_leases([1, 2]);
    assert_eq!(engine.revoke(1), Ok(vec![]));
    assert_eq!(engine.revoke(1), Err(Error::LeaseNotFound));
    assert_eq!(engine.poll(at(10_000), 9), [2]);
    assert_eq!(engine.revoke(2), Ok(vec![]));
    assert_eq!(engine.ended(2), Err(Error::LeaseNotFound));
    assert_eq!(engine.failed(2, at(10_000)), None);
}

#[test]
fn a_lease_granted_to_a_follower_ends_after_its_promotion() {
    let mut engine: LeaseEngine<u64> = LeaseEngine::new(Config::default());
    assert!(engine.grant(1, TTL, at(0)).is_ok());
    assert!(engine.renew(1, at(1000)).is_ok());
    assert!(engine.poll(at(20_000), 9).is_empty());
    assert_eq!(engine.overdue(at(20_000)), Some((1, at(11_000))));
    engine.promote(Duration::ZERO);
    assert_eq!(engine.poll(at(20_000), 9), [1]);
}

#[test]
fn followers_refuse_renewals_if_so_configured() {
    let config = Config { followers_renew: false, ..Config::default() };
    let mut engine: LeaseEngine<u64> = LeaseEngine::new(config);
    assert!(engine.grant(1, TTL, at(0)).is_ok());
    assert_eq!(engine.renew(1, at(0)), Err(Error::NotPrimary));
    assert_eq!(engine.begin_revoke(1, at(0)), Err(Error::NotPrimary));
    engine.promote(Duration::ZERO);
    assert!(engine.renew(1, at(0)).is_ok());
}

#[test]
fn a_demotion_takes_back_ends_under_way() {
    let mut engine = with_leases([1, 2]);
    assert_eq!(engine.poll(at(10_000), 9), [1, 2]);
    engine.failed(2, at(10_000));
    engine.demote();
    assert!(engine.renew(1, at(10_001)).is_ok(), "the next primary renewed it");
    engine.promote(Duration::ZERO);
    assert_eq!(engine.poll(at(10_001), 9), [2]);
}

#[test]
fn an_end_from_before_65536_demotions_has_no_effect() {
    let mut engine = with_leases([1]);
    assert_eq!(engine.poll(at(10_000), 9), [1]);
    for _ in 0..=u16::MAX {
        engine.demote();
        engine.promote(Duration::ZERO);
    }
    assert!(engine.renew(1, at(10_000)).is_ok());
}

#[test]
fn suspended_time_stands_still_but_a_cap_runs_on() {
    let backoff = Backoff::default();
    let mut engine: LeaseEngine<u64> = LeaseEngine::new(Config { retry: backoff, ..Config::default() });
    engine.promote(Duration::ZERO);
    for id in [1, 2] {
        assert!(engine.grant(id, TTL, at(0)).is_ok());
        assert_eq!(engine.suspend(id, at(4000)), Ok(Duration::from_secs(6)));
    }
    assert_eq!(engine.set_end_by(2, Some(at(30_000))), Ok(()));
    assert!(engine.poll(at(29_999), 9).is_empty());
    assert_eq!(engine.poll(at(60_000), 9), [2]);
    assert_eq!(engine.remaining(1, at(60_000)), Some(Duration::from_secs(6)));
    assert_eq!(engine.resume(1, at(60_000)).map(|granted| granted.deadline), Ok(Some(at(66_000))));
    assert_eq!(engine.poll(at(66_000), 9), [1]);
}

#[test]
fn a_renewal_while_suspended_makes_what_remains_the_full_ttl() {
    let mut engine = with_leases([1]);
    assert_eq!(engine.suspend(1, at(9000)), Ok(Duration::from_secs(1)));
    assert!(engine.renew(1, at(9000)).is_ok());
    assert_eq!(engine.suspend(1, at(9500)), Ok(TTL.as_duration()), "suspended already");
}

#[test]
fn a_renewal_does_not_carry_a_lease_beyond_its_cap() {
    let mut engine = with_leases([1]);
    assert_eq!(engine.set_end_by(1, Some(at(12_000))), Ok(()));
    assert_eq!(engine.renew(1, at(9000)).map(|granted| granted.deadline), Ok(Some(at(12_000))));
    assert_eq!(engine.set_end_by(1, None), Ok(()));
    assert_eq!(engine.deadline(1), Some(at(19_000)));
}
