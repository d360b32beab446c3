//! Instants on a clock that includes the time in which the machine is suspended.
//!
//! When a laptop is resumed after an hour, its leases have expired, but the monotonic clock has hardly advanced. So a
//! [`BootInstant`] is read from two clocks: that of tokio's timers, and the boot-time clock, which includes suspension. The
//! clock that has advanced further counts. No wall clock is used, because it can be set.

use std::time::Duration;

use tokio::time::Instant;

/// The longest sleep between two reads of the clocks, because timers don't run while the machine is suspended.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// An instant, comparable with others of the same process.
#[derive(Clone, Copy, Debug)]
pub struct BootInstant {
    /// On the clock of tokio's timers.
    timer: Instant,
    /// On the boot-time clock.
    boot: Duration,
}

impl BootInstant {
    /// Now.
    pub fn now() -> Self {
        Self { timer: Instant::now(), boot: boot_clock() }
    }

    /// The time until this instant; zero once it has passed.
    pub fn remaining(self) -> Duration {
        self.since(Self::now())
    }

    /// The time since this instant; zero before it.
    pub fn elapsed(self) -> Duration {
        Self::now().duration_since(self)
    }

    /// The time from `earlier` to this instant, on the clock with the larger difference; zero if it was before.
    pub(super) fn duration_since(self, earlier: Self) -> Duration {
        let timer = self.timer.saturating_duration_since(earlier.timer);
        timer.max(self.boot.saturating_sub(earlier.boot))
    }

    /// Whether this instant has passed.
    pub fn is_past(self) -> bool {
        self.remaining().is_zero()
    }

    /// The instant later by `duration`.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        // On overflow, decades later.
        let timer = self.timer.checked_add(duration).unwrap_or(self.timer + Duration::from_secs(1 << 30));
        Self { timer, boot: self.boot.saturating_add(duration) }
    }

    /// The instant earlier by `duration`; unchanged where the clock has no such value.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        let timer = self.timer.checked_sub(duration).unwrap_or(self.timer);
        Self { timer, boot: self.boot.saturating_sub(duration) }
    }

    /// The earlier of the two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self { timer: self.timer.min(other.timer), boot: self.boot.min(other.boot) }
    }

    /// Waits until this instant. After a suspension of the machine, it may return up to a second late.
    pub async fn reached(self) {
        loop {
            let remaining = self.remaining();
            if remaining.is_zero() {
                return;
            }
            tokio::time::sleep(remaining.min(READ_INTERVAL)).await;
        }
    }

    /// The time from `earlier` to this instant, on the clock with the smaller difference.
    fn since(self, earlier: Self) -> Duration {
        let timer = self.timer.saturating_duration_since(earlier.timer);
        timer.min(self.boot.saturating_sub(earlier.boot))
    }
}

/// A clock that includes the time in which the machine is suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_clock() -> Duration {
    duration(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
}

/// A clock that includes the time in which the machine is suspended. On Apple's systems, `CLOCK_MONOTONIC` does.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boot_clock() -> Duration {
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
    async fn the_clock_that_has_advanced_further_counts() {
        let now = BootInstant::now();
        // As if the machine had been suspended since its boot, while timers didn't run.
        let up = now.boot;
        let suspended = BootInstant { boot: Duration::ZERO, ..now };
        assert!(!up.is_zero() && suspended.elapsed() >= up);
        assert!(suspended.after(up / 2).is_past());
        // The clock of the timers advances (as in tests), and the other doesn't.
        tokio::time::advance(3600 * SECOND).await;
        assert!(now.elapsed() >= 3600 * SECOND);
        assert!(now.after(60 * SECOND).is_past() && !now.after(3700 * SECOND).is_past());
    }

    #[tokio::test(start_paused = true)]
    async fn an_instant_is_reached_neither_early_nor_late() {
        let begin = Instant::now();
        BootInstant::now().after(Duration::from_millis(2_500)).reached().await;
        assert!(begin.elapsed() >= Duration::from_millis(2_500), "{:?}", begin.elapsed());
        assert!(begin.elapsed() < Duration::from_millis(2_510), "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn distant_instants_do_not_overflow() {
        let far = BootInstant::now().after(Duration::from_secs(9_000_000_000)).after(Duration::MAX);
        assert!(far.remaining() > Duration::from_secs(1 << 29));
        assert!(BootInstant::now().before(Duration::MAX).elapsed() < SECOND * 86_400 * 10_000);
    }
}
