//! For how long nothing could be written, as replicas tell each other.
//!
//! Only a write shows that the API server can't write, and at a deadline only the primary writes. What it then holds its
//! followers have to hold too, lest they take a lease for overdue that isn't, depose the primary, and end the lease. So the
//! `Lessor` carries one sum of all such times, which only grows. Each replica knows how much of it it has held itself, and
//! holds the rest.

use std::time::Duration;

use super::hearing::Now;
use crate::lessor::clock::LeaseClock;

/// For how long what a replica has held itself is remembered.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The common sum, and what this replica has held itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CommonHeld {
    /// The sum as last seen, and when.
    sum: Duration,
    seen_at: Duration,
    /// What this replica has found out itself of it.
    found: Duration,
    /// All that this replica has held, for whatever reason, and of late: when each time was over, and how long it was.
    held: Duration,
    lately: Vec<(Duration, Duration)>,
}

impl CommonHeld {
    /// This replica has seen the sum for the first time: what was before is none of its time.
    pub fn new(sum: Duration, now: &Now) -> Self {
        Self { sum, seen_at: now.mono, found: now.unwritable, held: held(now), lately: Vec::new() }
    }

    /// The sum with what this replica has found out and nobody has said yet.
    pub fn sum(&self, now: &Now) -> Duration {
        self.sum.saturating_add(now.unwritable.saturating_sub(self.found))
    }

    /// Takes in how much this replica has held by now. To be called whenever that may have changed.
    pub fn note(&mut self, now: &Now) {
        let more = held(now).saturating_sub(self.held);
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

    /// Takes in what the `Lessor` says. Answers with how much of it this replica has yet to hold.
    ///
    /// That is no more than the time since it last looked and what may be doubted before, whatever somebody has written there.
    pub fn see(&mut self, sum: Duration, now: &Now) -> Duration {
        self.note(now);
        let possible = now.mono.saturating_sub(self.seen_at) + LeaseClock::DOUBT;
        let more = sum.saturating_sub(self.sum);
        self.sum = sum;
        self.seen_at = now.mono;
        let found = more.min(now.unwritable.saturating_sub(self.found));
        self.found += found;
        let more = more.min(possible);
        // What it has held of that very time, it needn't hold again.
        let from = now.mono.saturating_sub(more);
        let counted = self.lately.iter().map(|(until, length)| until.saturating_sub(from).min(*length));
        let missed = more.saturating_sub(counted.sum::<Duration>().max(found));
        if !more.is_zero() {
            self.lately.retain(|(until, _)| *until <= from);
        }
        self.held += missed;
        missed
    }
}

/// How much of the time was no lease time.
fn held(now: &Now) -> Duration {
    now.mono.saturating_sub(now.lease.since_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lessor::LeaseTime, operator::hearing::Hearing};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// So long after the start, of which this replica has held that much, and as much of it as is said since nothing could be
    /// written.
    fn at(mono: u64, held: u64, unwritable: u64) -> Now {
        Now {
            mono: seconds(mono),
            lease: LeaseTime::from_duration(seconds(mono - held)),
            unwritable: seconds(unwritable),
            ..Hearing::new().now()
        }
    }

    #[tokio::test]
    async fn each_holds_what_others_have_found_out_and_it_has_not() {
        let mut held = CommonHeld::new(seconds(100), &at(10, 5, 2));
        assert_eq!(held.see(seconds(100), &at(20, 5, 2)), seconds(0));
        assert_eq!(held.see(seconds(130), &at(50, 15, 12)), seconds(20));
        // It has done so.
        assert_eq!(held.sum(&at(60, 35, 12)), seconds(130));
        assert_eq!(held.see(seconds(130), &at(60, 35, 12)), seconds(0));
        // What it finds out itself it tells others, and doesn't hold again.
        assert_eq!(held.sum(&at(90, 45, 22)), seconds(140));
        assert_eq!(held.see(seconds(140), &at(90, 45, 22)), seconds(0));
        assert_eq!(held.sum(&at(90, 45, 22)), seconds(140));
    }

    #[tokio::test]
    async fn what_a_replica_that_was_deaf_meanwhile_has_held_is_not_held_again() {
        let mut held = CommonHeld::new(seconds(0), &at(10, 0, 0));
        // For ten seconds long before, and for fifteen of the twenty.
        held.note(&at(100, 10, 0));
        held.note(&at(215, 25, 0));
        assert_eq!(held.see(seconds(20), &at(220, 25, 0)), seconds(5));
    }

    #[tokio::test]
    async fn of_two_sums_seen_before_anything_is_held_each_counts_once() {
        let mut held = CommonHeld::new(seconds(0), &at(10, 0, 0));
        assert_eq!(held.see(seconds(20), &at(50, 0, 0)), seconds(20));
        assert_eq!(held.see(seconds(25), &at(50, 0, 0)), seconds(5));
        assert_eq!(held.see(seconds(28), &at(60, 25, 0)), seconds(3));
    }

    #[tokio::test]
    async fn nobody_can_write_more_into_the_lessor_than_may_have_passed() {
        let mut held = CommonHeld::new(seconds(0), &at(10, 0, 0));
        assert_eq!(held.see(Duration::MAX, &at(30, 0, 0)), seconds(20 + 60));
        assert_eq!(held.see(Duration::MAX, &at(100, 80, 0)), seconds(0));
        assert_eq!(held.sum(&at(100, 90, 10)), Duration::MAX);
    }
}
