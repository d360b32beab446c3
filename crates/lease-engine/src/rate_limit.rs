//! A rate limit.

use std::{num::NonZeroU32, time::Duration};

const SECOND: u64 = 1_000_000_000;

/// A token bucket that is full at the start.
///
/// It stores one number: the time at which the bucket is full again (the generic cell rate algorithm of ITU-T
/// I.371). Times are points on a clock of the caller, as durations since its start. A clock that steps back
/// delays tokens, and adds none. All operations are O(1).
///
/// ```
/// use std::time::Duration;
/// use lease_engine::Rate;
///
/// let at = Duration::from_millis;
/// let mut rate = Rate::per_second(2.0);
/// assert_eq!(rate.available(at(0)), 2);
/// rate.take(2, at(0));
/// assert_eq!(rate.next(), Some(at(500)));
/// assert_eq!(rate.available(at(500)), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds from one token to the next.
    interval: u64,
    /// Nanoseconds that an empty bucket takes to be full.
    burst: u64,
    full_at: u64,
}

impl Rate {
    /// `per_second` tokens in the long run, at most `burst` at once.
    pub const fn new(per_second: NonZeroU32, burst: NonZeroU32) -> Self {
        let interval = SECOND / per_second.get() as u64;
        Self { interval, burst: interval * burst.get() as u64, full_at: 0 }
    }

    /// So many tokens per second. The bucket holds those of one second, at least one. With a rate of zero the
    /// first token is the last.
    pub const fn per_second(per_second: f64) -> Self {
        // The conversion saturates: a rate of zero or less yields no second token.
        let interval = if per_second > 0.0 { (SECOND as f64 / per_second) as u64 } else { u64::MAX };
        let interval = if interval == 0 { 1 } else { interval };
        Self { interval, burst: if interval > SECOND { interval } else { SECOND }, full_at: 0 }
    }

    /// How many tokens can be taken now.
    pub fn available(&self, now: Duration) -> usize {
        let missing = self.full_at.saturating_sub(nanos(now));
        (self.burst.saturating_sub(missing) / self.interval) as usize
    }

    /// Takes `n` tokens, whether or not they are available. The debt delays the next ones.
    pub fn take(&mut self, n: usize, now: Duration) {
        let from = self.full_at.max(nanos(now));
        self.full_at = from.saturating_add(self.interval.saturating_mul(n as u64));
    }

    /// When the next token is available: in the past if one is available now, `None` if none ever will be.
    pub fn next(&self) -> Option<Duration> {
        let next = self.full_at.saturating_add(self.interval).saturating_sub(self.burst);
        (self.full_at < u64::MAX).then(|| Duration::from_nanos(next))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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

    /// Takes all that is available, and returns how much that was.
    fn drain(rate: &mut Rate, now: Duration) -> usize {
        let available = rate.available(now);
        rate.take(available, now);
        available
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut rate = rate(10, 3);
        let start = Duration::from_millis(5000);
        assert_eq!(drain(&mut rate, start), 3);
        assert_eq!(rate.available(start), 0);
        let next = start + Duration::from_millis(100);
        assert_eq!(rate.next(), Some(next));
        assert_eq!(rate.available(next), 1);
        assert_eq!(rate.available(start + Duration::from_secs(9)), 3);
    }

    #[test]
    fn a_clock_that_steps_back_only_delays() {
        let mut rate = rate(10, 1);
        rate.take(1, Duration::from_millis(5000));
        assert_eq!(rate.available(Duration::from_millis(4000)), 0);
        assert_eq!(rate.available(Duration::from_millis(5100)), 1);
    }

    #[test]
    fn a_rate_per_second_saves_no_more_than_a_second() {
        let mut rate = Rate::per_second(10.0);
        assert_eq!(drain(&mut rate, Duration::ZERO), 10);
        assert_eq!(drain(&mut rate, Duration::from_millis(500)), 5);
        assert_eq!(drain(&mut rate, Duration::from_secs(60)), 10);
    }

    #[test]
    fn a_token_is_available_exactly_when_it_is_next() {
        for per_second in [0.01, 0.3, 1.0, 3.0, 7.0, 20.0, 333.3] {
            let mut rate = Rate::per_second(per_second);
            assert!(drain(&mut rate, Duration::ZERO) >= 1, "{per_second}");
            let next = rate.next().unwrap_or_default();
            assert_eq!(rate.available(next - Duration::from_nanos(1)), 0, "{per_second}");
            assert_eq!(rate.available(next), 1, "{per_second}");
        }
    }

    #[test]
    fn a_rate_of_nothing_yields_one_token_and_never_another() {
        for nothing in [0.0, -1.0, f64::NAN] {
            let mut rate = Rate::per_second(nothing);
            assert_eq!(drain(&mut rate, Duration::ZERO), 1);
            assert_eq!(rate.available(Duration::from_secs(1 << 32)), 0);
            assert_eq!(rate.next(), None);
        }
    }

    #[test]
    fn a_huge_rate_is_no_limit() {
        assert!(Rate::per_second(f64::INFINITY).available(Duration::ZERO) > 1_000_000);
    }
}
