//! Milliseconds since 1970: how the core keeps the times that stand in objects.

use k8s_openapi::jiff::Timestamp;
use lessor_api::time;

/// Milliseconds since 1970, rounded down: how times are kept.
pub(crate) fn millis(time: Timestamp) -> i64 {
    time.as_millisecond()
}

/// A time from milliseconds since 1970; the nearest one that exists.
pub(crate) fn from_millis(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(if millis < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// A time as status fields and logs write it.
pub(crate) fn text(millis: i64) -> String {
    time::to_text(from_millis(millis))
}
