//! For how long altogether nothing could be written, as replicas share it.
//!
//! Only a write shows that the API server can't write, and at a deadline only the primary writes. Followers learn of write
//! outages from the primary, which publishes the accumulated pause in the status of the `Lessor`. A follower that didn't pause
//! would take a lease for overdue, depose the primary and end the lease. The sum only grows. Each replica counts how much of
//! it its own lease time was paused for, and pauses it for the rest.

use std::time::Duration;

use lease_engine::clock::LeaseClock;

use crate::{clocks::Now, leadership::election::Known};

/// For how long a pause of this replica's own is remembered.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The shared sum, and what of it this replica's lease time was paused for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedPause {
    /// The `Lessor` that carries the sum.
    uid: Option<String>,
    /// The sum as last observed, and since when it may have grown.
    total: Duration,
    observed_at: Duration,
    /// How much of the time that this replica found nothing could be written is in the sum, or concerned this replica alone.
    accounted: Duration,
    /// For how long altogether this replica's lease time was paused, for whatever reason.
    paused: Duration,
    /// The recent pauses: the end of each, and its length.
    recent: Vec<(Duration, Duration)>,
}

impl SharedPause {
    /// The sum as first observed: what is in it happened before this replica started.
    pub fn new(known: &Known, now: &Now) -> Self {
        Self {
            uid: known.uid.clone(),
            total: known.paused(),
            observed_at: now.mono,
            accounted: now.paused_unwritable,
            paused: now.paused(),
            recent: Vec::new(),
        }
    }

    /// What this replica has found out and no replica has published.
    pub fn unpublished(&self, now: &Now) -> Duration {
        now.paused_unwritable.saturating_sub(self.accounted)
    }

    /// The sum, with that.
    pub fn total(&self, now: &Now) -> Duration {
        self.total.saturating_add(self.unpublished(now))
    }

    /// A write of the `Lessor` was accepted that published this much of what this replica has found out.
    pub fn published(&mut self, paused_unwritable: Duration) {
        self.accounted = self.accounted.max(paused_unwritable);
    }

    /// Reads how long lease time was paused by now. To be called whenever that may have changed.
    pub fn note(&mut self, now: &Now) {
        let more = now.paused().saturating_sub(self.paused);
        if more.is_zero() {
            return;
        }
        self.paused += more;
        match self.recent.last_mut() {
            Some((until, length)) if *until + more >= now.mono => {
                *length += more;
                *until = now.mono;
            }
            _ => self.recent.push((now.mono, more)),
        }
        self.recent.retain(|(until, _)| now.mono < *until + REMEMBERED);
    }

    /// Applies what this replica itself has written.
    pub fn observe_own(&mut self, known: &Known, now: &Now) {
        let published = self.observe_total(known, now).min(self.unpublished(now));
        self.accounted += published;
    }

    /// Applies what another replica has written. Returns how much of it this replica's lease time has yet to be paused for.
    ///
    /// That is no more than the time since the sum last grew, and what a clock may count before it is certain, whatever the
    /// `Lessor` carries.
    pub fn observe(&mut self, known: &Known, now: &Now) -> Duration {
        self.note(now);
        let possible = now.mono.saturating_sub(self.observed_at) + LeaseClock::DOUBT;
        let more = self.observe_total(known, now).min(possible);
        // What the primary doesn't publish happened to this replica alone.
        self.accounted = now.paused_unwritable;
        // Lease time was paused for some of it already, or will be once something is written.
        let from = now.mono.saturating_sub(more);
        let counted = self.recent.iter().map(|(until, length)| until.saturating_sub(from).min(*length));
        let missed = more.saturating_sub(counted.sum::<Duration>().max(now.tentative_pause));
        if !more.is_zero() {
            self.recent.retain(|(until, _)| *until <= from);
        }
        self.paused += missed;
        missed
    }

    /// By how much the sum has grown.
    fn observe_total(&mut self, known: &Known, now: &Now) -> Duration {
        if self.uid != known.uid {
            self.uid.clone_from(&known.uid);
            self.total = Duration::ZERO;
        }
        let more = known.paused().saturating_sub(self.total);
        self.total = known.paused();
        if !more.is_zero() {
            self.observed_at = now.mono;
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

    fn lessor(paused: i64) -> Known {
        let paused_milliseconds = Some(paused.saturating_mul(1000));
        Known {
            uid: None,
            version: 0,
            status: LessorStatus { paused_milliseconds, ..LessorStatus::default() },
        }
    }

    /// This long after the start. Lease time was paused for so much of it, and so much of that since nothing could be written.
    fn at(mono: u64, paused: u64, paused_unwritable: u64) -> Now {
        Now {
            mono: seconds(mono),
            lease: LeaseTime::from_duration(seconds(mono - paused)),
            paused_unwritable: seconds(paused_unwritable),
            ..Now::start(Timestamp::UNIX_EPOCH)
        }
    }

    #[test]
    fn a_replica_pauses_for_what_others_have_found_out_and_it_has_not() {
        let mut shared = SharedPause::new(&lessor(100), &at(10, 5, 2));
        assert_eq!(shared.observe(&lessor(100), &at(20, 5, 2)), seconds(0));
        assert_eq!(shared.observe(&lessor(130), &at(50, 15, 12)), seconds(20));
        // The runtime has applied it.
        assert_eq!(shared.total(&at(60, 35, 12)), seconds(130));
        assert_eq!(shared.observe(&lessor(130), &at(60, 35, 12)), seconds(0));
        // What it finds out itself it publishes once.
        assert_eq!(shared.total(&at(90, 45, 22)), seconds(140));
        shared.observe_own(&lessor(140), &at(90, 45, 22));
        assert_eq!(shared.total(&at(95, 45, 22)), seconds(140));
        shared.published(seconds(22));
        assert_eq!(shared.unpublished(&at(96, 47, 24)), seconds(2));
    }

    #[test]
    fn a_pause_of_a_disconnected_replica_is_not_applied_twice() {
        let mut shared = SharedPause::new(&lessor(0), &at(10, 0, 0));
        // Ten seconds long before, and fifteen of the twenty.
        shared.note(&at(100, 10, 0));
        shared.note(&at(215, 25, 0));
        assert_eq!(shared.observe(&lessor(20), &at(220, 25, 0)), seconds(5));
    }

    #[test]
    fn a_local_outage_is_neither_published_nor_credited_later() {
        let mut shared = SharedPause::new(&lessor(0), &at(10, 0, 0));
        assert_eq!(shared.observe(&lessor(0), &at(60, 40, 40)), seconds(0));
        assert_eq!(shared.unpublished(&at(1000, 40, 40)), seconds(0));
        assert_eq!(shared.observe(&lessor(40), &at(1000, 40, 40)), seconds(40));
    }

    #[test]
    fn a_tentative_pause_is_applied_once_it_is_certain() {
        let mut clock = LeaseClock::new(seconds(0));
        let now = |clock: &LeaseClock, mono| Now {
            mono: seconds(mono),
            lease: clock.now(seconds(mono)),
            paused_unwritable: clock.paused_unwritable(seconds(mono)),
            tentative_pause: clock.tentative_pause(seconds(mono)),
            ..Now::start(Timestamp::UNIX_EPOCH)
        };
        let mut shared = SharedPause::new(&lessor(0), &now(&clock, 10));
        clock.write_observed(seconds(93));
        clock.write_failed(seconds(95));
        let missed = shared.observe(&lessor(10), &now(&clock, 100));
        assert_eq!(missed, seconds(3));
        clock.hold(missed);
        clock.write_observed(seconds(100));
        assert_eq!(clock.now(seconds(100)), LeaseTime::from_duration(seconds(90)));
        assert_eq!(shared.total(&now(&clock, 100)), seconds(10));
    }

    #[test]
    fn two_sums_observed_before_a_pause_is_applied_count_once_each() {
        let mut shared = SharedPause::new(&lessor(0), &at(10, 0, 0));
        assert_eq!(shared.observe(&lessor(20), &at(50, 0, 0)), seconds(20));
        assert_eq!(shared.observe(&lessor(25), &at(50, 0, 0)), seconds(5));
        assert_eq!(shared.observe(&lessor(28), &at(60, 25, 0)), seconds(3));
    }

    #[test]
    fn a_recreated_lessor_begins_a_new_sum() {
        let mut shared = SharedPause::new(&lessor(100), &at(10, 0, 0));
        let recreated = Known { uid: Some("another".to_owned()), ..lessor(30) };
        assert_eq!(shared.observe(&recreated, &at(100, 0, 0)), seconds(30));
    }

    #[test]
    fn a_sum_that_is_longer_than_the_time_that_has_passed_is_cut() {
        let mut shared = SharedPause::new(&lessor(0), &at(10, 0, 0));
        assert_eq!(shared.observe(&lessor(0), &at(20, 0, 0)), seconds(0));
        assert_eq!(shared.observe(&lessor(i64::MAX), &at(30, 0, 0)), seconds(20 + 60));
        assert_eq!(shared.observe(&lessor(i64::MAX), &at(100, 80, 0)), seconds(0));
    }
}
