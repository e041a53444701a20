//! JSON pointers (RFC 6901) read from JSON text without building a document: everything off the path is
//! skipped, so the cost is one pass and the memory is the value's own.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

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

    /// The scalar it points to in `json`, as text: a string's content, a number or boolean as written
    /// in JSON. `None` for null, objects, arrays, nothing, and for text that is not JSON. Where a name
    /// appears twice in an object the last one counts.
    pub fn text_in(&self, json: &[u8]) -> Option<String> {
        let mut json = serde_json::Deserializer::from_slice(json);
        Walk { steps: &self.steps }
            .deserialize(&mut json)
            .ok()
            .flatten()
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

#[derive(Clone, Copy)]
struct Walk<'a> {
    steps: &'a [Box<str>],
}

impl Walk<'_> {
    fn leaf<T: ToString>(self, value: T) -> Option<String> {
        self.steps.is_empty().then(|| value.to_string())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(self.leaf(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(self.leaf(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(self.leaf(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(self.leaf(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(self.leaf(value))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
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
            "big":12345678901234567890,"real":1.5,"twice":1,"twice":2}"#;
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
            ("/twice", Some("2")),
            ("/foo/0/deeper", None),
            ("", None),
        ] {
            let found = Pointer::parse(pointer).unwrap().text_in(json);
            assert_eq!(found.as_deref(), expected, "{pointer}");
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
