//! Points in time, as the protocol has them: nanoseconds of `CLOCK_BOOTTIME`.

use std::{fmt, ops, time::Duration};

use k8s_openapi::jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A point in time on the clock that counts since the machine's start and that no user sets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(i64);

impl Moment {
    /// Now.
    pub fn now() -> Self {
        Self(nanoseconds(ClockId::Boottime))
    }

    /// This time of the machine's wall clock, by which the API server writes its audit log.
    pub fn of_wall_clock(time: Timestamp) -> Self {
        let ago = nanoseconds(ClockId::Realtime) - i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX);
        Self(nanoseconds(ClockId::Boottime) - ago)
    }

    /// From `earlier` to this, or nothing if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0 - earlier.0).unwrap_or_default())
    }
}

fn nanoseconds(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

impl ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", self.0 as f64 / 1e9)
    }
}

/// How far `later` is behind `earlier`, with its sign, for people.
pub fn lag(later: Moment, earlier: Moment) -> String {
    format!("{:+.3} s", (later.0 - earlier.0) as f64 / 1e9)
}
