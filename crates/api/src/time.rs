//! Times in the API's text form (RFC 3339, UTC, six decimals) and in HTTP headers.

use std::time::Duration;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::{
        SignedDuration, Timestamp,
        fmt::{rfc2822, strtime},
    },
};

/// The pattern of `spec.renewTime`: RFC 3339 with a capital `T` and up to nine decimals.
///
/// The schema has this pattern in place of `format: date-time`, because CEL rules compare a `date-time` as an instant: the
/// same instant in another spelling would count as unchanged, and a renewal would be accepted after the end.
pub const RENEW_TIME_PATTERN: &str = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";

/// The longest text that [`RENEW_TIME_PATTERN`] accepts.
pub const RENEW_TIME_MAX_LENGTH: u32 = 35;

/// Formats a time like a Kubernetes `MicroTime`: `2026-01-31T12:00:00.123456Z`.
///
/// Rounds down to microseconds, so the text is never later than `time`.
pub fn to_text(time: Timestamp) -> String {
    // A timestamp has every part of this format, so formatting can't fail. The fallback is the same instant in jiff's
    // own format.
    strtime::format("%Y-%m-%dT%H:%M:%S%.6fZ", time).unwrap_or_else(|_| time.to_string())
}

/// Parses RFC 3339 text with any offset. `None` if it is malformed.
pub fn from_text(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Parses an HTTP date, such as the value of a `Date` header. `None` if it is malformed.
pub fn from_http_date(text: &str) -> Option<Timestamp> {
    Some(rfc2822::parse(text).ok()?.timestamp())
}

/// The time from `earlier` to `later`; zero if `earlier` is later.
pub fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}

/// A time for a status field.
pub fn micro(time: Timestamp) -> MicroTime {
    MicroTime(time)
}

/// The `renewTime` of a renewal at `now`: always different from `previous`, and later if `previous` is a valid time.
///
/// An unchanged `renewTime` renews nothing. Two renewals may happen within a microsecond, and a clock may step back.
pub fn renewal(now: Timestamp, previous: Option<&str>) -> String {
    let next = previous
        .and_then(from_text)
        .filter(|previous| *previous >= now)
        .and_then(|previous| previous.checked_add(SignedDuration::from_micros(1)).ok())
        .unwrap_or(now);
    let text = to_text(next);
    if previous != Some(text.as_str()) {
        return text;
    }
    // Less than a microsecond after the previous one, or at the end of the range of timestamps.
    next.checked_add(SignedDuration::from_micros(1)).map_or(text, to_text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        from_text(text).unwrap()
    }

    #[test]
    fn a_time_is_formatted_like_a_kubernetes_micro_time() {
        assert_eq!(to_text(at("2026-01-31T12:00:00Z")), "2026-01-31T12:00:00.000000Z");
        assert_eq!(to_text(at("2026-01-31T13:00:00.5+01:00")), "2026-01-31T12:00:00.500000Z");
        let micro = serde_json::to_value(micro(at("2026-01-31T12:00:00.1234567Z"))).unwrap();
        assert_eq!(micro, "2026-01-31T12:00:00.123456Z");
    }

    #[test]
    fn a_time_as_text_is_never_later_than_the_time() {
        assert_eq!(to_text(at("2026-01-31T12:00:00.999999999Z")), "2026-01-31T12:00:00.999999Z");
    }

    #[test]
    fn an_http_date_is_parsed_or_absent() {
        assert_eq!(from_http_date("Sat, 31 Jan 2026 12:00:00 GMT"), Some(at("2026-01-31T12:00:00Z")));
        assert_eq!(from_http_date("yesterday"), None);
    }

    #[test]
    fn the_time_between_two_instants_is_never_negative() {
        let (earlier, later) = (at("2026-01-31T12:00:00Z"), at("2026-01-31T12:00:30Z"));
        assert_eq!(between(earlier, later), Duration::from_secs(30));
        assert_eq!(between(later, earlier), Duration::ZERO);
    }

    #[test]
    fn a_renewal_within_a_microsecond_or_after_a_clock_step_has_a_new_renew_time() {
        let now = at("2026-01-31T12:00:00.123456Z");
        assert_eq!(renewal(now, None), "2026-01-31T12:00:00.123456Z");
        assert_eq!(renewal(now, Some("2026-01-31T12:00:00.123456Z")), "2026-01-31T12:00:00.123457Z");
        assert_eq!(renewal(now, Some("2026-01-31T12:00:01Z")), "2026-01-31T12:00:01.000001Z");
        assert_eq!(renewal(now, Some("nonsense")), "2026-01-31T12:00:00.123456Z");
    }

    proptest! {
        #[test]
        fn each_renewal_is_new_and_later(nanos in 0..4_000_000_000_000_000_000_i64, steps in prop::collection::vec(-3_000..3_000_i64, 1..8)) {
            let mut now = Timestamp::from_nanosecond(i128::from(nanos)).unwrap();
            let mut last = to_text(now);
            for step in steps {
                now = now.checked_add(SignedDuration::from_nanos(step)).unwrap();
                let next = renewal(now, Some(&last));
                prop_assert!(from_text(&next) > from_text(&last), "{last} then {next}");
                last = next;
            }
        }
    }
}
