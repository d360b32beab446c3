//! Another leads.

use super::*;

#[test]
fn a_follower_holds_work_back() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    assert_eq!(all(&mut lease, ms(4999)), nothing());
    assert_eq!(lease.wake_at(s(1)), Some(s(5)));
    assert_eq!(lease.len(), 1);
}

#[test]
fn a_follower_waits_a_lease_duration_after_the_last_observed_write() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    lease.observe(1, s(4));
    assert_eq!(all(&mut lease, ms(8999)), nothing());
    assert_eq!(all(&mut lease, s(9)), [claim_overdue(2, "a")]);
}

#[test]
fn a_follower_gives_the_incumbent_half_a_lease_duration_on_any_work() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(100));
    assert_eq!(all(&mut lease, ms(102_499)), nothing());
    assert_eq!(lease.wake_at(s(100)), Some(ms(102_500)));
    assert_eq!(all(&mut lease, ms(102_500)), [claim_overdue(2, "a")]);
}

#[test]
fn a_head_start_of_less_than_half_a_lease_duration_counts_as_half() {
    let mut lease = WriterLease::new(Config { head_start: ms(1), ..config() });
    lease.observe_claim(Holder::Other, 1, s(0));
    lease.try_work("a", s(100));
    assert_eq!(lease.wake_at(s(100)), Some(ms(102_500)));
}

#[test]
fn work_overdue_when_it_is_queued_is_claimed_when_the_wait_is_over() {
    let mut lease = follower(s(50));
    lease.try_work("a", s(10));
    assert_eq!(lease.wake_at(s(50)), Some(s(55)));
}

#[test]
fn a_takeover_runs_the_work_under_the_next_term() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(10));
    assert_eq!(all(&mut lease, s(13)), [claim_overdue(2, "a")]);
    lease.claimed(2, s(13), s(14));
    let run = Action::Run { key: "a", attempt: 1, term: 2, until: s(18) };
    assert_eq!(all(&mut lease, s(14)), [run]);
}

#[test]
fn a_claim_may_return_a_higher_term_than_requested() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(10));
    assert_eq!(all(&mut lease, s(13)), [claim_overdue(2, "a")]);
    lease.claimed(9, s(13), s(14));
    assert_eq!(lease.leading_term(), Some(9));
    assert_eq!(lease.next_term(), 10);
}

#[test]
fn an_observed_write_of_the_key_drops_its_work_and_extends_the_wait() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    lease.try_work("b", s(1));
    lease.extend(&"a", s(3));
    assert!(!lease.contains(&"a"));
    assert_eq!(lease.state(), State::Follower { until: s(8) });
    assert_eq!(all(&mut lease, s(8)), [claim_overdue(2, "b")]);
}

/// Fault of the original: what is observed without queued work extends nothing.
#[test]
fn observations_without_queued_work_extend_the_wait() {
    let mut lease = follower(s(0));
    lease.extend(&"a", s(3));
    assert_eq!(lease.state(), State::Follower { until: s(8) });
    assert_eq!(lease.observe(1, s(4)), Observation::Followed);
    assert_eq!(lease.state(), State::Follower { until: s(9) });
}

#[test]
fn late_writes_of_an_earlier_primary_extend_no_wait() {
    let mut lease = follower(s(0));
    lease.observe_claim(Holder::Other, 4, s(1));
    assert_eq!(lease.observe(3, s(2)), Observation::Ignored);
    assert_eq!(lease.observe_claim(Holder::Other, 3, s(2)), Observation::Ignored);
    assert_eq!(lease.state(), State::Follower { until: s(6) });
}

#[test]
fn a_disconnect_prolongs_the_wait_of_a_follower_by_its_length() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    lease.reconnected(s(58), s(60));
    assert_eq!(lease.wake_at(s(60)), Some(s(63)), "three of five seconds were left");
    // The head start of the incumbent is prolonged as well.
    let mut lease = follower(s(0));
    lease.try_work("a", s(6));
    lease.reconnected(s(52), s(60));
    assert_eq!(lease.wake_at(s(60)), Some(ms(60_500)));
}

#[test]
fn a_follower_claims_though_it_is_disconnected_for_a_second_again_and_again() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    let claims = (2..20).step_by(2).find(|at| {
        lease.reconnected(s(1), s(*at));
        lease.wake_at(s(*at)).is_some_and(|wake| wake <= s(*at))
    });
    assert_eq!(claims, Some(10));
}

#[test]
fn a_challenge_that_is_not_answered_is_a_reason_to_claim() {
    let claim = [claim_unanswered(2)];
    let mut lease = follower(s(0));
    lease.await_answer(Some(s(4)));
    assert_eq!(lease.wake_at(s(4)), Some(s(5)), "not before a lease duration after the last write");
    assert_eq!(all(&mut lease, s(5)), claim);
    let mut answered = follower(s(0));
    answered.await_answer(Some(s(7)));
    answered.await_answer(None);
    assert_eq!(answered.wake_at(s(7)), None);
}

#[test]
fn a_writer_that_knows_less_claims_a_vacant_object_after_others() {
    let mut lease = follower(s(0));
    lease.observe_claim(Holder::Nobody, 1, s(6));
    assert_eq!(lease.wake_at(s(6)), Some(s(6)));
    lease.hesitate(s(2));
    assert_eq!(lease.wake_at(s(6)), Some(s(8)));
    lease.observe_claim(Holder::Other, 2, s(7));
    assert_eq!(lease.wake_at(s(8)), None);
}

#[test]
fn a_disconnect_leaves_the_lease_of_a_leader_alone() {
    let mut lease = leader(s(0));
    let before = lease.clone();
    lease.reconnected(s(1), s(3));
    assert_eq!(lease, before);
}

#[test]
fn all_backoffs_end_with_an_outage() {
    let mut lease = leader(s(0));
    for key in ["a", "b"] {
        lease.try_work(key, s(1));
    }
    assert_eq!(runs(&mut lease, s(1)), ["a", "b"]);
    for key in ["a", "b"] {
        lease.done(&key, WorkResult::None, true, s(1), s(1));
    }
    lease.reconnected(s(1), s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a", "b"]);

    let mut lease = leader(s(0));
    lease.try_work("a", s(60));
    for _ in 0..10 {
        assert_eq!(all(&mut lease, s(60)), [Action::Prove { term: 1 }]);
        lease.arbitration_failed(s(60));
        lease.reconnected(s(1), s(60));
    }
}

#[test]
fn a_read_that_is_answered_before_a_write_that_fails_shortens_no_backoff_after_it() {
    let mut lease = election();
    lease.observe_claim(Holder::Nobody, 0, s(0));
    let mut now = s(0);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        assert_eq!(all(&mut lease, now), [claim_empty(1)]);
        lease.reconnected(Duration::ZERO, now);
        lease.arbitration_failed(now);
        let next = wake(&lease, now);
        pauses.push(next - now);
        now = next;
    }
    assert_eq!(pauses[..4], [ms(20), ms(80), ms(320), ms(1280)]);
    assert!(pauses[4..].iter().all(|pause| *pause == LEASE / 3), "{pauses:?}");
}

#[test]
fn a_follower_without_work_never_claims() {
    let lease = follower(s(0));
    assert_eq!(lease.wake_at(s(1)), None);
}

#[test]
fn a_vacated_object_is_claimed_at_once_despite_the_wait() {
    let mut lease = follower(s(0));
    lease.observe(1, s(1));
    lease.observe_claim(Holder::Nobody, 1, s(2));
    assert_eq!(all(&mut lease, s(2)), [claim_empty(2)]);
}

#[test]
fn a_vacancy_that_another_fills_is_not_claimed() {
    let mut lease = WriterLease::<u8>::new(Config::default());
    lease.observe_claim(Holder::Other, 1, s(0));
    lease.observe_claim(Holder::Nobody, 1, s(2));
    assert!(lease.wake_at(s(2)).is_some());
    lease.observe_claim(Holder::Other, 2, s(2));
    assert_eq!(lease.wake_at(s(2)), None);
}

#[test]
fn a_writer_that_abstains_tries_again_a_little_later() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    assert_eq!(all(&mut lease, s(5)), [claim_overdue(2, "a")]);
    lease.abstained(s(5));
    assert_eq!(lease.state(), State::Follower { until: s(5) });
    assert_eq!(lease.wake_at(s(5)), Some(ms(5625)));
    lease.remove(&"a");
    assert_eq!(lease.wake_at(s(5)), None);
}
