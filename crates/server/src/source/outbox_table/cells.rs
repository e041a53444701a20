//! A row's columns as MySQL and SQLite give them, and the row that they make. Both are asked for the same
//! columns in the same order.

use jiff::Timestamp;
use uuid::Uuid;

use super::row::{Column, Payload, Place, Row};
use crate::config::source::router::RouterConfig;

/// A value, by the type of its column or, in SQLite, by its own.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Null,
    Text(String),
    /// A number as JSON writes it.
    Number(String),
    /// The text of a JSON column.
    Json(String),
    Bytes(Vec<u8>),
}

/// The columns that are asked for, in the order in which `row` takes their values.
pub(super) fn wanted(router: &RouterConfig) -> Vec<&str> {
    let mut wanted = vec![
        router.id.as_str(),
        &router.route_by,
        &router.key,
        &router.kind,
        &router.payload,
    ];
    wanted.extend(router.timestamp.as_deref());
    wanted.extend(router.schema_version.as_deref());
    wanted.extend(router.additional.iter().map(|one| one.column.as_str()));
    wanted
}

/// The row that the values of the wanted columns make.
pub(super) fn row(router: &RouterConfig, place: Place, cells: Vec<Cell>) -> Row {
    let mut cells = cells.into_iter();
    let mut next = || cells.next().unwrap_or(Cell::Null);
    let (id, route, key, kind) = (next(), next(), next(), next());
    let payload = match next() {
        Cell::Null => Payload::Null,
        Cell::Text(text) => Payload::Text(text),
        Cell::Number(text) | Cell::Json(text) => Payload::Json(text),
        Cell::Bytes(bytes) => Payload::Binary(bytes),
    };
    let timestamp = router.timestamp.as_ref().and_then(|_| time(next()));
    let schema_version = router.schema_version.as_ref().and_then(|_| text(next()));
    let additional = router.additional.iter().map(|_| match next() {
        Cell::Null => Column::Null,
        Cell::Number(text) | Cell::Json(text) => Column::Json(text),
        Cell::Text(text) => Column::Text(time_text(text)),
        bytes @ Cell::Bytes(_) => text(bytes).map_or(Column::Null, Column::Text),
    });
    let additional = additional.collect();
    Row {
        place,
        id: text(id),
        route: text(route),
        key: text(key),
        kind: text(kind),
        payload,
        timestamp,
        schema_version,
        additional,
    }
}

/// A value as a text; sixteen bytes are a UUID, as databases without such a type keep one.
pub(super) fn text(cell: Cell) -> Option<String> {
    match cell {
        Cell::Null => None,
        Cell::Text(text) | Cell::Number(text) | Cell::Json(text) => Some(text),
        Cell::Bytes(bytes) => Some(match Uuid::from_slice(&bytes) {
            Ok(uuid) => uuid.to_string(),
            Err(_) => hex(&bytes),
        }),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A time: a number is milliseconds since 1970, as Debezium's router has it.
fn time(cell: Cell) -> Option<String> {
    if let Cell::Number(number) = &cell
        && let Ok(time) = number.parse().map(Timestamp::from_millisecond)
    {
        return time.ok().map(|time| time.to_string());
    }
    text(cell).map(time_text)
}

/// `2026-01-02 03:04:05.6`, as databases write a time, as RFC 3339 does; without a zone it is UTC.
fn time_text(text: String) -> String {
    const PATTERN: &str = "dddd-dd-dd dd:dd:dd";
    let fits = |(byte, pattern): (u8, u8)| match pattern {
        b'd' => byte.is_ascii_digit(),
        b' ' => byte == b' ' || byte == b'T',
        other => byte == other,
    };
    let Some((head, rest)) = text.split_at_checked(PATTERN.len()) else {
        return text;
    };
    if !head.bytes().zip(PATTERN.bytes()).all(fits) {
        return text;
    }
    let fraction = rest.strip_prefix('.').unwrap_or(rest);
    let is_local = fraction.bytes().all(|byte| byte.is_ascii_digit());
    format!(
        "{}{rest}{}",
        head.replace(' ', "T"),
        if is_local { "Z" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_and_other_texts_stay() {
        for (found, expected) in [
            ("2026-01-02 03:04:05", "2026-01-02T03:04:05Z"),
            ("2026-01-02 03:04:05.600000", "2026-01-02T03:04:05.600000Z"),
            ("2026-01-02T03:04:05+02:00", "2026-01-02T03:04:05+02:00"),
            ("2026-01-02 03:04", "2026-01-02 03:04"),
            ("yesterday, at the fountain", "yesterday, at the fountain"),
            ("äöü-öä-äö äö:äö:äö", "äöü-öä-äö äö:äö:äö"),
        ] {
            assert_eq!(time_text(found.into()), expected);
        }
        assert_eq!(
            time(Cell::Number("1700000000123".into())).as_deref(),
            Some("2023-11-14T22:13:20.123Z")
        );
        assert_eq!(time(Cell::Null), None);
    }

    #[test]
    fn sixteen_bytes_are_a_uuid() {
        let bytes = Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0001);
        assert_eq!(
            text(Cell::Bytes(bytes.as_bytes().to_vec())).unwrap(),
            "01990000-0000-7000-8000-000000000001"
        );
        assert_eq!(text(Cell::Bytes(vec![1, 255])).unwrap(), "01ff");
    }
}
