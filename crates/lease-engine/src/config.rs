//! Configuration of an engine.

use std::time::Duration;

use super::{Rate, Ttl};

/// How an engine grants and ends leases. The default grants what clients ask for, like etcd.
#[derive(Clone, Debug)]
pub struct Config {
    /// The shortest TTL. Shorter ones are raised to it. Default: none.
    pub min_ttl: Ttl,
    /// The longest TTL. Default: [`Ttl::MAX`].
    pub max_ttl: Ttl,
    /// How the engine treats a TTL above `max_ttl`.
    pub above_max: AboveMax,
    /// Whether followers renew leases. They do by default, and so hold the same deadlines as the primary. etcd
    /// returns [`Error::NotPrimary`](super::Error::NotPrimary).
    pub followers_renew: bool,
    /// The most leases that end per second. Default: no limit.
    pub expiry_rate: Option<Rate>,
    /// The pauses between the tries of an end that fails.
    pub retry: Backoff,
    /// An end whose result the caller doesn't report for this long counts as failed. Default: never.
    pub answer_within: Option<Duration>,
    /// Longer TTLs under heavy renewal load. Default: none.
    pub stretch: Option<Stretch>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min_ttl: Ttl::ZERO,
            max_ttl: Ttl::MAX,
            above_max: AboveMax::Refuse,
            followers_renew: true,
            expiry_rate: None,
            retry: Backoff::default(),
            answer_within: None,
            stretch: None,
        }
    }
}

/// How the engine treats a TTL above the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AboveMax {
    /// It returns [`Error::TtlTooLarge`](super::Error::TtlTooLarge), like etcd.
    #[default]
    Refuse,
    /// It grants the maximum.
    Clamp,
}

/// Growing pauses between the tries of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure. Each further failure doubles it.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for Backoff {
    /// One second, doubling up to one minute.
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// The pause after this many failures.
    pub fn pause(&self, failures: u32) -> Duration {
        let doubled = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(self.longest)
    }
}

/// Longer TTLs while renewals exceed a rate. Holders that renew after a share of the granted TTL then renew less
/// often.
///
/// The TTL grows in proportion: twice the renewals, twice the TTL. [`Granted`](super::Granted) contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The rate of renewals up to which TTLs stay as they are.
    pub renewals_per_second: u32,
    /// The largest factor.
    pub at_most: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(1) };
        let pauses: Vec<_> = (1..7).map(|failures| backoff.pause(failures).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.pause(u32::MAX), Duration::from_secs(1));
    }
}
