//! Durations as text (`500ms`, `90s`, `1h30m`, `2d`) and as the seconds of API fields.

use std::time::Duration;

/// Units from the longest to the shortest, with their milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {0:?}: expected a number and a unit, such as 500ms, 10s or 5m")]
pub struct InvalidDuration(String);

/// Parses a duration: whole numbers with units, each unit at most once, the longest first.
///
/// ```
/// # use std::time::Duration;
/// # use lessor_api::duration;
/// assert_eq!(duration::parse("1h30m"), Ok(Duration::from_secs(5_400)));
/// assert!(duration::parse("1h30").is_err());
/// ```
///
/// # Errors
///
/// [`InvalidDuration`] unless the whole text is a duration of less than 2⁶⁴ milliseconds.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    parse_millis(text).map(Duration::from_millis).ok_or_else(|| InvalidDuration(text.to_owned()))
}

fn parse_millis(text: &str) -> Option<u64> {
    let mut units = UNITS.iter();
    let mut total: u64 = 0;
    let mut rest = text;
    loop {
        let (number, behind) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
        let (unit, behind) = behind.split_at(behind.bytes().take_while(u8::is_ascii_alphabetic).count());
        // `find` consumes the units that it passes, so a unit can't follow a shorter one.
        let (_, millis) = units.find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*millis)?)?;
        if behind.is_empty() {
            return Some(total);
        }
        rest = behind;
    }
}

/// A duration in whole seconds with its two largest units, rounded down: `1h30m`, `12s`, `0s`.
pub fn abbreviated(duration: Duration) -> String {
    let mut millis = duration.as_secs().saturating_mul(1_000);
    let mut parts: Vec<String> = Vec::new();
    for (name, unit) in UNITS {
        let count = millis / unit;
        millis %= unit;
        match (count, parts.len()) {
            (0, 0) => {}
            (0, _) | (_, 2) => break,
            _ => parts.push(format!("{count}{name}")),
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.concat() }
}

/// Seconds of an API field as a duration; zero if they are negative.
pub fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_duration_has_whole_numbers_with_units_from_the_longest_to_the_shortest() {
        let seconds = |text| parse(text).map(|duration| duration.as_secs());
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("0s"), Ok(0));
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("15m"), Ok(900));
        assert_eq!(seconds("2h"), Ok(7_200));
        assert_eq!(seconds("1h30m"), Ok(5_400));
        assert_eq!(seconds("2d"), Ok(172_800));
        assert_eq!(seconds("1d2h3m4s"), Ok(93_784));
        assert_eq!(seconds("9000000000s"), Ok(9_000_000_000));
    }

    #[test]
    fn a_text_is_parsed_wholly_or_refused_with_examples() {
        for wrong in [
            "",
            "5",
            "s",
            "1h30",
            "1.5h",
            "-1h",
            "+1h",
            " 1h",
            "1h ",
            "1 h",
            "1h 30m",
            "30m1h",
            "1h1h",
            "500ms1s",
            "abc1h",
            "1hx",
            "5S",
            "5w",
            "1y",
            "٣s",
            "1µs",
            "1_000s",
            "0x10s",
            "1e3s",
            "99999999999999999999s",
            "9000000000000000000h",
            "18446744073709551615ms1ms",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            parse("5").expect_err("no unit").to_string(),
            "invalid duration \"5\": expected a number and a unit, such as 500ms, 10s or 5m"
        );
    }

    #[test]
    fn an_abbreviated_duration_has_its_two_largest_units() {
        let text = |seconds| abbreviated(Duration::from_secs(seconds));
        assert_eq!(text(0), "0s");
        assert_eq!(text(59), "59s");
        assert_eq!(text(60), "1m");
        assert_eq!(text(125), "2m5s");
        assert_eq!(text(3_605), "1h");
        assert_eq!(text(93_784), "1d2h");
        assert_eq!(abbreviated(Duration::from_millis(999)), "0s");
        assert_eq!(abbreviated(Duration::from_millis(1_999)), "1s");
    }

    #[test]
    fn negative_seconds_are_zero() {
        assert_eq!(seconds(-1), Duration::ZERO);
        assert_eq!(seconds(30), Duration::from_secs(30));
    }

    proptest! {
        #[test]
        fn a_duration_written_by_units_is_parsed_as_their_sum(counts in prop::array::uniform5(0..100_u64)) {
            let total: u64 = counts.iter().zip(UNITS).map(|(count, (_, millis))| count * millis).sum();
            let written: String = counts
                .iter()
                .zip(UNITS)
                .filter(|(count, _)| **count > 0)
                .map(|(count, (unit, _))| format!("{count}{unit}"))
                .collect();
            prop_assert_eq!(parse(&written).ok(), (total > 0).then(|| Duration::from_millis(total)));
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,12}") {
            let _ = parse(&text);
        }
    }
}
