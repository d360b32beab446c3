use std::time::Duration;

use super::{State, WriterLease};
use crate::writer_lease::{Action, Backoff, Config, Finish, Holder, Observation, Reason, Term, WorkResult};

const LEASE: Duration = Duration::from_secs(5);
const HEAD_START: Duration = Duration::from_millis(2500);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Five seconds, without jitter, so that times are exact.
fn config() -> Config {
    Config { backoff: Backoff { jitter_percent: 0, ..Backoff::default() }, ..Config::new(LEASE) }
}

fn election() -> WriterLease<&'static str> {
    WriterLease::new(config())
}

/// Leads under term 1 since `at`.
fn leader(at: Duration) -> WriterLease<&'static str> {
    let mut lease = election();
    lease.observe_claim(Holder::Nobody, 0, at);
    assert_eq!(all(&mut lease, at), [claim_empty(1)]);
    lease.claimed(1, at, at);
    lease
}

/// Follows another that claimed term 1 at `at`.
fn follower(at: Duration) -> WriterLease<&'static str> {
    let mut lease = election();
    assert_eq!(lease.observe_claim(Holder::Other, 1, at), Observation::Followed);
    lease
}

/// Everything to be done at `now`.
fn all(lease: &mut WriterLease<&'static str>, now: Duration) -> Vec<Action<&'static str>> {
    std::iter::from_fn(|| lease.poll(now)).collect()
}

/// When it wants to be polled, or never.
fn wake<K: Ord + Clone>(lease: &WriterLease<K>, now: Duration) -> Duration {
    lease.wake_at(now).unwrap_or(Duration::MAX)
}

/// The keys that run at `now`; fails if anything else is asked.
fn runs(lease: &mut WriterLease<&'static str>, now: Duration) -> Vec<&'static str> {
    let key = |action| match action {
        Action::Run { key, .. } => key,
        other => panic!("{other:?} instead of a run"),
    };
    all(lease, now).into_iter().map(key).collect()
}

fn claim_empty(term: Term) -> Action<&'static str> {
    Action::Claim { term, reason: Reason::Empty }
}

fn claim_overdue(term: Term, key: &'static str) -> Action<&'static str> {
    Action::Claim { term, reason: Reason::Overdue(key) }
}

fn nothing() -> Vec<Action<&'static str>> {
    vec![]
}

// --- Election ------------------------------------------------------------------------------------

#[test]
fn an_election_without_work_or_word_asks_for_nothing() {
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
fn an_empty_arbitration_object_is_claimed_without_work() {
    let mut lease = election();
    assert_eq!(lease.observe_claim(Holder::Nobody, 7, s(1)), Observation::Vacant);
    assert_eq!(all(&mut lease, s(1)), [claim_empty(8)]);
    assert_eq!(all(&mut lease, s(1)), nothing(), "one claim at a time");
}

#[test]
fn replicas_claim_an_empty_object_at_different_times() {
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
fn an_empty_object_that_another_was_faster_to_claim_is_left_alone() {
    let mut lease = election();
    lease.observe_claim(Holder::Nobody, 0, s(1));
    assert_eq!(all(&mut lease, s(1)), [claim_empty(1)]);
    lease.lost(s(1));
    assert_eq!(lease.wake_at(s(1)), None);
}

// --- Leader --------------------------------------------------------------------------------------

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
fn no_result_leaves_the_lease_as_it_is() {
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
fn an_idle_leader_asks_for_nothing() {
    let lease = leader(s(0));
    assert_eq!(lease.wake_at(s(1)), None);
    assert_eq!(lease.wake_at(s(1000)), None);
}

#[test]
fn a_failed_proof_is_repeated_after_a_growing_backoff_and_demotes_nobody() {
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
fn who_gave_up_lets_others_go_first() {
    let mut lease = leader(s(0));
    lease.resign(s(1));
    assert_eq!(all(&mut lease, s(1)), [Action::Resign { term: 1 }]);
    assert_eq!(lease.observe_claim(Holder::Nobody, 1, s(1)), Observation::Vacant);
    assert_eq!(lease.wake_at(s(1)), Some(s(1) + HEAD_START));
    assert_eq!(all(&mut lease, s(1) + HEAD_START), [claim_empty(2)]);
}

#[test]
fn to_resign_without_the_lead_does_nothing() {
    let mut lease = follower(s(0));
    let before = lease.clone();
    lease.resign(s(1));
    assert_eq!(lease, before);
}

// --- Follower ------------------------------------------------------------------------------------

#[test]
fn a_follower_holds_work_back() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    assert_eq!(all(&mut lease, ms(4999)), nothing());
    assert_eq!(lease.wake_at(s(1)), Some(s(5)));
    assert_eq!(lease.len(), 1);
}

#[test]
fn a_follower_waits_a_lease_duration_after_the_last_write_it_saw() {
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
fn work_overdue_when_it_is_tried_is_claimed_when_the_wait_is_over() {
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
fn a_claim_may_come_back_with_a_higher_term_than_asked() {
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
fn late_news_of_an_earlier_primary_extend_nothing() {
    let mut lease = follower(s(0));
    lease.observe_claim(Holder::Other, 4, s(1));
    assert_eq!(lease.observe(3, s(2)), Observation::Ignored);
    assert_eq!(lease.observe_claim(Holder::Other, 3, s(2)), Observation::Ignored);
    assert_eq!(lease.state(), State::Follower { until: s(6) });
}

#[test]
fn a_follower_that_was_deaf_waits_anew() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    lease.deaf_until(s(60));
    assert_eq!(lease.wake_at(s(60)), Some(s(65)));
}

#[test]
fn deafness_leaves_the_lease_of_a_leader_alone() {
    let mut lease = leader(s(0));
    let before = lease.clone();
    lease.deaf_until(s(3));
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
    lease.deaf_until(s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a", "b"]);

    let mut lease = leader(s(0));
    lease.try_work("a", s(60));
    for _ in 0..10 {
        assert_eq!(all(&mut lease, s(60)), [Action::Prove { term: 1 }]);
        lease.arbitration_failed(s(60));
        lease.deaf_until(s(60));
    }
}

#[test]
fn a_follower_without_work_never_claims() {
    let lease = follower(s(0));
    assert_eq!(lease.wake_at(s(1)), None);
}

#[test]
fn a_vacated_object_is_claimed_at_once_whatever_the_wait() {
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
fn who_abstains_asks_again_a_little_later() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    assert_eq!(all(&mut lease, s(5)), [claim_overdue(2, "a")]);
    lease.abstained(s(5));
    assert_eq!(lease.state(), State::Follower { until: s(5) });
    assert_eq!(lease.wake_at(s(5)), Some(ms(5625)));
    lease.remove(&"a");
    assert_eq!(lease.wake_at(s(5)), None);
}

// --- Demotion ------------------------------------------------------------------------------------

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
fn terms_that_are_learned_extend_no_wait() {
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
fn own_writes_and_claims_are_no_news() {
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
fn runs_of_an_earlier_term_extend_nothing() {
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
fn an_object_cleared_under_its_leader_is_claimed_anew_while_it_works_on() {
    let mut lease = leader(s(0));
    lease.observe_claim(Holder::Nobody, 1, s(1));
    lease.try_work("a", s(1));
    let run = Action::Run { key: "a", attempt: 1, term: 1, until: s(5) };
    assert_eq!(all(&mut lease, s(1)), [claim_empty(2), run]);
    lease.claimed(2, s(1), s(1));
    assert_eq!(lease.leading_term(), Some(2));
}

#[test]
fn a_proof_that_finds_the_object_deleted_claims_it_anew_at_once() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(60));
    assert_eq!(all(&mut lease, s(60)), [Action::Prove { term: 1 }]);
    lease.lost(s(60));
    lease.observe_claim(Holder::Nobody, 0, s(60));
    assert_eq!(all(&mut lease, s(60)), [claim_empty(2)]);
}

// --- Claims of unknown outcome -------------------------------------------------------------------

#[test]
fn an_own_claim_whose_answer_was_lost_is_adopted_and_proved() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(10));
    assert_eq!(all(&mut lease, s(13)), [claim_overdue(2, "a")]);
    lease.arbitration_failed(s(18));
    assert_eq!(lease.observe_claim(Holder::Me, 2, s(19)), Observation::Adopted);
    assert_eq!(lease.leading_term(), Some(2));
    assert_eq!(all(&mut lease, s(19)), [Action::Prove { term: 2 }]);
}

#[test]
fn a_claim_seen_before_its_answer_is_the_same_claim() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(10));
    assert_eq!(all(&mut lease, s(13)), [claim_overdue(2, "a")]);
    lease.observe_claim(Holder::Me, 2, s(13));
    assert_eq!(all(&mut lease, s(13)), nothing());
    lease.claimed(2, s(13), s(13));
    assert_eq!(runs(&mut lease, s(13)), ["a"]);
}

#[test]
fn a_claim_in_the_own_name_from_before_the_start_is_claimed_over() {
    let mut lease = election();
    assert_eq!(lease.observe_claim(Holder::Me, 5, s(1)), Observation::Vacant);
    assert_eq!(all(&mut lease, s(1)), [claim_empty(6)]);
}

#[test]
fn a_claim_that_was_overtaken_before_its_answer_came_leads_nobody() {
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

// --- Absurd terms --------------------------------------------------------------------------------

#[test]
fn an_absurd_term_is_reported_and_locks_nobody_out() {
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
fn terms_that_a_deleted_arbitration_object_left_behind_are_no_absurdity() {
    let mut lease = election();
    lease.observe_claim(Holder::Nobody, 0, s(0));
    assert_eq!(lease.learn_term(5000, s(0)), Observation::Ignored);
    assert_eq!(all(&mut lease, s(0)), [claim_empty(5001)]);
}

#[test]
fn a_term_that_may_have_been_claimed_is_no_absurdity() {
    let mut lease = follower(s(0));
    assert_eq!(lease.observe(5_000_000, s(1)), Observation::Absurd);
    lease.allow_terms(5_000_000);
    lease.allow_terms(7);
    assert_eq!(lease.observe(5_000_001, s(1)), Observation::Absurd);
    assert_eq!(lease.observe(5_000_000, s(1)), Observation::Followed);
    assert_eq!(lease.next_term(), 5_000_001);
}

// --- Keys ----------------------------------------------------------------------------------------

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
fn to_hasten_a_key_ends_its_backoff_but_not_its_count() {
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
fn to_try_the_same_work_again_changes_nothing() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.done(&"a", WorkResult::None, true, s(1), s(1));
    let before = lease.clone();
    lease.try_work("a", s(1));
    assert_eq!(lease, before);
}

#[test]
fn work_tried_for_another_time_replaces_what_waits() {
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
fn only_so_many_keys_run_at_once() {
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
fn to_finish_what_does_not_run_is_told() {
    let mut lease = leader(s(0));
    let before = lease.clone();
    assert_eq!(lease.done(&"a", WorkResult::Release, true, s(1), s(1)), Finish::Unknown);
    assert_eq!(lease, before);
}

// --- Work that fails -----------------------------------------------------------------------------

#[test]
fn a_leader_whose_work_keeps_failing_proves_itself_every_third_of_a_lease_duration() {
    let mut lease = leader(s(0));
    lease.try_work("bad", s(0));
    let (mut now, mut proofs) = (s(0), 0);
    while now < s(60) {
        for action in all(&mut lease, now) {
            match action {
                Action::Run { key, .. } => {
                    lease.done(&key, WorkResult::None, true, now, now);
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
    let mut now = s(0);
    while now < s(60) {
        for key in runs(&mut lease, now) {
            lease.done(&key, WorkResult::None, true, now, now);
        }
        now += s(1);
        lease.wrote(1, now);
    }
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
fn a_leader_that_is_to_show_itself_proves_once_though_its_lease_has_not_lapsed() {
    let mut lease = leader(s(0));
    lease.show(s(1));
    assert_eq!(all(&mut lease, s(1)), [Action::Prove { term: 1 }]);
    lease.show(s(2));
    lease.proved(1, s(1));
    assert_eq!((lease.last_sign(), lease.wake_at(s(2))), (s(1), None));
}

#[test]
fn a_write_that_is_accepted_shows_a_leader_too() {
    let mut lease = leader(s(0));
    lease.show(s(1));
    lease.wrote(1, s(1));
    assert_eq!(all(&mut lease, s(1)), []);
}

// --- Expire --------------------------------------------------------------------------------------

#[test]
fn an_expired_lease_is_claimed_anew_before_it_runs_anything() {
    let mut lease = leader(s(0));
    lease.expire();
    assert_eq!(lease.state(), State::Election);
    lease.try_work("a", s(1));
    assert_eq!(all(&mut lease, s(1)), [claim_empty(2)]);
}

#[test]
fn an_expired_follower_looks_again_but_takes_nothing_from_the_living() {
    let mut lease = follower(s(0));
    lease.try_work("a", s(1));
    lease.expire();
    assert_eq!(all(&mut lease, s(1)), [claim_empty(2)]);
    lease.lost(s(1));
    assert_eq!(lease.state(), State::Follower { until: s(6) });
}

#[test]
fn a_run_from_before_the_lease_expired_extends_nothing() {
    let mut lease = leader(s(0));
    lease.try_work("a", s(1));
    assert_eq!(runs(&mut lease, s(1)), ["a"]);
    lease.expire();
    lease.done(&"a", WorkResult::Extend, false, s(1), s(1));
    assert_eq!(lease.state(), State::Election);
}
