//! Moments on a clock that goes on while the machine sleeps.
//!
//! A laptop that is closed for an hour comes back with a lease that ended long ago, and with a monotonic
//! clock that hasn't moved. So a [`Moment`] is read from two clocks, the one that tokio's timers run by and
//! the one that counts sleep too, and whichever has gone further counts. No wall clock is among them: that
//! one can be set.

use std::time::Duration;

use tokio::time::Instant;

/// The longest sleep between two looks at the clocks: timers don't run while the machine sleeps.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A moment of this machine, to be compared with others of the same process only.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// By the clock of tokio's timers.
    timer: Instant,
    /// By the clock that counts sleep.
    sleepless: Duration,
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        Self { timer: Instant::now(), sleepless: sleepless() }
    }

    /// What remains until this moment; zero once it has come.
    pub fn remaining(self) -> Duration {
        self.since(Self::now())
    }

    /// How long ago this moment was; zero before it comes.
    pub fn elapsed(self) -> Duration {
        let now = Self::now();
        now.timer.saturating_duration_since(self.timer).max(now.sleepless.saturating_sub(self.sleepless))
    }

    /// Whether this moment has come.
    pub fn is_past(self) -> bool {
        self.remaining().is_zero()
    }

    /// The moment so much later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        // Decades, where an instant can't hold more.
        let timer = self.timer.checked_add(duration).unwrap_or(self.timer + Duration::from_secs(1 << 30));
        Self { timer, sleepless: self.sleepless.saturating_add(duration) }
    }

    /// The moment so much earlier, as far back as there is one.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        let timer = self.timer.checked_sub(duration).unwrap_or(self.timer);
        Self { timer, sleepless: self.sleepless.saturating_sub(duration) }
    }

    /// The earlier of the two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self { timer: self.timer.min(other.timer), sleepless: self.sleepless.min(other.sleepless) }
    }

    /// Waits until this moment has come, a second longer at most where the machine slept meanwhile.
    pub async fn come(self) {
        loop {
            let remaining = self.remaining();
            if remaining.is_zero() {
                return;
            }
            tokio::time::sleep(remaining.min(LOOK_EVERY)).await;
        }
    }

    /// How long it is from `earlier` to this moment, by the clock that has less of it.
    fn since(self, earlier: Self) -> Duration {
        let timer = self.timer.saturating_duration_since(earlier.timer);
        timer.min(self.sleepless.saturating_sub(earlier.sleepless))
    }
}

/// A clock that counts the time that the machine sleeps.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn sleepless() -> Duration {
    duration(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
}

/// A clock that counts the time that the machine sleeps; on Apple's systems this one does, and the one of
/// timers doesn't.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn sleepless() -> Duration {
    duration(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

fn duration(time: rustix::time::Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_clock_that_has_gone_further_counts() {
        let now = Moment::now();
        // The machine slept ever since it was started, however long ago that was, and the timers didn't notice.
        let up = now.sleepless;
        let slept = Moment { sleepless: Duration::ZERO, ..now };
        assert!(!up.is_zero() && slept.elapsed() >= up);
        assert!(slept.after(up / 2).is_past());
        // The timers moved (as they do in tests), and the other clock didn't.
        tokio::time::advance(3600 * SECOND).await;
        assert!(now.elapsed() >= 3600 * SECOND);
        assert!(now.after(60 * SECOND).is_past() && !now.after(3700 * SECOND).is_past());
    }

    #[tokio::test(start_paused = true)]
    async fn a_moment_comes_when_its_time_has_passed_and_not_before() {
        let begin = Instant::now();
        Moment::now().after(Duration::from_millis(2_500)).come().await;
        assert!(begin.elapsed() >= Duration::from_millis(2_500), "{:?}", begin.elapsed());
        assert!(begin.elapsed() < Duration::from_millis(2_510), "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn moments_far_away_overflow_nothing() {
        let far = Moment::now().after(Duration::from_secs(9_000_000_000)).after(Duration::MAX);
        assert!(far.remaining() > Duration::from_secs(1 << 29));
        assert!(Moment::now().before(Duration::MAX).elapsed() < SECOND * 86_400 * 10_000);
    }
}
