//! What a lessor is told when it's made.

use std::time::Duration;

use super::{Rate, Ttl};

/// How a lessor grants and ends. The default grants what is asked for, as the original does.
#[derive(Clone, Debug)]
pub struct Config {
    /// The shortest TTL that is granted; shorter ones become this. Default: none.
    pub min_ttl: Ttl,
    /// The longest TTL that is granted. Default: [`Ttl::MAX`].
    pub max_ttl: Ttl,
    /// What becomes of a TTL above `max_ttl`.
    pub above_max: AboveMax,
    /// Whether followers take renewals. The default is yes, so that they hold the same deadlines as the
    /// primary; the original answers [`Error::NotPrimary`](super::Error::NotPrimary).
    pub followers_renew: bool,
    /// How many leases may end per second. Default: no limit.
    pub expiry_rate: Option<Rate>,
    /// When an end that failed is offered again.
    pub retry: Backoff,
    /// An end that nobody answered for this long counts as failed. By default it never does: the caller
    /// answers each.
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

/// What becomes of a TTL above the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AboveMax {
    /// It is refused with [`Error::TtlTooLarge`](super::Error::TtlTooLarge), as the original does.
    #[default]
    Refuse,
    /// The maximum is granted.
    Clamp,
}

/// Growing pauses between the tries of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure; it doubles with each further one.
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

/// Grants longer TTLs while more renewals come than wanted, so that holders who renew after a share of the
/// granted TTL come less often.
///
/// The TTL grows in proportion: twice the renewals, twice the TTL. What was granted is in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// How many renewals per second are no load yet.
    pub renewals_per_second: u32,
    /// The most that a TTL is multiplied by.
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
