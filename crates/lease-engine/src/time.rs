//! Points on the lease-time clock, and TTLs.

use std::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

const NANOS_PER_MILLI: u64 = 1_000_000;

/// A point on the clock of lease time, in nanoseconds since that clock's start.
///
/// Lease time is monotonic time less the outages ([`LeaseClock`](super::clock::LeaseClock)). Points of two
/// different clocks, or of one clock before and after a restart, can't be compared. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseTime(u64);

impl LeaseTime {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);
    /// Later than every deadline that can be reached.
    pub const NEVER: Self = Self(u64::MAX);

    /// The point this many nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point this many milliseconds after the clock's start.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// The point this long after the clock's start.
    pub fn from_duration(since_start: Duration) -> Self {
        Self(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after the clock's start this is.
    pub const fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The time from `earlier` to this point; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The last whole millisecond that is over at this point: what a check for an end may count.
    pub(super) const fn millis_down(self) -> u64 {
        self.0 / NANOS_PER_MILLI
    }

    /// The first whole millisecond not before this point: from where a TTL counts.
    pub(super) const fn millis_up(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MILLI)
    }
}

impl Add<Duration> for LeaseTime {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for LeaseTime {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A time to live: whole milliseconds, never negative, never overflowing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(u64);

impl Ttl {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest TTL that the original grants: 9,000,000,000 s.
    pub const MAX: Self = Self(9_000_000_000_000);

    /// A TTL in seconds, as clients ask for it. Negative ones count as zero, and the minimum TTL then makes
    /// something of them; ones that are too large to count in milliseconds stay too large.
    pub const fn from_secs(secs: i64) -> Self {
        if secs <= 0 { Self(0) } else { Self((secs as u64).saturating_mul(1000)) }
    }

    /// A TTL in milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// The TTL in milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The TTL in seconds, rounded up.
    pub const fn as_secs(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// The TTL as a duration.
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl From<Duration> for Ttl {
    /// Rounds up to the next millisecond.
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos().div_ceil(u128::from(NANOS_PER_MILLI))).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_duration(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_seconds_are_no_ttl_and_huge_ones_stay_huge() {
        assert_eq!(Ttl::from_secs(-1), Ttl::ZERO);
        assert_eq!(Ttl::from_secs(i64::MIN), Ttl::ZERO);
        assert_eq!(Ttl::from_secs(9_000_000_000), Ttl::MAX);
        assert!(Ttl::from_secs(i64::MAX) > Ttl::MAX);
        assert!(Ttl::from(Duration::MAX) > Ttl::MAX);
    }

    #[test]
    fn a_duration_becomes_a_ttl_that_is_not_shorter() {
        assert_eq!(Ttl::from(Duration::from_nanos(1)), Ttl::from_millis(1));
        assert_eq!(Ttl::from(Duration::from_micros(2000)), Ttl::from_millis(2));
    }

    #[test]
    fn lease_time_saturates_at_both_ends() {
        assert_eq!(LeaseTime::from_millis(1) + Duration::MAX, LeaseTime::NEVER);
        assert_eq!(LeaseTime::from_millis(1) - Duration::from_secs(1), LeaseTime::ZERO);
        assert_eq!(LeaseTime::ZERO.since(LeaseTime::from_millis(1)), Duration::ZERO);
    }

    #[test]
    fn a_started_millisecond_counts_for_the_holder() {
        let t = LeaseTime::from_nanos(1_000_001);
        assert_eq!((t.millis_down(), t.millis_up()), (1, 2));
    }
}
