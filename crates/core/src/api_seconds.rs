//! Whole seconds, as the API has them.

use std::time::Duration;

/// Seconds of the API as a duration; a negative number is zero.
pub(crate) fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// A duration in seconds, rounded down.
pub(crate) fn rounded_down(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// A duration in seconds, rounded up.
pub(crate) fn rounded_up(duration: Duration) -> i64 {
    rounded_down(duration).saturating_add(i64::from(duration.subsec_nanos() > 0))
}
