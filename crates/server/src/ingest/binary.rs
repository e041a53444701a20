//! CloudEvents' binary mode over HTTP: attributes as `ce-` headers, the body is the data.

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use percent_encoding::percent_decode;
use wayhold_model::event::is_json;

use super::Refusal;
use super::attribute::Value;
use super::draft::Draft;
use super::envelope::{self, Reading};

/// Prefix of the headers that carry attributes; HTTP servers see names in lower case.
const PREFIX: &str = "ce-";

/// Reads the event; JSON data is checked, since a sink could no longer refuse it.
pub(crate) fn read<'a>(
    headers: &'a HeaderMap,
    body: Bytes,
    reading: Reading,
) -> Result<Draft<'a>, Refusal> {
    let mut draft = Draft::default();
    each_attribute(headers, |name, value| {
        if name == "datacontenttype" {
            return Err(Refusal::request(
                "ce-datacontenttype",
                "Content-Type in its place",
            ));
        }
        draft.set(name.into(), Value::Text(value), reading.mode)
    })?;
    draft.require_cloudevent()?;
    if let Some(content_type) = content_type(headers)? {
        draft.content_type = content_type.into();
        if is_json(content_type) && !body.is_empty() {
            envelope::check_data(&body, reading.depth_max)?;
        }
    }
    draft.data = body;
    Ok(draft)
}

/// Hands on each `ce-` header's attribute name and decoded value.
pub(crate) fn each_attribute<'a>(
    headers: &'a HeaderMap,
    mut each: impl FnMut(&'a str, Cow<'a, str>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    for (header, value) in headers {
        if let Some(name) = header.as_str().strip_prefix(PREFIX) {
            let value = decoded(value.as_bytes())
                .map_err(|expected| Refusal::request(header.as_str(), expected))?;
            each(name, value)?;
        }
    }
    Ok(())
}

/// The one `Content-Type` of a request, where it has one.
pub(crate) fn content_type(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let refused = || Refusal::request("content-type", "one media type in ASCII");
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let value = value.to_str().map_err(|_not_ascii| refused())?.trim();
    if values.next().is_some() {
        return Err(refused());
    }
    Ok(Some(value).filter(|value| !value.is_empty()))
}

/// A header value as CloudEvents encodes it: the quotes of a quoted string are taken off first, then
/// percent-escapes are decoded, once.
fn decoded(value: &[u8]) -> Result<Cow<'_, str>, &'static str> {
    let unquoted = match value {
        [b'"', inner @ .., b'"'] => unquoted(inner)?,
        [b'"', ..] => return Err("a closing quote"),
        plain => Cow::Borrowed(plain),
    };
    if !escapes_are_whole(&unquoted) {
        return Err("two hexadecimal digits after each percent sign");
    }
    let not_utf8 = "percent-encoded UTF-8";
    match unquoted {
        Cow::Borrowed(bytes) => percent_decode(bytes)
            .decode_utf8()
            .map_err(|_invalid| not_utf8),
        Cow::Owned(bytes) => {
            let text = percent_decode(&bytes)
                .decode_utf8()
                .map_err(|_invalid| not_utf8)?;
            Ok(Cow::Owned(text.into_owned()))
        }
    }
}

/// The characters of a quoted string (RFC 9110, 5.6.4), without the backslashes.
fn unquoted(inner: &[u8]) -> Result<Cow<'_, [u8]>, &'static str> {
    if !inner.iter().any(|byte| matches!(byte, b'\\' | b'"')) {
        return Ok(Cow::Borrowed(inner));
    }
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.iter();
    while let Some(&byte) = rest.next() {
        bytes.push(match byte {
            b'"' => return Err("a backslash before a quote inside quotes"),
            b'\\' => *rest.next().ok_or("a character after the backslash")?,
            other => other,
        });
    }
    Ok(Cow::Owned(bytes))
}

fn escapes_are_whole(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .enumerate()
        .filter(|&(_, &byte)| byte == b'%')
        .all(|(at, _)| {
            bytes
                .get(at + 1..at + 3)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_decode_once_after_their_quotes() {
        for (wire, text) in [
            ("plain", "plain"),
            ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
            ("a%20b", "a b"),
            ("100%25", "100%"),
            ("%2520", "%20"),
            ("%22q%22", "\"q\""),
            (r#""a b""#, "a b"),
            (r#""a \"b\" %25\\""#, r#"a "b" %\"#),
            ("with space", "with space"),
            ("Zürich", "Zürich"),
        ] {
            assert_eq!(decoded(wire.as_bytes()).as_deref(), Ok(text), "{wire}");
        }
    }

    #[test]
    fn broken_encodings_are_refused() {
        for wire in [
            b"%".as_slice(),
            b"100%",
            b"%2",
            b"%zz",
            b"%C0%80",
            b"%E0%80%AF",
            b"%FF",
            b"%ED%A0%80",
            b"Z\xfcrich",
            b"\"open",
            b"\"a\"b\"",
            b"\"a\\\"",
        ] {
            assert!(decoded(wire).is_err(), "{}", wire.escape_ascii());
        }
    }
}
