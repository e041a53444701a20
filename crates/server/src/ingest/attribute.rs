//! The rules of CloudEvents 1.0 for attribute names and values, as pure checks.

use std::borrow::Cow;

use wayhold_model::limits::EXTENSION_NAME_BYTES_MAX;

use super::Refusal;
use crate::config::ParseMode;

/// An attribute's value on its way in, in the types that CloudEvents' JSON format tells apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Text(Cow<'a, str>),
    Integer(i32),
    Boolean(bool),
}

/// The name under which an attribute is kept.
pub(crate) fn name(name: Cow<'_, str>, mode: ParseMode) -> Result<Cow<'_, str>, Refusal> {
    if name.is_empty() || name.len() > EXTENSION_NAME_BYTES_MAX {
        return Err(Refusal::invalid(
            shown(&name),
            format!("an attribute name of 1 to {EXTENSION_NAME_BYTES_MAX} bytes"),
        ));
    }
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if name.bytes().all(legal) {
        return Ok(name);
    }
    if mode == ParseMode::Lenient && name.bytes().all(|byte| legal(byte.to_ascii_lowercase())) {
        return Ok(Cow::Owned(name.to_ascii_lowercase()));
    }
    Err(Refusal::invalid(
        shown(&name),
        "an attribute name of lower-case letters and digits (mode lenient lowers upper-case ones)",
    ))
}

/// Text of an attribute: not empty, and without the characters that CloudEvents excludes (controls
/// and non-characters; Rust's strings hold no unpaired surrogates).
pub(crate) fn text(name: &str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() {
        return Err(Refusal::invalid(name, "a value that is not empty"));
    }
    if value.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return Ok(());
    }
    match value
        .char_indices()
        .find(|&(_, c)| c.is_control() || is_noncharacter(c))
    {
        None => Ok(()),
        Some((offset, c)) => Err(Refusal::invalid(
            name,
            format!(
                "no control characters or non-characters, got U+{:04X} at byte {offset}",
                u32::from(c)
            ),
        )),
    }
}

/// An RFC 3339 date-time.
pub(crate) fn time(value: &str) -> Result<(), Refusal> {
    is_rfc3339(value.as_bytes())
        .then_some(())
        .ok_or_else(|| Refusal::invalid("time", "an RFC 3339 time such as 2026-01-31T12:00:00Z"))
}

/// A name as an error may show it: bounded, and without control characters.
fn shown(name: &str) -> String {
    name.chars()
        .take(EXTENSION_NAME_BYTES_MAX)
        .flat_map(char::escape_default)
        .collect()
}

fn is_noncharacter(c: char) -> bool {
    let code = u32::from(c);
    (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

/// RFC 3339 section 5.6, with the days of each month and a leap second allowed at any minute's end.
fn is_rfc3339(text: &[u8]) -> bool {
    let number = |from: usize, to: usize| -> Option<u32> {
        text.get(from..to)?.iter().try_fold(0, |value, &byte| {
            byte.is_ascii_digit()
                .then(|| value * 10 + u32::from(byte - b'0'))
        })
    };
    let byte = |at: usize| text.get(at).copied().unwrap_or_default();
    let (Some(year), Some(month), Some(day)) = (number(0, 4), number(5, 7), number(8, 10)) else {
        return false;
    };
    let (Some(hour), Some(minute), Some(second)) = (number(11, 13), number(14, 16), number(17, 19))
    else {
        return false;
    };
    let separators = byte(4) == b'-'
        && byte(7) == b'-'
        && matches!(byte(10), b'T' | b't')
        && byte(13) == b':'
        && byte(16) == b':';
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let in_range = (1..=12).contains(&month)
        && (1..=days).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let mut end = 19;
    if byte(end) == b'.' {
        end += 1;
        let fraction = text.get(end..).unwrap_or_default();
        let digits = fraction
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if digits == 0 {
            return false;
        }
        end += digits;
    }
    let offset = match byte(end) {
        b'Z' | b'z' => text.len() == end + 1,
        b'+' | b'-' => {
            text.len() == end + 6
                && byte(end + 3) == b':'
                && number(end + 1, end + 3).is_some_and(|hours| hours < 24)
                && number(end + 4, end + 6).is_some_and(|minutes| minutes < 60)
        }
        _ => false,
    };
    separators && in_range && offset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339() {
        for yes in [
            "2018-04-05T17:31:00Z",
            "2024-02-29t23:59:60.123456789z",
            "1985-04-12T23:20:50.52+05:30",
            "2000-02-29T00:00:00-00:00",
        ] {
            assert!(time(yes).is_ok(), "{yes}");
        }
        for no in [
            "",
            "2018-04-05",
            "2018-04-05 17:31:00Z",
            "2018-04-05T17:31:00",
            "2018-04-05T17:31:00.Z",
            "2018-04-31T17:31:00Z",
            "1900-02-29T00:00:00Z",
            "2018-13-01T00:00:00Z",
            "2018-04-05T24:00:00Z",
            "2018-04-05T17:31:00+0530",
            "2018-04-05T17:31:00Zx",
            "+018-04-05T17:31:00Z",
            "2018-04-05T17:31:00+24:00",
        ] {
            assert!(time(no).is_err(), "{no}");
        }
    }

    #[test]
    fn names_are_lower_case_letters_and_digits() {
        let keep = |text: &'static str, mode| name(text.into(), mode).ok();
        assert_eq!(
            keep("traceparent", ParseMode::Strict).as_deref(),
            Some("traceparent")
        );
        assert_eq!(keep("subscriptionReference", ParseMode::Strict), None);
        assert_eq!(
            keep("subscriptionReference", ParseMode::Lenient).as_deref(),
            Some("subscriptionreference")
        );
        for never in ["", "a-b", "a_b", "a.b", "a b", "é", "a\u{1b}"] {
            assert_eq!(keep(never, ParseMode::Lenient), None, "{never}");
        }
    }

    #[test]
    fn text_holds_no_controls_and_no_noncharacters() {
        for yes in ["a", "Euro € 😀", "\u{fffd}"] {
            assert_eq!(text("subject", yes), Ok(()));
        }
        for no in [
            "",
            "a\0",
            "\u{85}",
            "\u{7f}",
            "\u{fdd0}",
            "\u{fffe}",
            "\u{10ffff}",
        ] {
            assert!(text("subject", no).is_err(), "{no:?}");
        }
    }
}
