//! JSON pointers (RFC 6901) read from JSON text without building a document: everything off the path is
//! skipped, so the cost is one pass and the memory is the value's own.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize as _;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Most steps of a pointer; nesting beyond is not read.
const STEPS_MAX: usize = 32;

/// A path into JSON data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    steps: Box<[Box<str>]>,
}

impl Pointer {
    /// Reads `/a/b/0`, or the empty text for the whole document; `None` when it is no pointer.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self {
                steps: Box::default(),
            });
        }
        let steps: Option<Vec<_>> = text.strip_prefix('/')?.split('/').map(unescape).collect();
        let steps = steps.filter(|steps| steps.len() <= STEPS_MAX)?;
        Some(Self {
            steps: steps.into(),
        })
    }

    /// The scalar it points to in `json`, as text: a string's content, a boolean, a number in its
    /// shortest form, so that `1.0` and `1` are one key. `None` for null, objects, arrays, nothing, and
    /// for text that is not JSON. Where a name appears twice in an object the last one counts.
    pub fn text_in(&self, json: &[u8]) -> Option<String> {
        let raw = self.raw_in(json)?;
        match raw.bytes().next()? {
            b'"' => serde_json::from_str(raw).ok(),
            b't' | b'f' => Some(raw.to_owned()),
            b'-' | b'0'..=b'9' => shortest(raw),
            _ => None,
        }
    }

    /// The value it points to in `json`, byte for byte as it stands there, without the blanks around
    /// it. `None` for nothing, and for text that is not JSON. Of a name that appears twice in an object
    /// the last one counts.
    pub fn raw_in<'j>(&self, json: &'j [u8]) -> Option<&'j str> {
        let mut json = serde_json::Deserializer::from_slice(json);
        let walk = Walk { steps: &self.steps };
        walk.deserialize(&mut json)
            .ok()
            .flatten()
            .map(RawValue::get)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            write!(f, "/{}", step.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

/// `~1` is `/` and `~0` is `~`; any other tilde is an error.
fn unescape(step: &str) -> Option<Box<str>> {
    let escaped = step
        .split('~')
        .skip(1)
        .all(|after| after.starts_with(['0', '1']));
    escaped.then(|| step.replace("~1", "/").replace("~0", "~").into())
}

/// A JSON number without what does not change it; `None` where no 64 bits hold it.
fn shortest(number: &str) -> Option<String> {
    let unsigned = serde_json::from_str::<u64>(number).map(|value| value.to_string());
    let signed =
        unsigned.or_else(|_| serde_json::from_str(number).map(|value: i64| value.to_string()));
    let real = signed.or_else(|_| serde_json::from_str(number).map(|value: f64| value.to_string()));
    real.ok()
}

#[derive(Clone, Copy, Debug)]
struct Walk<'a> {
    steps: &'a [Box<str>],
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        if self.steps.is_empty() {
            <&RawValue>::deserialize(json).map(Some)
        } else {
            json.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            match self.steps.split_first() {
                Some((step, rest)) if **step == *name => {
                    found = map.next_value_seed(Walk { steps: rest })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        if let Some((step, rest)) = self.steps.split_first()
            && let Some(index) = array_index(step)
        {
            for _ in 0..index {
                if seq.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(None);
                }
            }
            found = seq.next_element_seed(Walk { steps: rest })?.flatten();
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

/// An array index as RFC 6901 writes it: digits without leading zeros.
fn array_index(step: &str) -> Option<usize> {
    let digits = step.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = step == "0" || !step.starts_with('0');
    (digits && canonical).then(|| step.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_the_rfc_and_their_like() {
        let json = br#"{"foo":["bar","baz"],"":0,"a/b":1,"m~n":8,"k\"l":6,"u":"\u00fc",
            "big":12345678901234567890,"real":1.50,"whole":1.0,"zero":-0,"twice":1,"twice":2}"#;
        for (pointer, expected) in [
            ("/foo/0", Some("bar")),
            ("/foo/1", Some("baz")),
            ("/foo/2", None),
            ("/foo/01", None),
            ("/foo/-", None),
            ("/foo", None),
            ("/", Some("0")),
            ("/a~1b", Some("1")),
            ("/m~0n", Some("8")),
            ("/k\"l", Some("6")),
            ("/u", Some("\u{fc}")),
            ("/big", Some("12345678901234567890")),
            ("/real", Some("1.5")),
            ("/whole", Some("1")),
            ("/zero", Some("-0")),
            ("/twice", Some("2")),
            ("/foo/0/deeper", None),
            ("", None),
        ] {
            let found = Pointer::parse(pointer).unwrap().text_in(json);
            assert_eq!(found.as_deref(), expected, "{pointer}");
        }
    }

    #[test]
    fn a_value_comes_byte_for_byte_as_it_stands() {
        let json =
            br#" {"a" : { "b":[1.50, "x\u00fc" , null, 12345678901234567890.10] } , "t":true} "#;
        for (pointer, expected) in [
            ("/a/b/0", Some("1.50")),
            ("/a/b/1", Some(r#""x\u00fc""#)),
            ("/a/b/2", Some("null")),
            ("/a/b/3", Some("12345678901234567890.10")),
            (
                "/a",
                Some(r#"{ "b":[1.50, "x\u00fc" , null, 12345678901234567890.10] }"#),
            ),
            ("/t", Some("true")),
            ("/t/x", None),
            ("/a/b/4", None),
            ("/absent", None),
        ] {
            let pointer = Pointer::parse(pointer).unwrap();
            assert_eq!(pointer.raw_in(json), expected, "{pointer}");
        }
        let whole = Pointer::parse("").unwrap();
        assert_eq!(whole.raw_in(b" [1, 2] "), Some("[1, 2]"));
    }

    #[test]
    fn a_pointer_is_shown_as_it_was_written() {
        for text in ["", "/", "/a~1b/m~0n/0"] {
            assert_eq!(Pointer::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn hostile_json_has_no_value_and_does_no_harm() {
        let pointer = Pointer::parse("/a").unwrap();
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        for json in ["", "{", "{\"a\":", "{\"a\":1e999}", "\u{0}", deep.as_str()] {
            assert_eq!(pointer.text_in(json.as_bytes()), None);
        }
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        for text in ["a", "/a~", "/a~2", &"/a".repeat(33)] {
            assert_eq!(Pointer::parse(text), None, "{text}");
        }
    }
}
