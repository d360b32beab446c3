//! Durations as people write them: `90s`, `15m`, `1h30m`, `2d`.

use std::time::Duration;

use lessor_api::lease::MAX_SECONDS;

/// Units, from the longest to the shortest, and their seconds.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];
const EXAMPLES: &str = "write whole numbers with units, the longest unit first, like 90s, 15m, 1h30m or 2d";

/// Reads a duration, wholly or not at all: whole numbers, each with a unit, each unit once and in descending
/// order.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = |what: String| format!("{what}: {EXAMPLES}");
    if text.is_empty() {
        return Err(wrong("no duration".to_owned()));
    }
    let mut units = UNITS.iter();
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = rest.split_at(digits);
        let Some(unit) = behind.chars().next() else {
            return Err(wrong(format!("{number:?} has no unit")));
        };
        if digits == 0 {
            return Err(wrong(format!("no number in front of {behind:?}")));
        }
        let letters: String = behind.chars().take_while(char::is_ascii_alphabetic).collect();
        if letters == "ms" {
            return Err(wrong("leases count in seconds".to_owned()));
        }
        let known = UNITS.iter().any(|(name, _)| *name == unit);
        let Some((_, seconds)) = units.find(|(name, _)| *name == unit) else {
            return Err(wrong(match known {
                true => format!("the unit {unit:?} is in the wrong place, or there twice"),
                false => format!("{unit:?} is no unit"),
            }));
        };
        let number: Option<u64> = number.parse().ok();
        total = number
            .and_then(|number| number.checked_mul(*seconds))
            .and_then(|part| total.checked_add(part))
            .filter(|total| *total <= MAX_SECONDS.unsigned_abs())
            .ok_or_else(|| format!("{text:?} is too long: no lease may take more than {MAX_SECONDS}s"))?;
        rest = &behind[unit.len_utf8()..];
    }
    if total == 0 {
        return Err(wrong(format!("{text:?} is no time at all")));
    }
    Ok(Duration::from_secs(total))
}

/// Writes a duration for people: its two largest units, cut below.
pub(crate) fn short(duration: Duration) -> String {
    let mut seconds = duration.as_secs();
    let mut parts = Vec::new();
    for (name, unit) in UNITS {
        let count = seconds / unit;
        seconds %= unit;
        if count > 0 {
            parts.push(format!("{count}{name}"));
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.concat() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let seconds = |text| parse(text).map(|duration| duration.as_secs());
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("15m"), Ok(900));
        assert_eq!(seconds("1h30m"), Ok(5_400));
        assert_eq!(seconds("2d"), Ok(172_800));
        assert_eq!(seconds("1d2h3m4s"), Ok(93_784));
        assert_eq!(seconds("9000000000s"), Ok(9_000_000_000));
    }

    #[test]
    fn what_is_half_understood_is_refused_with_an_example() {
        for wrong in [
            "", "5", "s", "1h30", "1.5h", "-1h", "+1h", " 1h", "1h ", "1 h", "1h 30m", "30m1h", "1h1h",
            "abc1h", "1hx", "5S", "5w", "1y", "500ms", "1h500ms", "0s", "0d", "٣s", "1µs", "1m30", "1_000s",
            "0x10s", "1e3s",
        ] {
            let message = parse(wrong).expect_err(wrong);
            assert!(message.contains("like 90s, 15m, 1h30m or 2d"), "{message}");
        }
        for long in ["9000000001s", "200000d", "99999999999999999999s", "18446744073709551615d"] {
            assert!(parse(long).expect_err(long).contains("too long"), "{long}");
        }
    }

    #[test]
    fn a_duration_for_people_has_its_two_largest_units() {
        let text = |seconds| short(Duration::from_secs(seconds));
        assert_eq!(text(0), "0s");
        assert_eq!(text(59), "59s");
        assert_eq!(text(60), "1m");
        assert_eq!(text(125), "2m5s");
        assert_eq!(text(3_605), "1h");
        assert_eq!(text(93_784), "1d2h");
        assert_eq!(short(Duration::from_millis(1_999)), "1s");
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_what_was_written(counts in prop::array::uniform4(0..100_u64)) {
            let [days, hours, minutes, seconds] = counts;
            let total = days * 86_400 + hours * 3_600 + minutes * 60 + seconds;
            let written: String = [(days, 'd'), (hours, 'h'), (minutes, 'm'), (seconds, 's')]
                .into_iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, unit)| format!("{count}{unit}"))
                .collect();
            prop_assert_eq!(parse(&written).ok(), (total > 0).then(|| Duration::from_secs(total)));
        }

        #[test]
        fn what_is_read_says_nothing_else(text in "([0-9]{1,3}[dhmswx .]?){0,4}") {
            let Ok(read) = parse(&text) else { return Ok(()) };
            // The same by another way: each unit with the number in front of it, and nothing left over.
            let parts: Vec<&str> = text.split_inclusive(|letter: char| !letter.is_ascii_digit()).collect();
            let seconds = parts.iter().map(|part| {
                let (number, unit) = part.split_at(part.len() - 1);
                let (_, seconds) = UNITS.iter().find(|(name, _)| unit.starts_with(*name))?;
                Some(number.parse::<u64>().ok()? * seconds)
            });
            prop_assert_eq!(seconds.sum::<Option<u64>>(), Some(read.as_secs()));
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,12}") {
            let _ = parse(&text);
        }
    }
}
