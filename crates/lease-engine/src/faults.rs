//! The faults of etcd's lessor, each with the number of its issue there: none of them happens here.

use std::time::{Duration, Instant};

use super::{AboveMax, Backoff, Config, Counts, Error, LeaseTime, Lessor, State, Ttl};

const TTL: Ttl = Ttl::from_secs(10);

fn at(millis: u64) -> LeaseTime {
    LeaseTime::from_millis(millis)
}

fn primary() -> Lessor<u64, &'static str> {
    let mut lessor = Lessor::new(Config::default());
    lessor.promote(Duration::ZERO);
    lessor
}

fn with_leases(ids: impl IntoIterator<Item = u64>) -> Lessor<u64, &'static str> {
    let mut lessor = primary();
    for id in ids {
        assert!(lessor.grant(id, TTL, at(0)).is_ok());
    }
    lessor
}

#[test]
fn etcd_9374_a_huge_ttl_does_not_overflow_into_the_past() {
    let mut lessor = primary();
    let asked = Ttl::from_secs(i64::MAX);
    assert_eq!(lessor.grant(1, asked, at(0)), Err(Error::TtlTooLarge { asked, max: Ttl::MAX }));
    let granted = lessor.grant(2, Ttl::from_secs(9_000_000_000), at(5));
    assert_eq!(granted.map(|granted| granted.ttl), Ok(Ttl::MAX));
    assert!(lessor.poll(at(9_000_000_000_004), 9).is_empty());
    assert_eq!(lessor.poll(at(9_000_000_000_005), 9), [2]);
}

#[test]
fn a_ttl_above_the_maximum_is_cut_where_the_configuration_says_so() {
    let max_ttl = Ttl::from_secs(60);
    let config = Config { max_ttl, above_max: AboveMax::Clamp, ..Config::default() };
    let mut lessor: Lessor<u64> = Lessor::new(config);
    let granted = lessor.grant(1, Ttl::from_secs(i64::MAX), at(0));
    assert_eq!(granted.map(|granted| granted.ttl), Ok(max_ttl));
}

#[test]
fn a_ttl_of_nothing_or_less_becomes_the_minimum() {
    let config = Config { min_ttl: Ttl::from_secs(5), ..Config::default() };
    let mut lessor: Lessor<u64> = Lessor::new(config);
    lessor.promote(Duration::ZERO);
    for (id, secs) in [(1, 0), (2, -1), (3, i64::MIN)] {
        let granted = lessor.grant(id, Ttl::from_secs(secs), at(0));
        assert_eq!(granted.map(|granted| granted.ttl), Ok(Ttl::from_secs(5)));
    }
    assert!(lessor.poll(at(4999), 9).is_empty());
    assert_eq!(lessor.poll(at(5000), 9), [1, 2, 3]);
}

#[test]
fn etcd_10686_an_end_that_failed_is_offered_until_it_succeeds() {
    let mut lessor = with_leases([1]);
    let mut now = at(10_000);
    for tries in 1..20u8 {
        assert_eq!(lessor.poll(now, 9), [1]);
        assert_eq!(lessor.lookup(1).map(|lease| lease.tries), Some(tries));
        let again = lessor.failed(1, now);
        assert!(again.is_some() && lessor.next_wakeup() <= again);
        now = again.unwrap_or(LeaseTime::NEVER);
        assert!(lessor.poll(now - Duration::from_millis(1), 9).is_empty());
    }
    assert!(lessor.counts().leases == 1 && lessor.ended(1).is_ok());
}

#[test]
fn etcd_10686_an_end_that_nobody_answers_is_offered_again_where_the_configuration_says_so() {
    let config = Config { answer_within: Some(Duration::from_secs(3)), ..Config::default() };
    let mut lessor: Lessor<u64> = Lessor::new(config);
    lessor.promote(Duration::ZERO);
    assert!(lessor.grant(1, TTL, at(0)).is_ok());
    assert_eq!(lessor.poll(at(10_000), 9), [1]);
    assert_eq!(lessor.next_wakeup(), Some(at(13_000)));
    assert!(lessor.poll(at(13_000), 9).is_empty());
    assert_eq!(lessor.poll(at(14_000), 9), [1]);
}

#[test]
fn a_stuck_end_is_visible() {
    let mut lessor = with_leases([1, 2]);
    assert_eq!(lessor.poll(at(10_000), 1), [1]);
    assert_eq!(lessor.poll(at(10_500), 1), [2]);
    assert!(lessor.ended(2).is_ok());
    assert_eq!(lessor.unanswered().collect::<Vec<_>>(), [(1, at(10_000))]);
    assert_eq!(lessor.counts(), Counts { leases: 1, ending: 1, ..Counts::default() });
}

#[test]
fn an_end_that_fails_does_not_delay_others() {
    let mut lessor = with_leases([1, 2, 3]);
    assert_eq!(lessor.poll(at(10_000), 1), [1]);
    lessor.failed(1, at(10_000));
    assert_eq!(lessor.poll(at(10_000), 9), [2, 3]);
}

#[test]
fn etcd_9888_a_change_of_primary_resets_no_ttl() {
    let mut lessor = with_leases([1]);
    for millis in (1000..10_000).step_by(1000) {
        lessor.demote();
        assert!(lessor.poll(at(millis), 9).is_empty());
        lessor.promote(Duration::ZERO);
        assert_eq!(lessor.deadline(1), Some(at(10_000)));
    }
    assert_eq!(lessor.poll(at(10_000), 9), [1]);
}

#[test]
fn a_promotion_extends_all_deadlines_where_it_is_asked_to() {
    let mut lessor = with_leases([1]);
    lessor.demote();
    lessor.promote(Duration::from_secs(5));
    assert!(lessor.poll(at(14_999), 9).is_empty());
    assert!(lessor.grant(2, Ttl::from_secs(1), at(14_999)).is_ok());
    assert_eq!(lessor.poll(at(15_000), 9), [1]);
    assert_eq!(lessor.poll(at(15_999), 9), [2]);
}

#[test]
fn etcd_17132_what_is_recorded_is_right_however_often_it_is_recorded() {
    let lessor = with_leases([1]);
    for millis in (0..=10_000).step_by(500) {
        let remaining = lessor.record(1, at(millis)).map(|record| record.remaining);
        assert_eq!(remaining, Some(Duration::from_millis(10_000 - millis)));
    }
    let record = lessor.record(1, at(4000));
    let mut restarted = primary();
    let restored = record.map(|record| restarted.restore(1, record.ttl, record.remaining, at(70_000)));
    assert!(restored.is_some_and(|restored| restored.is_ok()));
    assert_eq!(restarted.remaining(1, at(70_000)), Some(Duration::from_secs(6)));
    assert_eq!(restarted.renew(1, at(70_000)).map(|granted| granted.ttl), Ok(TTL));
}

#[test]
fn etcd_20590_a_renewal_does_not_succeed_once_the_end_has_begun() {
    let mut lessor = with_leases([1, 2]);
    assert_eq!(lessor.begin_revoke(1, at(0)), Ok(true));
    assert_eq!(lessor.renew(1, at(0)), Err(Error::LeaseExpired));
    assert_eq!(lessor.poll(at(10_000), 9), [2]);
    assert_eq!(lessor.renew(2, at(10_000)), Err(Error::LeaseExpired));
    assert_eq!(lessor.renew_with(2, TTL, at(10_000)), Err(Error::LeaseExpired));
    assert_eq!(lessor.suspend(2, at(10_000)), Err(Error::LeaseExpired));
}

#[test]
fn a_renewal_that_won_reinstates_the_lease() {
    let mut lessor = with_leases([1]);
    assert_eq!(lessor.poll(at(10_000), 9), [1]);
    assert!(lessor.reinstate(1, TTL, at(10_100)).is_ok());
    assert_eq!(lessor.lookup(1).map(|lease| lease.state), Some(State::Active));
    assert_eq!(lessor.failed(1, at(10_200)), None, "a late answer about the end that lost");
    assert!(lessor.poll(at(20_099), 9).is_empty());
    assert_eq!(lessor.poll(at(20_100), 9), [1]);
}

#[test]
fn an_attachment_while_the_end_is_under_way_is_refused_and_orphans_nothing() {
    let mut lessor = with_leases([1]);
    assert_eq!(lessor.attach(1, "a"), Ok(None));
    assert_eq!(lessor.poll(at(10_000), 9), [1]);
    assert_eq!(lessor.attach(1, "b"), Err(Error::LeaseExpired));
    assert_eq!(lessor.ended(1), Ok(vec!["a"]));
    assert_eq!(lessor.counts(), Counts::default());
}

#[test]
fn a_detach_or_revoke_by_a_former_owner_changes_nothing() {
    let mut lessor = with_leases([1, 2]);
    assert_eq!(lessor.attach(1, "a"), Ok(None));
    assert_eq!(lessor.attach(2, "a"), Ok(Some(1)));
    assert_eq!(lessor.detach(1, &"a"), Ok(false));
    assert_eq!(lessor.revoke(1), Ok(vec![]));
    assert_eq!(lessor.lease_of(&"a"), Some(2));
    assert_eq!(lessor.revoke(2), Ok(vec!["a"]));
}

#[test]
fn etcd_11495_nothing_grows_on_a_follower_that_sees_leases_come_and_go() {
    let mut lessor: Lessor<u64> = Lessor::new(Config::default());
    for id in 0..100_000 {
        let ttl = if id % 2 == 0 { Ttl::MAX } else { Ttl::from_secs(1) };
        assert!(lessor.grant(id, ttl, at(id)).is_ok());
        assert!(lessor.renew(id, at(id)).is_ok());
        assert!(lessor.ended(id).is_ok());
    }
    assert_eq!(lessor.slots_ever_used(), 1);
}

#[test]
fn etcd_16053_revoked_leases_leave_no_item_behind() {
    let mut lessor: Lessor<u64, String> = Lessor::new(Config::default());
    for round in 0..100u64 {
        assert!(lessor.grant(round, TTL, at(0)).is_ok());
        for item in 0..10 {
            assert!(lessor.attach(round, format!("{item}")).is_ok());
        }
        assert_eq!(lessor.revoke(round).map(|items| items.len()), Ok(10));
        assert_eq!(lessor.counts(), Counts::default());
    }
}

#[test]
fn etcd_12381_what_remains_is_never_negative_or_absurd() {
    let mut lessor = with_leases([1]);
    assert_eq!(lessor.remaining(1, at(10_001)), Some(Duration::ZERO));
    assert_eq!(lessor.remaining(1, LeaseTime::NEVER), Some(Duration::ZERO));
    assert_eq!(lessor.remaining(1, at(0)), Some(TTL.as_duration()));
    lessor.demote();
    assert_eq!(lessor.remaining(1, at(4000)), Some(Duration::from_secs(6)));
    lessor.promote(Duration::ZERO);
    lessor.poll(at(12_000), 9);
    assert_eq!(lessor.remaining(1, at(12_000)), Some(Duration::ZERO));
}

/// Not a benchmark: only far enough from etcd's seconds that no busy machine makes it fail.
fn takes_less_than(limit: Duration, act: impl FnOnce()) {
    #[allow(clippy::disallowed_methods)]
    let start = Instant::now();
    act();
    let took = start.elapsed();
    assert!(took < limit, "took {took:?}");
}

#[test]
fn etcd_9496_a_promotion_does_not_block_at_200_000_leases() {
    let mut lessor = with_leases(0..200_000);
    lessor.poll(at(10_000), 100_000);
    takes_less_than(Duration::from_millis(50), || {
        for _ in 0..100 {
            lessor.demote();
            lessor.promote(Duration::from_secs(1));
        }
    });
}

#[test]
fn etcd_12105_leases_that_end_together_end_without_lag_and_once_each() {
    let mut lessor = with_leases(0..200_000);
    let mut ended = 0;
    takes_less_than(Duration::from_secs(20), || {
        while lessor.counts().leases > 0 {
            assert!(lessor.next_wakeup().is_some_and(|at| at <= LeaseTime::from_millis(10_000)));
            for id in lessor.poll(at(10_000), 1000) {
                assert_eq!(id, ended);
                assert!(lessor.ended(id).is_ok());
                ended += 1;
            }
        }
    });
    assert_eq!(ended, 200_000);
    assert_eq!(lessor.next_wakeup(), None);
}

#[test]
fn ends_are_limited_to_the_configured_rate() {
    use std::num::NonZeroU32;
    let (Some(rate), Some(burst)) = (NonZeroU32::new(100), NonZeroU32::new(10)) else { return };
    let config = Config { expiry_rate: Some(super::Rate::new(rate, burst)), ..Config::default() };
    let mut lessor: Lessor<u64> = Lessor::new(config);
    lessor.promote(Duration::ZERO);
    (0..30).for_each(|id| assert!(lessor.grant(id, TTL, at(0)).is_ok()));
    let mut offered = Vec::new();
    while let Some(wakeup) = lessor.next_wakeup() {
        for id in lessor.poll(wakeup, 100) {
            offered.push((id, wakeup));
            assert!(lessor.ended(id).is_ok());
        }
    }
    assert!(offered.iter().map(|(id, _)| *id).eq(0..30), "in order");
    assert_eq!(offered.iter().filter(|(_, when)| *when == at(10_000)).count(), 10);
    assert_eq!(offered.last().map(|(_, when)| *when), Some(at(10_200)));
}

#[test]
fn renewals_under_heavy_load_get_more_time() {
    let stretch = super::Stretch { renewals_per_second: 10, at_most: 4 };
    let mut lessor: Lessor<u64> = Lessor::new(Config { stretch: Some(stretch), ..Config::default() });
    assert!(lessor.grant(1, TTL, at(0)).is_ok());
    let last = (0..20).map(|_| lessor.renew(1, at(500))).last();
    let granted = last.and_then(Result::ok);
    assert_eq!(granted.map(|granted| granted.ttl), Some(Ttl::from_secs(20)));
    assert_eq!(lessor.deadline(1), Some(at(20_500)));
    assert_eq!(lessor.renew(1, at(5000)).map(|granted| granted.ttl), Ok(TTL), "the load is over");
    assert_eq!(lessor.deadline(1), Some(at(20_500)), "what was granted stays granted");
}

#[test]
fn a_clock_that_jumps_ends_nothing_early_and_loses_nothing() {
    let mut lessor = with_leases([1]);
    assert!(lessor.poll(at(9000), 9).is_empty());
    assert!(lessor.grant(2, Ttl::from_millis(500), at(2000)).is_ok(), "the clock stepped back");
    assert_eq!(lessor.next_wakeup(), Some(at(2500)));
    assert!(lessor.poll(at(2499), 9).is_empty());
    assert_eq!(lessor.poll(at(2500), 9), [2]);
    assert_eq!(lessor.poll(at(1 << 43), 9), [1], "and far ahead");
}

#[test]
fn a_renewal_under_a_clock_that_stepped_back_takes_nothing_away() {
    let mut lessor = with_leases([1]);
    assert!(lessor.renew(1, at(5000)).is_ok());
    assert!(lessor.renew(1, at(4000)).is_ok());
    assert_eq!(lessor.deadline(1), Some(at(15_000)));
}

#[test]
fn a_renewal_in_the_millisecond_of_the_deadline_counts_until_the_end_has_begun() {
    let mut lessor = with_leases([1, 2]);
    let deadline = at(10_000);
    assert!(lessor.renew(1, deadline).is_ok());
    assert_eq!(lessor.poll(deadline, 9), [2]);
    assert_eq!(lessor.renew(2, deadline), Err(Error::LeaseExpired));
}

#[test]
fn an_instant_before_the_deadline_nothing_ends() {
    let mut lessor: Lessor<u64> = Lessor::new(Config::default());
    lessor.promote(Duration::ZERO);
    let granted_at = LeaseTime::from_nanos(1);
    assert!(lessor.grant(1, Ttl::from_millis(1), granted_at).is_ok());
    assert!(lessor.poll(LeaseTime::from_nanos(1_000_000), 9).is_empty());
    assert!(lessor.poll(LeaseTime::from_nanos(1_999_999), 9).is_empty());
    assert_eq!(lessor.poll(LeaseTime::from_nanos(2_000_000), 9), [1]);
}

#[test]
fn a_second_revoke_finds_nothing() {
    let mut lessor = with_leases([1, 2]);
    assert_eq!(lessor.revoke(1), Ok(vec![]));
    assert_eq!(lessor.revoke(1), Err(Error::LeaseNotFound));
    assert_eq!(lessor.poll(at(10_000), 9), [2]);
    assert_eq!(lessor.revoke(2), Ok(vec![]));
    assert_eq!(lessor.ended(2), Err(Error::LeaseNotFound));
    assert_eq!(lessor.failed(2, at(10_000)), None);
}

#[test]
fn a_lease_granted_to_a_follower_ends_after_its_promotion() {
    let mut lessor: Lessor<u64> = Lessor::new(Config::default());
    assert!(lessor.grant(1, TTL, at(0)).is_ok());
    assert!(lessor.renew(1, at(1000)).is_ok());
    assert!(lessor.poll(at(20_000), 9).is_empty());
    assert_eq!(lessor.overdue(at(20_000)), Some((1, at(11_000))));
    lessor.promote(Duration::ZERO);
    assert_eq!(lessor.poll(at(20_000), 9), [1]);
}

#[test]
fn followers_refuse_renewals_where_the_configuration_says_so() {
    let config = Config { followers_renew: false, ..Config::default() };
    let mut lessor: Lessor<u64> = Lessor::new(config);
    assert!(lessor.grant(1, TTL, at(0)).is_ok());
    assert_eq!(lessor.renew(1, at(0)), Err(Error::NotPrimary));
    assert_eq!(lessor.begin_revoke(1, at(0)), Err(Error::NotPrimary));
    lessor.promote(Duration::ZERO);
    assert!(lessor.renew(1, at(0)).is_ok());
}

#[test]
fn a_demotion_gives_back_what_was_ending() {
    let mut lessor = with_leases([1, 2]);
    assert_eq!(lessor.poll(at(10_000), 9), [1, 2]);
    lessor.failed(2, at(10_000));
    lessor.demote();
    assert!(lessor.renew(1, at(10_001)).is_ok(), "the next primary let it live");
    lessor.promote(Duration::ZERO);
    assert_eq!(lessor.poll(at(10_001), 9), [2]);
}

#[test]
fn an_end_from_before_65536_demotions_has_no_effect() {
    let mut lessor = with_leases([1]);
    assert_eq!(lessor.poll(at(10_000), 9), [1]);
    for _ in 0..=u16::MAX {
        lessor.demote();
        lessor.promote(Duration::ZERO);
    }
    assert!(lessor.renew(1, at(10_000)).is_ok());
}

#[test]
fn suspended_time_stands_still_but_a_cap_runs_on() {
    let backoff = Backoff::default();
    let mut lessor: Lessor<u64> = Lessor::new(Config { retry: backoff, ..Config::default() });
    lessor.promote(Duration::ZERO);
    for id in [1, 2] {
        assert!(lessor.grant(id, TTL, at(0)).is_ok());
        assert_eq!(lessor.suspend(id, at(4000)), Ok(Duration::from_secs(6)));
    }
    assert_eq!(lessor.set_end_by(2, Some(at(30_000))), Ok(()));
    assert!(lessor.poll(at(29_999), 9).is_empty());
    assert_eq!(lessor.poll(at(60_000), 9), [2]);
    assert_eq!(lessor.remaining(1, at(60_000)), Some(Duration::from_secs(6)));
    assert_eq!(lessor.resume(1, at(60_000)).map(|granted| granted.deadline), Ok(Some(at(66_000))));
    assert_eq!(lessor.poll(at(66_000), 9), [1]);
}

#[test]
fn a_renewal_while_suspended_makes_what_remains_the_full_ttl() {
    let mut lessor = with_leases([1]);
    assert_eq!(lessor.suspend(1, at(9000)), Ok(Duration::from_secs(1)));
    assert!(lessor.renew(1, at(9000)).is_ok());
    assert_eq!(lessor.suspend(1, at(9500)), Ok(TTL.as_duration()), "suspended already");
}

#[test]
fn a_renewal_does_not_carry_a_lease_beyond_its_cap() {
    let mut lessor = with_leases([1]);
    assert_eq!(lessor.set_end_by(1, Some(at(12_000))), Ok(()));
    assert_eq!(lessor.renew(1, at(9000)).map(|granted| granted.deadline), Ok(Some(at(12_000))));
    assert_eq!(lessor.set_end_by(1, None), Ok(()));
    assert_eq!(lessor.deadline(1), Some(at(19_000)));
}
