//! A rate limit over lease time.

use std::{num::NonZeroU32, time::Duration};

use super::LeaseTime;

const SECOND: u64 = 1_000_000_000;

/// So many per second, and so many at once: a token bucket that is full at the start.
///
/// It keeps one number, the time at which the bucket is full again (the generic cell rate algorithm of ITU-T
/// I.371), and tolerates a clock that steps back. All operations are O(1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    interval: u64,
    burst: u64,
    full_at: u64,
}

impl Rate {
    /// `per_second` in the long run, at most `burst` at once.
    pub const fn new(per_second: NonZeroU32, burst: NonZeroU32) -> Self {
        let interval = SECOND / per_second.get() as u64;
        Self { interval, burst: interval * burst.get() as u64, full_at: 0 }
    }

    /// How many may be taken now.
    pub const fn available(&self, now: LeaseTime) -> usize {
        let now = now.as_nanos();
        let missing = self.full_at.saturating_sub(now);
        (self.burst.saturating_sub(missing) / self.interval) as usize
    }

    /// Takes `n`, whether or not they are available: who takes too many waits longer.
    pub const fn take(&mut self, n: usize, now: LeaseTime) {
        let now = now.as_nanos();
        let from = if self.full_at > now { self.full_at } else { now };
        self.full_at = from.saturating_add(self.interval.saturating_mul(n as u64));
    }

    /// When the next one may be taken; in the past if one may be taken now.
    pub fn next(&self) -> LeaseTime {
        LeaseTime::from_nanos(self.full_at.saturating_add(self.interval)) - Duration::from_nanos(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u32, burst: u32) -> Rate {
        Rate::new(
            per_second.try_into().unwrap_or(NonZeroU32::MIN),
            burst.try_into().unwrap_or(NonZeroU32::MIN),
        )
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut rate = rate(10, 3);
        let start = LeaseTime::from_millis(5000);
        assert_eq!(rate.available(start), 3);
        rate.take(3, start);
        assert_eq!(rate.available(start), 0);
        assert_eq!(rate.next(), start + Duration::from_millis(100));
        assert_eq!(rate.available(rate.next()), 1);
        assert_eq!(rate.available(start + Duration::from_secs(9)), 3);
    }

    #[test]
    fn a_clock_that_steps_back_only_delays() {
        let mut rate = rate(10, 1);
        rate.take(1, LeaseTime::from_millis(5000));
        assert_eq!(rate.available(LeaseTime::from_millis(4000)), 0);
        assert_eq!(rate.available(LeaseTime::from_millis(5100)), 1);
    }
}
