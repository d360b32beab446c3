//! Durations and limits of a writer lease, and its backoff.

use std::time::Duration;

/// Configuration of a [`WriterLease`](super::WriterLease). Integers only, so that it can be hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long a writer leads after an accepted write, and how long a follower waits after it observed one.
    pub lease_duration: Duration,
    /// How long work has to be due before a follower claims the lead for it. At least half a lease duration; less counts
    /// as half.
    pub head_start: Duration,
    /// The spacing of retries of work and of arbitration.
    pub backoff: Backoff,
    /// How often work is retried before it is dropped. `None`: without limit.
    pub retry_limit: Option<u32>,
    /// How many keys may run at once. Keys in [lanes](super::Lane) leave one of these slots to others, if there is more
    /// than one.
    pub max_running: usize,
    /// The seed of the jitter. Replicas need different seeds; tests and replays need a fixed one.
    pub seed: u64,
}

impl Config {
    /// The defaults for this lease duration.
    pub fn new(lease_duration: Duration) -> Self {
        Self {
            lease_duration,
            head_start: lease_duration / 2,
            backoff: Backoff::default(),
            retry_limit: None,
            max_running: 16,
            seed: 0,
        }
    }

    pub(super) fn head_start(&self) -> Duration {
        self.head_start.max(self.lease_duration / 2)
    }

    /// The wait before the retry that follows this many failures.
    pub(super) fn delay(&self, failures: u32, now: Duration) -> Duration {
        self.backoff.delay(failures.saturating_sub(1), self.lease_duration, self.seed, now)
    }

    /// The delay before a vacant arbitration object is claimed: short, and random so that replicas don't all write
    /// together.
    pub(super) fn vacancy_delay(&self, now: Duration) -> Duration {
        if self.backoff.jitter_percent == 0 {
            return Duration::ZERO;
        }
        let widest = self.backoff.base.saturating_mul(self.backoff.factor).min(self.lease_duration);
        per_mille(widest, random(self.seed, now, u32::MAX) % 1000)
    }
}

impl Default for Config {
    /// A lease duration of five seconds.
    fn default() -> Self {
        Self::new(Duration::from_secs(5))
    }
}

/// Exponential backoff like that of [OpenShift's writer lease]. Each step multiplies the wait by `factor` and by up to
/// `1 + jitter`. After `steps` steps the wait is the lease duration, which it never exceeds.
///
/// [OpenShift's writer lease]: https://github.com/openshift/router/blob/main/pkg/router/writerlease/writerlease.go
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    /// The first wait.
    pub base: Duration,
    /// The factor of each step.
    pub factor: u32,
    /// The number of steps.
    pub steps: u32,
    /// By how many percent a step may be longer, at random. With 0 all waits are exact, and a vacant arbitration object is
    /// claimed at once.
    pub jitter_percent: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(20), factor: 4, steps: 5, jitter_percent: 50 }
    }
}

impl Backoff {
    fn delay(&self, step: u32, cap: Duration, seed: u64, now: Duration) -> Duration {
        if step > self.steps {
            return cap;
        }
        let mut delay = self.base;
        for i in 0..step {
            if delay >= cap {
                break;
            }
            let longer = match self.jitter_percent {
                0 => Duration::ZERO,
                percent => per_mille(delay, random(seed, now, i) % (u64::from(percent) * 10 + 1)),
            };
            delay = delay.saturating_add(longer).saturating_mul(self.factor);
        }
        delay.min(cap)
    }
}

fn per_mille(whole: Duration, mille: u64) -> Duration {
    whole.saturating_mul(u32::try_from(mille).unwrap_or(u32::MAX)) / 1000
}

/// SplitMix64 of seed, time and step. It has no state, so equal state machines stay equal.
fn random(seed: u64, now: Duration, step: u32) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let mix = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    mix(mix(mix(seed.wrapping_add(GOLDEN)) ^ nanos).wrapping_add(GOLDEN.wrapping_mul(u64::from(step) + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Duration = Duration::from_secs(5);

    fn delays(backoff: &Backoff, seed: u64) -> Vec<u128> {
        (0..7).map(|step| backoff.delay(step, CAP, seed, Duration::ZERO).as_millis()).collect()
    }

    #[test]
    fn without_jitter_waits_are_exact() {
        let backoff = Backoff { jitter_percent: 0, ..Backoff::default() };
        assert_eq!(delays(&backoff, 1), [20, 80, 320, 1280, 5000, 5000, 5000]);
    }

    #[test]
    fn past_its_steps_the_wait_is_the_longest() {
        let backoff = Backoff { jitter_percent: 0, steps: 1, ..Backoff::default() };
        assert_eq!(delays(&backoff, 1), [20, 80, 5000, 5000, 5000, 5000, 5000]);
    }

    #[test]
    fn jitter_makes_each_step_longer_by_half_at_most() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let delays = delays(&Backoff::default(), seed);
            assert_eq!(delays[0], 20);
            assert!((80..=120).contains(&delays[1]), "{delays:?}");
            assert!((320..=720).contains(&delays[2]), "{delays:?}");
            assert!(delays.is_sorted(), "{delays:?}");
            seen.insert(delays[2]);
        }
        assert!(seen.len() > 50, "jitter that hardly varies: {seen:?}");
    }

    #[test]
    fn the_same_seed_at_the_same_time_gives_the_same_wait() {
        assert_eq!(delays(&Backoff::default(), 7), delays(&Backoff::default(), 7));
    }

    #[test]
    fn huge_settings_do_not_overflow() {
        let backoff =
            Backoff { base: Duration::MAX, factor: u32::MAX, steps: u32::MAX, jitter_percent: u32::MAX };
        let config = Config { lease_duration: Duration::MAX, backoff, ..Config::default() };
        assert_eq!(config.delay(u32::MAX, Duration::MAX), Duration::MAX);
        assert!(config.vacancy_delay(Duration::MAX) <= Duration::MAX);
    }
}
