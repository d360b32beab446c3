//! The work of many keys.

use super::*;

#[test]
fn the_backoff_of_one_key_delays_no_other() {
    let mut lease = leader(s(0));
    lease.try_work("bad", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["bad"]);
    lease.done(&"bad", WorkResult::None, true, s(1), s(1));
    lease.try_work("good", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["good"]);
    assert_eq!(runs(&mut lease, ms(1019)), Vec::<&str>::new());
    assert_eq!(runs(&mut lease, ms(1020)), ["bad"]);
}

#[test]
fn retries_of_a_key_back_off_by_four_up_to_the_lease_duration() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(0));
    let mut now = s(0);
    for (attempt, wait) in (1..).zip([20, 80, 320, 1280, 5000, 5000]) {
        lease.wrote(1, now);
        assert_eq!(all(&mut lease, now), [Action::Run { key: "a", attempt, term: 1, until: now + LEASE }]);
        let finish = lease.done(&"a", WorkResult::None, true, now, now);
        assert_eq!(finish, Finish::Retries { at: now + ms(wait) });
        now += ms(wait);
    }
}

#[test]
fn hastening_a_key_ends_its_backoff_but_not_its_count() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.done(&"a", WorkResult::None, true, s(1), s(1));
    lease.hasten(&"a");
    assert_eq!(all(&mut lease, s(1)), [Action::Run { key: "a", attempt: 2, term: 1, until: s(5) }]);
}

#[test]
fn a_key_never_runs_twice_at_once() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.try_work("a", s(1));
    lease.hasten(&"a");
    assert_eq!(runs(&mut lease, s(1)), Vec::<&str>::new());
    lease.remove(&"a");
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), Vec::<&str>::new());
    assert_eq!(lease.done(&"a", WorkResult::Extend, false, s(1), s(2)), Finish::Requeued);
    assert_eq!(runs(&mut lease, s(2)), ["a"]);
    assert_eq!(lease.len(), 1);
}

#[test]
fn a_key_never_runs_twice_at_once_even_under_another_term() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.observe_claim(Holder::Nobody, 2, s(2));
    assert_eq!(all(&mut lease, s(2)), [claim_empty(3)]);
    lease.claimed(3, s(2), s(2));
    assert_eq!(all(&mut lease, s(2)), nothing());
    lease.done(&"a", WorkResult::None, true, s(1), s(2));
    assert_eq!(runs(&mut lease, ms(2020)), ["a"]);
}

#[test]
fn queuing_the_same_work_again_changes_nothing() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.done(&"a", WorkResult::None, true, s(1), s(1));
    let before = lease.clone();
    lease.try_work("a", s(1));
    assert_eq!(lease, before);
}

#[test]
fn work_queued_for_another_time_replaces_waiting_work() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(10));
    lease.try_work("a", s(70));
    assert_eq!(lease.len(), 1);
    assert_eq!(lease.wake_at(s(1)), Some(s(70) + HEAD_START));
}

#[test]
fn removed_work_does_not_run() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert!(lease.remove(&"a"));
    assert!(!lease.remove(&"a"));
    assert_eq!(all(&mut lease, s(1)), nothing());
}

#[test]
fn work_removed_while_it_runs_is_not_retried() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.remove(&"a");
    assert_eq!(lease.len(), 0);
    assert_eq!(lease.done(&"a", WorkResult::None, true, s(1), s(1)), Finish::Removed);
    assert_eq!(lease.wake_at(s(1)), None);
}

#[test]
fn work_is_given_up_after_its_retries() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    lease.limit_retries(&"a", 1);
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    assert!(matches!(lease.done(&"a", WorkResult::None, true, s(1), s(1)), Finish::Retries { .. }));
    assert_eq!(runs(&mut lease, s(2)), ["a"]);
    assert_eq!(lease.done(&"a", WorkResult::Extend, true, s(2), s(2)), Finish::GaveUp);
    assert_eq!(lease.lease_until(), Some(s(7)), "the result counts all the same");
    assert!(lease.is_empty());
}

#[test]
fn the_configured_limit_holds_for_all_keys() {
    let mut lease = WriterLease::new(Config { retry_limit: Some(0), ..config() });
    lease.observe_claim(Holder::Nobody, 0, s(0));
    lease.try_work("a", s(0));
    assert_eq!(all(&mut lease, s(0)), [claim_empty(1)]);
    lease.claimed(1, s(0), s(0));
    assert_eq!(runs(&mut lease, s(0)), ["a"]);
    assert_eq!(lease.done(&"a", WorkResult::None, true, s(0), s(0)), Finish::GaveUp);
}

#[test]
fn no_more_keys_run_at_once_than_configured() {
    let mut lease = WriterLease::new(Config { max_running: 2, ..config() });
    lease.observe_claim(Holder::Nobody, 0, s(0));
    assert_eq!(all(&mut lease, s(0)), [claim_empty(1)]);
    lease.claimed(1, s(0), s(0));
    for key in ["c", "b", "a"] {
        lease.try_work(key, s(1));
    }
    assert_eq!(runs(&mut lease, s(1)), ["a", "b"]);
    lease.done(&"a", WorkResult::Extend, false, s(1), s(1));
    assert_eq!(runs(&mut lease, s(1)), ["c"]);
}

#[test]
fn a_lane_that_is_stuck_leaves_half_of_the_slots_and_goes_on_when_it_moves() {
    let mut lease = WriterLease::new(Config { max_running: 4, ..config() });
    lease.observe_claim(Holder::Nobody, 0, s(0));
    assert_eq!(all(&mut lease, s(0)), [claim_empty(1)]);
    lease.claimed(1, s(0), s(0));
    for key in ["a", "b", "c", "d"] {
        lease.try_work_in(Lane::bounded(1), key, s(1));
    }
    assert_eq!(runs(&mut lease, s(1)), ["a", "b"]);
    // What waits for a slot is no reason to wake up.
    assert!(wake(&lease, s(1)) > s(1));
    lease.try_work_in(Lane::bounded(2), "other", s(2));
    assert_eq!(runs(&mut lease, s(2)), ["other"]);
    lease.try_work("urgent", s(2));
    lease.try_work_in(Lane::bounded(2), "another", s(2));
    assert_eq!(runs(&mut lease, s(2)), ["urgent"]);
    lease.done(&"other", WorkResult::Extend, false, s(2), s(2));
    lease.done(&"a", WorkResult::None, false, s(2), s(2));
    assert_eq!(runs(&mut lease, s(2)), ["c", "another"]);
    for key in ["b", "c", "another"] {
        lease.done(&key, WorkResult::None, false, s(2), s(2));
    }
    assert_eq!(runs(&mut lease, s(2)), ["d"]);
}

/// Leads under term 1, and runs so many keys at once.
fn leader_with_slots(max_running: usize) -> WriterLease<&'static str> {
    let mut lease = WriterLease::new(Config { max_running, ..config() });
    lease.observe_claim(Holder::Nobody, 0, s(0));
    assert_eq!(all(&mut lease, s(0)), [claim_empty(1)]);
    lease.claimed(1, s(0), s(0));
    lease
}

#[test]
fn a_trusted_lane_takes_all_slots_until_it_hangs_and_delays_others_by_half_a_second() {
    let mut lease = leader_with_slots(4);
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        lease.try_work_in(Lane::trusted(1), key, s(1));
    }
    assert_eq!(runs(&mut lease, s(1)), ["a", "b", "c", "d"]);
    lease.try_work_in(Lane::trusted(2), "other", ms(1100));
    assert_eq!(runs(&mut lease, ms(1100)), Vec::<&str>::new());
    assert_eq!(wake(&lease, ms(1100)), ms(1500));
    assert_eq!(runs(&mut lease, ms(1500)), ["other"]);
    // What hangs was given up. The lane is bounded for a while, and others have slots at once.
    for key in ["a", "b", "c", "d", "other"] {
        lease.done(&key, WorkResult::None, false, ms(1600), ms(1600));
    }
    assert_eq!(runs(&mut lease, ms(1600)), ["e", "f"]);
    lease.try_work_in(Lane::trusted(2), "other", ms(1600));
    lease.try_work_in(Lane::trusted(2), "another", ms(1600));
    assert_eq!(runs(&mut lease, ms(1600)), ["another", "other"]);
}

#[test]
fn a_trusted_lane_whose_work_fails_at_once_leaves_half_of_the_slots_to_others() {
    let mut lease = leader_with_slots(4);
    for key in ["a", "b", "c", "d", "e", "f"] {
        lease.try_work_in(Lane::trusted(1), key, s(1));
    }
    assert_eq!(runs(&mut lease, s(1)), ["a", "b", "c", "d"]);
    for key in ["a", "b", "c", "d"] {
        lease.done(&key, WorkResult::None, true, ms(1001), ms(1001));
    }
    assert_eq!(runs(&mut lease, ms(1001)), ["e", "f"]);
    lease.try_work_in(Lane::trusted(2), "other", ms(1001));
    assert_eq!(runs(&mut lease, ms(1001)), ["other"]);
}

#[test]
fn spare_lanes_run_from_when_they_may() {
    let mut lease = leader_with_slots(4);
    lease.spare_from(s(3));
    lease.try_work_later(Lane::spare(1), "early", s(1), s(2));
    lease.try_work_later(Lane::spare(2), "late", s(1), s(4));
    lease.wrote(1, s(2));
    assert_eq!(runs(&mut lease, s(2)), Vec::<&str>::new());
    assert_eq!(runs(&mut lease, s(3)), ["early"]);
    assert!(lease.runs_spare(&"early"));
    lease.wrote(1, s(4));
    assert_eq!(runs(&mut lease, s(4)), ["late"]);
}

#[test]
fn spare_lanes_take_turns() {
    let mut lease = leader_with_slots(8);
    lease.spare_from(s(3));
    for (lane, key) in [(1, "a"), (1, "b"), (2, "c"), (2, "d")] {
        lease.try_work_later(Lane::spare(lane), key, s(1), s(3 - lane));
    }
    lease.wrote(1, s(3));
    assert_eq!(runs(&mut lease, s(3)), ["a", "c", "b", "d"]);
}

#[test]
fn work_that_can_wait_gives_way_until_it_has_waited_for_ten_seconds() {
    let mut lease = leader_with_slots(1);
    for (key, due) in [("a", 1), ("b", 2), ("c", 2)] {
        lease.try_work_in(Lane::patient(1), key, s(due));
    }
    lease.try_work_in(Lane::trusted(1), "first", s(3));
    lease.try_work_in(Lane::trusted(1), "later", s(13));
    let mut order = |at: Duration| {
        lease.wrote(1, at);
        let ran = runs(&mut lease, at);
        for key in &ran {
            lease.done(key, WorkResult::None, false, at, at);
        }
        ran
    };
    // Without others it runs at once.
    assert_eq!(order(s(1)), ["a"]);
    assert_eq!(order(s(3)), ["first"]);
    assert_eq!(order(s(3)), ["b"]);
    assert_eq!(order(s(13)), ["c"]);
    assert_eq!(order(s(13)), ["later"]);
}

#[test]
fn a_follower_checks_what_can_be_checked_and_the_rest_with_growing_pauses() {
    let mut lease = follower(s(0));
    for key in ["a", "b", "c"] {
        lease.try_work_in(Lane::trusted(1), key, s(1));
    }
    lease.try_work_in(Lane::trusted(2), "other", s(2));
    assert_eq!(all(&mut lease, s(6)), [claim_overdue(2, "a")]);
    lease.unchecked(&"a", s(6));
    // The rest of the lane isn't tried, and the other one at once.
    assert_eq!(all(&mut lease, s(6)), [claim_overdue(2, "other")]);
    lease.unchecked(&"other", s(6));
    lease.remove(&"other");
    for (tried, pause) in [(6_250, 500), (6_750, 1_000), (7_750, 2_000)] {
        assert_eq!(all(&mut lease, ms(tried)), [claim_overdue(2, "a")]);
        lease.unchecked(&"a", ms(tried));
        assert_eq!(wake(&lease, ms(tried)), ms(tried + pause));
    }
    lease.checked(&"a");
    assert!(!lease.has_unchecked());
}

#[test]
fn work_that_is_queued_in_another_lane_moves_there() {
    let mut lease = WriterLease::new(Config { max_running: 2, ..config() });
    lease.observe_claim(Holder::Nobody, 0, s(0));
    assert_eq!(all(&mut lease, s(0)), [claim_empty(1)]);
    lease.claimed(1, s(0), s(0));
    lease.try_work_in(Lane::bounded(1), "a", s(1));
    lease.try_work_in(Lane::bounded(1), "b", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.try_work("b", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["b"]);
}

#[test]
fn finishing_a_key_that_does_not_run_is_reported() {
    let mut lease = leader(s(0));
    let before = lease.clone();
    assert_eq!(lease.done(&"a", WorkResult::Release, true, s(1), s(1)), Finish::Unknown);
    assert_eq!(lease, before);
}
