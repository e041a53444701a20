//! JSON that has one way to be written: RFC 8785, restricted so that no two readers can disagree.
//! Keys are sorted by UTF-16 code units, texts are escaped as little as possible, and in records numbers
//! are integers below 2^53 in size, which every language reads alike.
//!
//! A crate exists (`serde_json_canonicalizer`) and is what the tests compare with; it rounds integers that
//! a double cannot hold, where a record must refuse them, and copies every member twice.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use thiserror::Error;

/// Integers of at least this size are refused: a double does not hold them all.
pub const INTEGER_END: u64 = 1 << 53;

/// A value that has no canonical form here, or a text that is not canonical.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotCanonical {
    /// A number that readers might take for different ones.
    #[error("the number {0} is refused; expected an integer below 2^53 in size, or a string")]
    Number(String),
    /// The same name twice in one object.
    #[error("the name {0:?} stands twice in one object; expected it once")]
    Twice(String),
    /// Not JSON (a lone surrogate counts as that).
    #[error("not JSON: {0}")]
    Json(String),
    /// JSON, written in another way than the canonical one.
    #[error("not in canonical form; expected sorted names, no spaces and the fewest escapes")]
    Form,
    /// More bytes than a record may have.
    #[error("{bytes} bytes are refused; a record has at most {max}: put a digest in it instead")]
    Long {
        /// Its size.
        bytes: usize,
        /// The most allowed.
        max: usize,
    },
}

/// Which numbers have a canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    /// Integers below 2^53 in size.
    Integers,
    /// Those, and finite doubles as ECMAScript writes them.
    Doubles,
}

/// Canonical bytes of a value that belongs in a record: its numbers are integers.
///
/// # Errors
///
/// A number that is no integer below 2^53 in size.
pub fn to_vec(value: &Value) -> Result<Vec<u8>, NotCanonical> {
    let mut out = Vec::with_capacity(512);
    write(&mut out, value)?;
    Ok(out)
}

/// Appends the canonical bytes of a value that belongs in a record.
///
/// # Errors
///
/// As [`to_vec`]; `out` then holds a part.
pub fn write(out: &mut Vec<u8>, value: &Value) -> Result<(), NotCanonical> {
    write_value(out, value, Numbers::Integers)
}

/// Canonical bytes of what others sent, such as a command's arguments: numbers with a fraction are
/// written as RFC 8785 says.
///
/// # Errors
///
/// An integer of 2^53 or more in size: rounding it would give two values one digest.
pub fn of_foreign(value: &Value) -> Result<Vec<u8>, NotCanonical> {
    let mut out = Vec::with_capacity(512);
    write_value(&mut out, value, Numbers::Doubles)?;
    Ok(out)
}

/// Reads canonical bytes: what is written in any other way is refused, and so is everything that
/// [`to_vec`] refuses.
///
/// # Errors
///
/// Says what is not canonical.
pub fn read(bytes: &[u8]) -> Result<Value, NotCanonical> {
    let value = parse(bytes)?;
    let mut again = Vec::with_capacity(bytes.len());
    write(&mut again, &value)?;
    if again == bytes {
        Ok(value)
    } else {
        Err(NotCanonical::Form)
    }
}

/// Reads JSON in any form, refusing names that stand twice and, as every JSON reader here, lone
/// surrogates.
///
/// # Errors
///
/// Not JSON, or a name twice.
pub fn parse(bytes: &[u8]) -> Result<Value, NotCanonical> {
    let mut twice = None;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = Strict(&mut twice)
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    match (parsed, twice) {
        (_, Some(name)) => Err(NotCanonical::Twice(name)),
        (Err(error), None) => Err(NotCanonical::Json(error.to_string())),
        (Ok(value), None) => Ok(value),
    }
}

fn write_value(out: &mut Vec<u8>, value: &Value, numbers: Numbers) -> Result<(), NotCanonical> {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => write_number(out, number, numbers)?,
        Value::String(text) => write_text(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_value(out, item, numbers)?;
            }
            out.push(b']');
        }
        Value::Object(members) => write_object(out, members, numbers)?,
    }
    Ok(())
}

fn write_object(
    out: &mut Vec<u8>,
    members: &Map<String, Value>,
    numbers: Numbers,
) -> Result<(), NotCanonical> {
    out.push(b'{');
    if members.keys().is_sorted_by(|a, b| precedes(a, b)) {
        // The common case: names come sorted by bytes, which for these is the order wanted.
        for (at, (name, value)) in members.iter().enumerate() {
            write_member(out, at, name, value, numbers)?;
        }
    } else {
        let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
        sorted.sort_unstable_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
        for (at, (name, value)) in sorted.into_iter().enumerate() {
            write_member(out, at, name, value, numbers)?;
        }
    }
    out.push(b'}');
    Ok(())
}

/// Whether `a` comes before `b` by UTF-16 code units; by bytes where both are ASCII, which is the same.
fn precedes(a: &str, b: &str) -> bool {
    if a.is_ascii() && b.is_ascii() {
        a < b
    } else {
        a.encode_utf16().lt(b.encode_utf16())
    }
}

fn write_member(
    out: &mut Vec<u8>,
    at: usize,
    name: &str,
    value: &Value,
    numbers: Numbers,
) -> Result<(), NotCanonical> {
    if at > 0 {
        out.push(b',');
    }
    write_text(out, name);
    out.push(b':');
    write_value(out, value, numbers)
}

fn write_number(out: &mut Vec<u8>, number: &Number, numbers: Numbers) -> Result<(), NotCanonical> {
    let refused = || NotCanonical::Number(number.to_string());
    if let Some(positive) = number.as_u64() {
        if positive >= INTEGER_END {
            return Err(refused());
        }
        write_integer(out, positive);
    } else if let Some(negative) = number.as_i64() {
        if negative.unsigned_abs() >= INTEGER_END {
            return Err(refused());
        }
        out.push(b'-');
        write_integer(out, negative.unsigned_abs());
    } else {
        match number.as_f64() {
            Some(double) if numbers == Numbers::Doubles && double.is_finite() => {
                out.extend_from_slice(ryu_js::Buffer::new().format_finite(double).as_bytes());
            }
            _ => return Err(refused()),
        }
    }
    Ok(())
}

/// Appends an integer in decimal digits.
pub(super) fn write_integer(out: &mut Vec<u8>, mut value: u64) {
    let first = out.len();
    loop {
        // A remainder of ten is one digit.
        out.push(b'0' + u8::try_from(value % 10).unwrap_or_default());
        value /= 10;
        if value == 0 {
            break;
        }
    }
    if let Some(digits) = out.get_mut(first..) {
        digits.reverse();
    }
}

/// Appends a text in quotes, escaped as little as JSON allows.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest
        .iter()
        .position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\')
    {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain);
        let Some((&byte, after)) = special.split_first() else {
            break;
        };
        write_escape(out, byte);
        rest = after;
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

fn write_escape(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x09 => b't',
        0x0a => b'n',
        0x0c => b'f',
        0x0d => b'r',
        _ => {
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(data_encoding::HEXLOWER.encode(&[byte]).as_bytes());
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

/// Reads a value and remembers the first name that stood twice in an object.
struct Strict<'a>(&'a mut Option<String>);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(Strict(self.0))? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(Strict(self.0))?;
            if object.contains_key(&name) {
                self.0.get_or_insert(name);
            } else {
                object.insert(name, value);
            }
        }
        Ok(Value::Object(object))
    }
}

/// A value read by [`parse`]'s rules, for fields of requests: a name that stands twice is an error.
#[derive(Clone, Debug, PartialEq)]
pub struct StrictValue(pub Value);

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let mut twice = None;
        let value = Strict(&mut twice).deserialize(reader)?;
        match twice {
            Some(name) => Err(serde::de::Error::custom(NotCanonical::Twice(name))),
            None => Ok(Self(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn text(value: &Value) -> String {
        String::from_utf8(to_vec(value).unwrap()).unwrap()
    }

    #[test]
    fn the_published_example_has_the_published_bytes() {
        let value = json!({"sku": "880004", "qty": 12, "supplier": "SUP-7"});
        let bytes = to_vec(&value).unwrap();
        assert_eq!(bytes, br#"{"qty":12,"sku":"880004","supplier":"SUP-7"}"#);
        assert_eq!(
            super::super::Hash::of(&bytes).to_string(),
            "8fb7eb21a64bdaa3d2bc2787d4c95fc7d4f36f26bab7b6eaf216a8f3b3c18192"
        );
    }

    #[test]
    fn names_are_sorted_by_utf_16_and_not_by_bytes() {
        // The example of RFC 8785, section 3.2.3.
        let value = json!({
            "\u{20ac}": "Euro Sign", "\r": "Carriage Return", "\u{fb33}": "Hebrew Letter Dalet With Dagesh",
            "1": "One", "\u{1f600}": "Emoji: Grinning Face", "\u{80}": "Control",
            "\u{f6}": "Latin Small Letter O With Diaeresis"
        });
        let written = text(&value);
        let order = [
            "Carriage", "One", "Control", "Latin", "Euro", "Emoji", "Hebrew",
        ];
        let places: Vec<usize> = order
            .iter()
            .map(|name| written.find(name).unwrap())
            .collect();
        assert!(places.is_sorted(), "{written}");
    }

    #[test]
    fn texts_have_the_fewest_escapes() {
        let value = json!("\u{8}\t\n\u{c}\r\"\\/\u{0}\u{1f}\u{7f}\u{2028}€库😀");
        assert_eq!(
            text(&value),
            "\"\\b\\t\\n\\f\\r\\\"\\\\/\\u0000\\u001f\u{7f}\u{2028}€库😀\""
        );
    }

    #[test]
    fn numbers_that_readers_take_for_different_ones_are_refused() {
        for (number, written) in [
            ("0", Some("0")),
            ("-1", Some("-1")),
            ("9007199254740991", Some("9007199254740991")),
            ("-9007199254740991", Some("-9007199254740991")),
            ("9007199254740992", None),
            ("-9007199254740992", None),
            ("18446744073709551616", None),
            ("1.0", None),
            ("1e2", None),
            ("-0", None),
            ("0.1", None),
        ] {
            let value = parse(number.as_bytes()).unwrap();
            let found = to_vec(&value).ok();
            assert_eq!(found.as_deref(), written.map(str::as_bytes), "{number}");
        }
    }

    #[test]
    fn numbers_of_others_may_have_a_fraction_and_are_never_rounded_to_another() {
        for (number, written) in [
            ("1.0", Some("1")),
            ("0.10", Some("0.1")),
            ("1E30", Some("1e+30")),
            ("9007199254740993", None),
        ] {
            let value = parse(number.as_bytes()).unwrap();
            let found = of_foreign(&value).ok();
            assert_eq!(found.as_deref(), written.map(str::as_bytes), "{number}");
        }
    }

    #[test]
    fn what_is_not_canonical_is_refused_by_kind() {
        let json = |text: &str| matches!(read(text.as_bytes()), Err(NotCanonical::Json(_)));
        assert!(json(r#""\ud800""#), "a lone surrogate");
        assert!(json(r#""\udc00\ud800""#), "surrogates in the wrong order");
        assert!(json("{} {}"));
        assert!(json("[1,]"));
        assert_eq!(
            read(br#"{"a":[{"b":1,"b":1}]}"#),
            Err(NotCanonical::Twice("b".into()))
        );
        assert_eq!(
            read(br#"{"a":1,"\u0061":1}"#),
            Err(NotCanonical::Twice("a".into()))
        );
        for form in [
            r#"{"b":1,"a":1}"#,
            r#"{"a": 1}"#,
            r#""\u0061""#,
            r#""\/""#,
            r#""\u001F""#,
            " 1",
        ] {
            assert_eq!(read(form.as_bytes()), Err(NotCanonical::Form), "{form}");
        }
        assert!(serde_json::from_str::<StrictValue>(r#"{"a":1,"a":2}"#).is_err());
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-(1i64 << 53) + 1..1i64 << 53).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "\\PC*|[\\x00-\\x1f\"\\\\]*|[\u{e000}-\u{10ffff}]*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_bytes_are_those_of_another_implementation_and_read_back(value in values()) {
            let bytes = to_vec(&value).unwrap();
            let theirs = serde_json_canonicalizer::to_vec(&value).unwrap();
            prop_assert_eq!(&bytes, &theirs);
            prop_assert_eq!(of_foreign(&value).unwrap(), theirs);
            prop_assert_eq!(read(&bytes).unwrap(), value);
        }

        #[test]
        fn doubles_of_others_are_written_as_another_implementation_does(value in any::<f64>()) {
            let Some(number) = Number::from_f64(value) else { return Ok(()) };
            let value = Value::Number(number);
            prop_assert_eq!(
                of_foreign(&value).unwrap(),
                serde_json_canonicalizer::to_vec(&value).unwrap()
            );
        }
    }
}
