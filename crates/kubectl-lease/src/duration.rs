//! Durations of the command line.

use std::time::Duration;

use lessor_api::{duration::parse, lease::MAX_SECONDS};

/// Parses a duration above zero.
pub(crate) fn positive(text: &str) -> Result<Duration, String> {
    let duration = parse(text).map_err(|error| error.to_string())?;
    if duration.is_zero() { Err("must be above zero".to_owned()) } else { Ok(duration) }
}

/// Parses a duration of a lease: whole seconds, at least one.
pub(crate) fn whole_seconds(text: &str) -> Result<Duration, String> {
    let duration = positive(text)?;
    if duration.subsec_nanos() > 0 {
        return Err("must be whole seconds".to_owned());
    }
    if duration.as_secs() > MAX_SECONDS.unsigned_abs() {
        return Err(format!("must be at most {MAX_SECONDS}s"));
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_of_a_lease_is_whole_seconds_within_the_limits_of_the_api() {
        assert_eq!(whole_seconds("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(whole_seconds("9000000000s"), Ok(Duration::from_secs(9_000_000_000)));
        for wrong in ["", "5", "0s", "0d", "500ms", "1h500ms", "9000000001s", "200000d"] {
            assert!(whole_seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_timeout_is_above_zero() {
        assert_eq!(positive("500ms"), Ok(Duration::from_millis(500)));
        assert!(positive("0s").is_err());
    }
}
