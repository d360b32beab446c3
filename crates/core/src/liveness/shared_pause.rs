//! For how long nothing could be written, as replicas tell each other.
//!
//! Only a write shows that the API server can't write, and at a deadline only the primary writes. What it then holds its
//! followers have to hold too, lest they take a lease for overdue that isn't, depose the primary, and end the lease. So the
//! `Lessor` carries one sum of all such times, which only grows. Each replica knows how much of it it has held itself, and
//! holds the rest.

use std::time::Duration;

use lease_engine::clock::LeaseClock;

use crate::{clocks::Now, leadership::election::Known};

/// For how long what a replica has held itself is remembered.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The common sum, and what this replica has held itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedPause {
    /// The `Lessor` that says so.
    uid: Option<String>,
    /// The sum as last seen, and since when it may have grown.
    sum: Duration,
    seen_at: Duration,
    /// How much of what this replica has found out itself is said, or none of the others' time.
    found: Duration,
    /// All that this replica has held, for whatever reason, and of late: when each time was over, and how long it was.
    held: Duration,
    lately: Vec<(Duration, Duration)>,
}

impl SharedPause {
    /// This replica has seen the sum for the first time: what was before is none of its time.
    pub fn new(known: &Known, now: &Now) -> Self {
        Self {
            uid: known.uid.clone(),
            sum: known.held(),
            seen_at: now.mono,
            found: now.paused_unwritable,
            held: now.held(),
            lately: Vec::new(),
        }
    }

    /// What this replica has found out and nobody has said yet.
    pub fn unsaid(&self, now: &Now) -> Duration {
        now.paused_unwritable.saturating_sub(self.found)
    }

    /// The sum with that.
    pub fn sum(&self, now: &Now) -> Duration {
        self.sum.saturating_add(self.unsaid(now))
    }

    /// A write of the `Lessor` was accepted: what this replica had found out when it was sent is said.
    pub fn said(&mut self, paused_unwritable: Duration) {
        self.found = self.found.max(paused_unwritable);
    }

    /// Takes in how much this replica has held by now. To be called whenever that may have changed.
    pub fn note(&mut self, now: &Now) {
        let more = now.held().saturating_sub(self.held);
        if more.is_zero() {
            return;
        }
        self.held += more;
        match self.lately.last_mut() {
            Some((until, length)) if *until + more >= now.mono => {
                *length += more;
                *until = now.mono;
            }
            _ => self.lately.push((now.mono, more)),
        }
        self.lately.retain(|(until, _)| now.mono < *until + REMEMBERED);
    }

    /// Takes in what this replica itself has written.
    pub fn see_own(&mut self, known: &Known, now: &Now) {
        let said = self.see_sum(known, now).min(self.unsaid(now));
        self.found += said;
    }

    /// Takes in what another has written. Answers with how much of it this replica has yet to hold.
    ///
    /// That is no more than the time since the sum last grew and what may be doubted before, whatever somebody has written there.
    pub fn see(&mut self, known: &Known, now: &Now) -> Duration {
        self.note(now);
        let possible = now.mono.saturating_sub(self.seen_at) + LeaseClock::DOUBT;
        let more = self.see_sum(known, now).min(possible);
        // What the primary doesn't say happened to this replica alone.
        self.found = now.paused_unwritable;
        // What it has held of that very time, or will once something is written, it needn't hold again.
        let from = now.mono.saturating_sub(more);
        let counted = self.lately.iter().map(|(until, length)| until.saturating_sub(from).min(*length));
        let missed = more.saturating_sub(counted.sum::<Duration>().max(now.doubted));
        if !more.is_zero() {
            self.lately.retain(|(until, _)| *until <= from);
        }
        self.held += missed;
        missed
    }

    /// By how much the sum has grown.
    fn see_sum(&mut self, known: &Known, now: &Now) -> Duration {
        if self.uid != known.uid {
            self.uid.clone_from(&known.uid);
            self.sum = Duration::ZERO;
        }
        let more = known.held().saturating_sub(self.sum);
        self.sum = known.held();
        if !more.is_zero() {
            self.seen_at = now.mono;
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use lease_engine::LeaseTime;
    use lessor_api::LessorStatus;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn says(held: i64) -> Known {
        let paused_milliseconds = Some(held.saturating_mul(1000));
        Known {
            uid: None,
            version: 0,
            status: LessorStatus { paused_milliseconds, ..LessorStatus::default() },
        }
    }

    /// So long after the start, of which this replica has held that much, and as much of it as is said since nothing could be
    /// written.
    fn at(mono: u64, held: u64, paused_unwritable: u64) -> Now {
        Now {
            mono: seconds(mono),
            lease: LeaseTime::from_duration(seconds(mono - held)),
            paused_unwritable: seconds(paused_unwritable),
            ..Now::start(Timestamp::UNIX_EPOCH)
        }
    }

    #[test]
    fn each_holds_what_others_have_found_out_and_it_has_not() {
        let mut held = SharedPause::new(&says(100), &at(10, 5, 2));
        assert_eq!(held.see(&says(100), &at(20, 5, 2)), seconds(0));
        assert_eq!(held.see(&says(130), &at(50, 15, 12)), seconds(20));
        // It has done so.
        assert_eq!(held.sum(&at(60, 35, 12)), seconds(130));
        assert_eq!(held.see(&says(130), &at(60, 35, 12)), seconds(0));
        // What it finds out itself it says to others, once.
        assert_eq!(held.sum(&at(90, 45, 22)), seconds(140));
        held.see_own(&says(140), &at(90, 45, 22));
        assert_eq!(held.sum(&at(95, 45, 22)), seconds(140));
        held.said(seconds(22));
        assert_eq!(held.unsaid(&at(96, 47, 24)), seconds(2));
    }

    #[test]
    fn what_a_replica_that_was_deaf_meanwhile_has_held_is_not_held_again() {
        let mut held = SharedPause::new(&says(0), &at(10, 0, 0));
        // For ten seconds long before, and for fifteen of the twenty.
        held.note(&at(100, 10, 0));
        held.note(&at(215, 25, 0));
        assert_eq!(held.see(&says(20), &at(220, 25, 0)), seconds(5));
    }

    #[test]
    fn what_was_one_replicas_own_trouble_is_said_by_nobody_and_excuses_nothing_later() {
        let mut held = SharedPause::new(&says(0), &at(10, 0, 0));
        assert_eq!(held.see(&says(0), &at(60, 40, 40)), seconds(0));
        assert_eq!(held.unsaid(&at(1000, 40, 40)), seconds(0));
        assert_eq!(held.see(&says(40), &at(1000, 40, 40)), seconds(40));
    }

    #[test]
    fn what_is_in_doubt_is_held_when_it_is_not_any_more() {
        let mut clock = LeaseClock::new(seconds(0));
        let now = |clock: &LeaseClock, mono| Now {
            mono: seconds(mono),
            lease: clock.now(seconds(mono)),
            paused_unwritable: clock.paused_unwritable(seconds(mono)),
            doubted: clock.tentative_pause(seconds(mono)),
            ..Now::start(Timestamp::UNIX_EPOCH)
        };
        let mut held = SharedPause::new(&says(0), &now(&clock, 10));
        clock.write_observed(seconds(93));
        clock.write_failed(seconds(95));
        let missed = held.see(&says(10), &now(&clock, 100));
        assert_eq!(missed, seconds(3));
        clock.hold(missed);
        clock.write_observed(seconds(100));
        assert_eq!(clock.now(seconds(100)), LeaseTime::from_duration(seconds(90)));
        assert_eq!(held.sum(&now(&clock, 100)), seconds(10));
    }

    #[test]
    fn of_two_sums_seen_before_anything_is_held_each_counts_once() {
        let mut held = SharedPause::new(&says(0), &at(10, 0, 0));
        assert_eq!(held.see(&says(20), &at(50, 0, 0)), seconds(20));
        assert_eq!(held.see(&says(25), &at(50, 0, 0)), seconds(5));
        assert_eq!(held.see(&says(28), &at(60, 25, 0)), seconds(3));
    }

    #[test]
    fn a_lessor_made_anew_begins_a_new_sum() {
        let mut held = SharedPause::new(&says(100), &at(10, 0, 0));
        let anew = Known { uid: Some("another".to_owned()), ..says(30) };
        assert_eq!(held.see(&anew, &at(100, 0, 0)), seconds(30));
    }

    #[test]
    fn nobody_can_write_more_into_the_lessor_than_may_have_passed() {
        let mut held = SharedPause::new(&says(0), &at(10, 0, 0));
        assert_eq!(held.see(&says(0), &at(20, 0, 0)), seconds(0));
        assert_eq!(held.see(&says(i64::MAX), &at(30, 0, 0)), seconds(20 + 60));
        assert_eq!(held.see(&says(i64::MAX), &at(100, 80, 0)), seconds(0));
    }
}
