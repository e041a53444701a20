//! Durations and sizes as people write them: `"30s"`, `"64 MiB"`.

use std::time::Duration;

use thiserror::Error;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A text that is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidQuantity {
    /// Not a duration.
    #[error("expected a duration such as \"250ms\", \"30s\", \"10m\", \"24h\" or \"7d\"")]
    Duration,
    /// Not a size.
    #[error("expected a size such as \"512 B\", \"64 KiB\", \"64 MiB\" or \"1 GiB\"")]
    Size,
}

/// Units of time, in milliseconds, the largest first.
const DURATION_UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Units of size, in bytes, the largest first. Powers of 1,024 only: nobody has to guess which `MB` is
/// meant.
const SIZE_UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Reads a duration: a whole number and a unit, with or without a space between.
///
/// # Errors
/// When the text is none, or overflows 64 bits.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidQuantity> {
    let millis = parse(text, &DURATION_UNITS).ok_or(InvalidQuantity::Duration)?;
    Ok(Duration::from_millis(millis))
}

/// Writes a duration in the largest unit that is exact, to the millisecond.
pub fn show_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (number, unit) = in_largest(millis, &DURATION_UNITS, ("s", 1_000));
    format!("{number}{unit}")
}

/// Reads a size: a whole number and a unit, with or without a space between.
///
/// # Errors
/// When the text is none, or overflows 64 bits.
pub fn parse_size(text: &str) -> Result<Size, InvalidQuantity> {
    parse(text, &SIZE_UNITS)
        .map(Size)
        .ok_or(InvalidQuantity::Size)
}

/// Writes a size in the largest unit that is exact.
pub fn show_size(size: Size) -> String {
    let (number, unit) = in_largest(size.0, &SIZE_UNITS, ("B", 1));
    format!("{number} {unit}")
}

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(end)?;
    let (_, size) = units
        .iter()
        .find(|(name, _)| *name == unit.trim_start_matches(' '))?;
    number.parse::<u64>().ok()?.checked_mul(*size)
}

/// The number in the largest unit that divides it; zero in the unit given for it.
fn in_largest<'a>(number: u64, units: &[(&'a str, u64)], zero: (&'a str, u64)) -> (u64, &'a str) {
    let exact = units
        .iter()
        .find(|(_, size)| number != 0 && number.is_multiple_of(*size));
    let (name, size) = exact.copied().unwrap_or(zero);
    (number / size, name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_read_as_written() {
        for (text, millis) in [
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("10 m", 600_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for text in [
            "",
            "s",
            "30",
            "-1s",
            "1.5s",
            "1S",
            "1 sec",
            "30s ",
            "\u{664}s",
            "9999999999999999d",
        ] {
            assert_eq!(
                parse_duration(text),
                Err(InvalidQuantity::Duration),
                "{text}"
            );
        }
    }

    #[test]
    fn sizes_read_as_written() {
        for (text, bytes) in [
            ("0 B", 0),
            ("512 B", 512),
            ("64KiB", 65_536),
            ("64 MiB", 67_108_864),
            ("1 GiB", 1_073_741_824),
        ] {
            assert_eq!(parse_size(text), Ok(Size(bytes)), "{text}");
        }
        for text in [
            "",
            "64",
            "64 MB",
            "64 mib",
            "1e3 B",
            "99999999 TiB",
            "\u{1F4A9}",
        ] {
            assert_eq!(parse_size(text), Err(InvalidQuantity::Size), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(number in 0..u64::from(u32::MAX), unit in 0..4_usize) {
            let size = Size(number * SIZE_UNITS[unit + 1].1);
            prop_assert_eq!(parse_size(&show_size(size)), Ok(size));
            let duration = Duration::from_millis(number * DURATION_UNITS[unit].1);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }

        #[test]
        fn what_is_shown_of_any_text_that_reads_is_the_same(text in "[0-9]{1,21} ?[a-zA-Z]{0,3}") {
            if let Ok(size) = parse_size(&text) {
                prop_assert_eq!(parse_size(&show_size(size)), Ok(size));
            }
            if let Ok(duration) = parse_duration(&text) {
                prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
            }
        }
    }
}
