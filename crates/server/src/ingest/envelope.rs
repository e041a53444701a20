//! CloudEvents' JSON format: one event as one JSON object, alone (structured mode), in an array (batch
//! mode) or on a line (NDJSON). Data is cut out as it stands and never written anew.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use wayhold_model::event::is_json;

use super::attribute::Value;
use super::draft::Draft;
use super::json::{Kind, Raw, Scanner};
use super::{Refusal, Refused, json};
use crate::config::ParseMode;

/// How a text is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) mode: ParseMode,
    /// Most levels of JSON, the envelope's own included.
    pub(crate) depth_max: usize,
}

/// What the text's data becomes.
pub(crate) trait Cut {
    /// Bytes of a slice of the text.
    fn cut(&self, slice: &str) -> Bytes;
}

/// The text is one event's: its data shares the request's memory.
pub(crate) struct Share<'a>(pub(crate) &'a Bytes);

impl Cut for Share<'_> {
    fn cut(&self, slice: &str) -> Bytes {
        self.0.slice_ref(slice.as_bytes())
    }
}

/// The text holds many events: each copies its data, so that one that waits long does not keep the
/// others' memory.
pub(crate) struct Copy;

impl Cut for Copy {
    fn cut(&self, slice: &str) -> Bytes {
        Bytes::copy_from_slice(slice.as_bytes())
    }
}

/// Reads one event that is the whole text.
pub(crate) fn read_one<'a>(
    text: &'a str,
    reading: Reading,
    cut: &impl Cut,
) -> Result<Draft<'a>, Refusal> {
    let mut scanner = Scanner::new(text, reading.depth_max);
    let draft = read(&mut scanner, reading, cut)?;
    scanner.end()?;
    Ok(draft)
}

/// Reads an array of events and hands each on with its index; the first fault ends it.
pub(crate) fn read_batch<'a>(
    text: &'a str,
    reading: Reading,
    events_max: usize,
    mut each: impl FnMut(Draft<'a>) -> Result<(), Refusal>,
) -> Result<(), Refused> {
    // The array is the transport's level, not the event's.
    let mut scanner = Scanner::new(text, reading.depth_max.saturating_add(1));
    scanner.enter(b'[', "an array of events")?;
    let mut index = 0;
    while scanner
        .advance(index == 0, b']')
        .map_err(|fault| fault.at(index))?
    {
        if index == events_max {
            let what = "the number of events in the batch";
            return Err(Refusal::TooLarge {
                what,
                limit: events_max,
            }
            .into());
        }
        read(&mut scanner, reading, &Copy)
            .and_then(&mut each)
            .map_err(|fault| fault.at(index))?;
        index += 1;
    }
    scanner.end()?;
    Ok(())
}

fn read<'a>(
    scanner: &mut Scanner<'a>,
    reading: Reading,
    cut: &impl Cut,
) -> Result<Draft<'a>, Refusal> {
    let mut draft = Draft::default();
    let mut data = None;
    let mut base64 = None;
    scanner.enter(b'{', "an event as a JSON object")?;
    let mut first = true;
    while scanner.advance(first, b'}')? {
        first = false;
        let name = scanner.name()?.unescaped()?;
        let value = scanner.value()?;
        match name.as_ref() {
            "data" => once(&mut data, "data", value)?,
            "data_base64" => once(&mut base64, "data_base64", value)?,
            _ => read_attribute(&mut draft, name, value, reading.mode)?,
        }
    }
    draft.require_cloudevent()?;
    draft.data = match (data, base64) {
        (Some(_), Some(_)) => {
            return Err(Refusal::invalid(
                "data_base64",
                "either data or data_base64",
            ));
        }
        (Some(data), None) => plain_data(&mut draft, data, cut)?,
        (None, Some(base64)) => {
            let bytes = binary_data(base64)?;
            if is_json(&draft.content_type) {
                check_data(&bytes, reading.depth_max)?;
            }
            bytes
        }
        (None, None) => Bytes::new(),
    };
    Ok(draft)
}

fn read_attribute<'a>(
    draft: &mut Draft<'a>,
    name: Cow<'a, str>,
    value: Raw<'a>,
    mode: ParseMode,
) -> Result<(), Refusal> {
    let value = match value.kind {
        Kind::String => Value::Text(value.unescaped()?),
        Kind::Number => Value::Integer(value.text.parse().map_err(|_not_32_bit| {
            Refusal::invalid(name.clone(), "a string, a boolean or an integer of 32 bits")
        })?),
        Kind::True => Value::Boolean(true),
        Kind::False => Value::Boolean(false),
        Kind::Null => return draft.set_absent(name, mode),
        Kind::Object | Kind::Array => {
            return Err(Refusal::invalid(
                name,
                "a string, a boolean or an integer of 32 bits",
            ));
        }
    };
    draft.set(name, value, mode)
}

fn once<'a>(slot: &mut Option<Raw<'a>>, name: &str, value: Raw<'a>) -> Result<(), Refusal> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::invalid(name, "the member once")),
    }
}

/// `data`: the value itself where the content is JSON (which it is unless something else is said),
/// else the text that a string holds.
fn plain_data(draft: &mut Draft<'_>, data: Raw<'_>, cut: &impl Cut) -> Result<Bytes, Refusal> {
    if draft.content_type.is_empty() {
        draft.content_type = Cow::Borrowed("application/json");
    }
    if is_json(&draft.content_type) {
        return Ok(cut.cut(data.text));
    }
    if data.kind != Kind::String {
        let expected = "a string, since datacontenttype is not JSON (or data_base64)";
        return Err(Refusal::invalid("data", expected));
    }
    Ok(match data.unescaped()? {
        Cow::Borrowed(text) => cut.cut(text),
        Cow::Owned(text) => Bytes::from(text),
    })
}

fn binary_data(base64: Raw<'_>) -> Result<Bytes, Refusal> {
    let refused = || Refusal::invalid("data_base64", "a string of padded base64");
    match base64.kind {
        Kind::Null => Ok(Bytes::new()),
        Kind::String => {
            let text = base64.unescaped()?;
            let bytes = STANDARD
                .decode(text.as_bytes())
                .map_err(|_not_base64| refused())?;
            Ok(Bytes::from(bytes))
        }
        Kind::Number | Kind::True | Kind::False | Kind::Object | Kind::Array => Err(refused()),
    }
}

/// Whether `bytes` are one JSON value that may stand as data.
pub(crate) fn check_data(bytes: &[u8], depth_max: usize) -> Result<(), Refusal> {
    json::check(json::text(bytes)?, depth_max)
}
