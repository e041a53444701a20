//! What the log says of a value, in the words that poll mode has for it: a row that is read both ways is one
//! event. The session that reads the log has UTC, ISO dates and bytes in hexadecimal. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::table::ColumnKind;

/// As the cast to `text` says it.
pub(super) fn plain_text(kind: ColumnKind, text: &str) -> String {
    match (kind, text) {
        (ColumnKind::Boolean, "t") => "true".to_owned(),
        (ColumnKind::Boolean, "f") => "false".to_owned(),
        (ColumnKind::Padded, text) => text.trim_end_matches(' ').to_owned(),
        _ => text.to_owned(),
    }
}

/// An additional column.
pub(super) fn column_text(kind: ColumnKind, text: &str) -> String {
    match kind {
        ColumnKind::Instant | ColumnKind::Local => time_text(kind, text),
        ColumnKind::Bytes => STANDARD.encode(bytes_of(text)),
        // What is no number in JSON is a text there.
        ColumnKind::Number if text.parse::<f64>().is_ok_and(|number| !number.is_finite()) => {
            format!("\"{text}\"")
        }
        _ => plain_text(kind, text),
    }
}

/// A time as RFC 3339, with six decimals as poll mode has it.
pub(super) fn time_text(kind: ColumnKind, text: &str) -> String {
    if kind == ColumnKind::Integer {
        let millis = text.parse().unwrap_or_default();
        let at = jiff::Timestamp::from_millisecond(millis).unwrap_or_default();
        return format!("{at:.6}");
    }
    if !matches!(kind, ColumnKind::Instant | ColumnKind::Local) {
        return text.to_owned();
    }
    let text = text.strip_suffix("+00").unwrap_or(text);
    let (day, time) = text.split_once(' ').unwrap_or((text, "00:00:00"));
    let (seconds, fraction) = time.split_once('.').unwrap_or((time, ""));
    format!("{day}T{seconds}.{fraction:0<6}Z")
}

/// Bytes that are written in hexadecimal after `\x`.
pub(super) fn bytes_of(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("\\x").unwrap_or(text);
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
    };
    digits
        .as_bytes()
        .chunks_exact(2)
        .filter_map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_as_poll_mode_reads_them() {
        for (kind, text, expected) in [
            (
                ColumnKind::Instant,
                "2026-01-31 12:00:00.5+00",
                "2026-01-31T12:00:00.500000Z",
            ),
            (
                ColumnKind::Local,
                "2026-01-31 12:00:00",
                "2026-01-31T12:00:00.000000Z",
            ),
            (
                ColumnKind::Local,
                "2026-01-31",
                "2026-01-31T00:00:00.000000Z",
            ),
            (ColumnKind::Integer, "1500", "1500"),
            (ColumnKind::Boolean, "t", "true"),
            (ColumnKind::Number, "12.50", "12.50"),
            (ColumnKind::Number, "NaN", "\"NaN\""),
            (ColumnKind::Bytes, "\\x00ff", "AP8="),
            (ColumnKind::Other, "t", "t"),
        ] {
            assert_eq!(column_text(kind, text), expected, "{text}");
        }
        assert_eq!(
            time_text(ColumnKind::Integer, "1500"),
            "1970-01-01T00:00:01.500000Z"
        );
    }
}
