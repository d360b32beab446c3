//! Times as the API writes them: RFC 3339, UTC, six decimals.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::{SignedDuration, Timestamp, fmt::strtime},
};

/// What `spec.renewTime` must look like: RFC 3339 with a capital `T` and up to nine decimals.
///
/// A pattern, and not `format: date-time`: rules of the CRD compare a `date-time` as an instant, so the same instant in
/// other text would pass for "unchanged", and a renewal could slip in after the end.
pub const RENEW_TIME_PATTERN: &str = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";

/// The longest text that [`RENEW_TIME_PATTERN`] accepts.
pub const RENEW_TIME_MAX_LENGTH: u32 = 35;

/// Writes a time the way Kubernetes writes a `MicroTime`: `2026-01-31T12:00:00.123456Z`.
///
/// Cuts what is below a microsecond, so that what it says is never later than `time`.
pub fn to_text(time: Timestamp) -> String {
    // The format has no part that a timestamp could lack, so formatting it can't fail; jiff's own format is the same
    // instant with as many decimals as it takes.
    strtime::format("%Y-%m-%dT%H:%M:%S%.6fZ", time).unwrap_or_else(|_| time.to_string())
}

/// Reads a time from RFC 3339 text, in any offset. `None`: it is no such text.
pub fn from_text(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// A time for a status field.
pub fn micro(time: Timestamp) -> MicroTime {
    MicroTime(time)
}

/// The `renewTime` of a renewal at `now`: never the text that is already there, and later than it where that can be read.
///
/// An unchanged `renewTime` renews nothing, and two renewals may come within a microsecond, or a clock may step back.
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
    // Less than a microsecond after the last one, or at the very end of time.
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
    fn times_are_written_as_kubernetes_writes_them() {
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
    fn a_renewal_in_the_same_microsecond_or_after_a_clock_stepped_back_is_new_all_the_same() {
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
