//! Plain JSON: any JSON body becomes an event's data, and its type (and optionally id, source, key and
//! subject) come from `ce-` headers or the query, so that an event can be sent by hand.

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderMap;
use percent_encoding::percent_decode;
use uuid::Builder;
use wayhold_model::Clock;
use wayhold_model::event::is_json;

use super::attribute::{self, Value};
use super::draft::Draft;
use super::envelope::{self, Reading};
use super::{Refusal, binary};
use crate::clock::Entropy;

/// Longest `Idempotency-Key`, in bytes: the draft standard's examples are UUIDs, and databases index
/// up to this.
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// Reads the event. The id may be missing; see `make_id`.
pub(crate) fn read<'a>(
    headers: &'a HeaderMap,
    query: &'a str,
    body: Bytes,
    reading: Reading,
) -> Result<Draft<'a>, Refusal> {
    let mut draft = Draft::default();
    binary::each_attribute(headers, |name, value| match name {
        "key" => set_once(&mut draft.key, "key", value),
        _ => draft.set(name.into(), Value::Text(value), reading.mode),
    })?;
    each_parameter(query, |name, value| {
        let slot = match name.as_ref() {
            "type" => &mut draft.kind,
            "id" => &mut draft.id,
            "source" => &mut draft.source,
            "subject" => &mut draft.subject,
            "key" => &mut draft.key,
            _ => {
                let shown: String = name
                    .chars()
                    .take(40)
                    .flat_map(char::escape_default)
                    .collect();
                return Err(Refusal::request(shown, "type, id, source, subject or key"));
            }
        };
        set_once(slot, &name, value)
    })?;
    if let Some(key) = idempotency_key(headers)? {
        set_once(&mut draft.id, "Idempotency-Key", key.into())?;
    }
    draft.content_type = json_type(headers, &body, reading)?;
    draft.data = body;
    if draft.kind.is_empty() {
        return Err(Refusal::invalid(
            "type",
            "?type=... or a ce-type header for plain JSON",
        ));
    }
    Ok(draft)
}

/// A new id: a UUID version 7, so that ids made here sort by time.
pub(crate) fn make_id(clock: &dyn Clock, entropy: &dyn Entropy) -> String {
    let mut random = [0; 10];
    let words = [entropy.next(), entropy.next()];
    for (byte, source) in random
        .iter_mut()
        .zip(words.iter().flat_map(|word| word.to_le_bytes()))
    {
        *byte = source;
    }
    let millis = clock.now().as_micros() / 1000;
    Builder::from_unix_timestamp_millis(millis, &random)
        .into_uuid()
        .to_string()
}

/// Takes a value that may be given in two places, but not as two values.
fn set_once<'a>(slot: &mut Cow<'a, str>, field: &str, value: Cow<'a, str>) -> Result<(), Refusal> {
    attribute::text(field, &value)?;
    if !slot.is_empty() && *slot != value {
        return Err(Refusal::request(
            field,
            "the same value wherever it is given",
        ));
    }
    *slot = value;
    Ok(())
}

/// Hands on each parameter of a query, decoded as forms encode it.
fn each_parameter<'a>(
    query: &'a str,
    mut each: impl FnMut(Cow<'a, str>, Cow<'a, str>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        each(form_decoded(name)?, form_decoded(value)?)?;
    }
    Ok(())
}

fn form_decoded(text: &str) -> Result<Cow<'_, str>, Refusal> {
    let refused = |_invalid| Refusal::request("query", "percent-encoded UTF-8");
    if !text.contains(['+', '%']) {
        return Ok(Cow::Borrowed(text));
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode(spaced.as_bytes())
        .decode_utf8()
        .map_err(refused)?;
    Ok(Cow::Owned(decoded.into_owned()))
}

/// The value of `Idempotency-Key`, with or without the quotes that its draft standard asks for.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let refused = || {
        Refusal::request(
            "idempotency-key",
            "one value of 1 to 255 bytes in visible ASCII",
        )
    };
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let value = value.to_str().map_err(|_not_ascii| refused())?;
    let bare = value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'))
        .unwrap_or(value);
    let fits = (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&bare.len());
    if values.next().is_some() || !fits {
        return Err(refused());
    }
    Ok(Some(bare))
}

/// A body that parses as JSON is JSON, whatever a client's default type says; a JSON type that says
/// more (`application/vnd.x+json`) is kept.
fn json_type(
    headers: &HeaderMap,
    body: &[u8],
    reading: Reading,
) -> Result<Cow<'static, str>, Refusal> {
    let content_type = binary::content_type(headers)?;
    let says_json = content_type.is_none_or(is_json);
    envelope::check_data(body, reading.depth_max).map_err(|fault| match content_type {
        Some(content_type) if !says_json && !content_type.starts_with(FORM) => {
            Refusal::Unsupported {
                what: "content-type",
                expected: "JSON, NDJSON or CloudEvents (ce-specversion: 1.0 allows any type)",
            }
        }
        _ => fault,
    })?;
    Ok(match content_type.filter(|_| says_json) {
        Some(content_type) => Cow::Owned(content_type.to_owned()),
        None => Cow::Borrowed("application/json"),
    })
}

/// What curl says of a body when it is told nothing.
const FORM: &str = "application/x-www-form-urlencoded";
