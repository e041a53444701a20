//! Which of the five ways of writing events a request uses, decided from its headers alone.

use http::HeaderMap;

use super::{Refusal, binary};

/// A way of writing events over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// An array of events in JSON.
    Batch,
    /// One event in JSON.
    Structured,
    /// Attributes in headers, data in the body.
    Binary,
    /// A stream of events, one in each line.
    Lines,
    /// Data in the body; what else is known stands in headers and query.
    Plain,
}

/// Decides, in the order that the HTTP binding prescribes.
pub(crate) fn of(headers: &HeaderMap) -> Result<Mode, Refusal> {
    let content_type = binary::content_type(headers)?.unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if begins_with(essence, "application/cloudevents-batch") {
        let known = essence.eq_ignore_ascii_case("application/cloudevents-batch+json");
        return supported(known, content_type).map(|()| Mode::Batch);
    }
    if begins_with(essence, "application/cloudevents") {
        let known = essence.eq_ignore_ascii_case("application/cloudevents+json")
            || essence.eq_ignore_ascii_case("application/cloudevents");
        return supported(known, content_type).map(|()| Mode::Structured);
    }
    if headers.contains_key("ce-specversion") {
        return Ok(Mode::Binary);
    }
    let lines = LINES.iter().any(|name| essence.eq_ignore_ascii_case(name));
    Ok(if lines { Mode::Lines } else { Mode::Plain })
}

/// The names under which streams of JSON lines travel.
const LINES: [&str; 5] = [
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonlines",
    "application/x-jsonl",
];

fn begins_with(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// JSON is the only format of events spoken, and UTF-8 its only charset.
fn supported(known: bool, content_type: &str) -> Result<(), Refusal> {
    let utf8 = content_type.split(';').skip(1).all(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        !name.trim().eq_ignore_ascii_case("charset")
            || value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
    });
    if known && utf8 {
        return Ok(());
    }
    Err(Refusal::Unsupported {
        what: "content-type",
        expected: "CloudEvents in their JSON format, charset utf-8",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_follows_from_the_headers() {
        for (content_type, specversion, expected) in [
            (
                "application/cloudevents-batch+json",
                false,
                Some(Mode::Batch),
            ),
            (
                "Application/CloudEvents-Batch+JSON; charset=UTF-8",
                true,
                Some(Mode::Batch),
            ),
            ("application/cloudevents-batch+xml", false, None),
            (
                "application/cloudevents+json",
                false,
                Some(Mode::Structured),
            ),
            (
                "APPLICATION/CLOUDEVENTS+JSON; Charset=\"utf-8\"",
                true,
                Some(Mode::Structured),
            ),
            ("application/cloudevents", false, Some(Mode::Structured)),
            ("application/cloudevents+avro", false, None),
            ("application/cloudevents+json; charset=latin1", false, None),
            ("application/json", true, Some(Mode::Binary)),
            ("application/x-ndjson", true, Some(Mode::Binary)),
            ("", true, Some(Mode::Binary)),
            ("application/x-ndjson", false, Some(Mode::Lines)),
            ("application/jsonl; charset=utf-8", false, Some(Mode::Lines)),
            ("application/json", false, Some(Mode::Plain)),
            (
                "application/x-www-form-urlencoded",
                false,
                Some(Mode::Plain),
            ),
            ("", false, Some(Mode::Plain)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("content-type", content_type.parse().unwrap());
            if specversion {
                headers.insert("ce-specversion", "1.0".parse().unwrap());
            }
            assert_eq!(of(&headers).ok(), expected, "{content_type} {specversion}");
        }
    }
}
