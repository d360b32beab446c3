//! Whole seconds, as the API has them.

use std::time::Duration;

pub(crate) use lessor_api::duration::seconds;

/// A duration in seconds, rounded down.
pub(crate) fn rounded_down(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// A duration in seconds, rounded up.
pub(crate) fn rounded_up(duration: Duration) -> i64 {
    rounded_down(duration).saturating_add(i64::from(duration.subsec_nanos() > 0))
}
