//! What is sent: a batch in the CloudEvents batch format, every event as it was accepted here, and the receipts
//! that must come back for it.

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use reqwest::{Method, Request};
use serde::Deserialize;
use url::Url;
use wayhold_model::Event;

use crate::sink::cloudevents::{BATCH_CONTENT_TYPE, write_with_key};

/// What JSON adds to an event beside its own bytes, at least: names and quotes of its attributes.
const FRAME_BYTES: usize = 200;

/// Bytes that an event takes in a batch, about: data may be base64 there, and then is a third longer.
pub(super) fn weight(event: &Event) -> usize {
    event.size() + event.data().len() / 3 + FRAME_BYTES
}

/// The body for these events.
pub(super) fn body_of<'e>(events: impl Iterator<Item = &'e Event> + Clone) -> Bytes {
    let bytes: usize = events.clone().map(weight).sum();
    let mut body = Vec::with_capacity(bytes + 2);
    body.push(b'[');
    for (index, event) in events.enumerate() {
        if index > 0 {
            body.push(b',');
        }
        write_with_key(event, &mut body);
    }
    body.push(b']');
    body.into()
}

/// The request that brings a body.
pub(super) fn request_of(events_url: &Url, body: Bytes) -> Request {
    let mut request = Request::new(Method::POST, events_url.clone());
    let content_type = HeaderValue::from_static(BATCH_CONTENT_TYPE);
    request.headers_mut().insert(CONTENT_TYPE, content_type);
    *request.body_mut() = Some(body.into());
    request
}

/// Most bytes of the answer to this event: its identity, each character perhaps escaped, and its position.
pub(super) fn receipt_bytes_max(event: &Event) -> usize {
    const AROUND: usize = 200;
    const ESCAPED: usize = 6;
    (event.id().len() + event.source().len()) * ESCAPED + AROUND
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    receipts: Vec<Receipt<'a>>,
}

#[derive(Deserialize)]
struct Receipt<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    source: Cow<'a, str>,
}

/// Whether an answer holds one receipt for each of these events, in their order.
pub(super) fn confirms<'e>(
    answer: &[u8],
    events: impl ExactSizeIterator<Item = &'e Event>,
) -> bool {
    let Ok(Answer { receipts }) = serde_json::from_slice(answer) else {
        return false;
    };
    let is_for = |(receipt, event): (Receipt<'_>, &Event)| {
        receipt.id == event.id() && receipt.source == event.source()
    };
    receipts.len() == events.len() && receipts.into_iter().zip(events).all(is_for)
}

#[cfg(test)]
mod tests {
    use wayhold_model::EventParts;

    use super::*;

    fn event(id: &str) -> Event {
        Event::new(&EventParts {
            id,
            source: "/\"s\"",
            kind: "t",
            ..EventParts::default()
        })
        .unwrap()
    }

    #[test]
    fn only_receipts_for_every_event_in_order_confirm_a_batch() {
        let events = [event("1"), event("2 \u{e9}")];
        let receipt = |id: &str| {
            format!(r#"{{"id":"{id}","source":"/\"s\"","position":"g1.s0.1","duplicate":false}}"#)
        };
        let (one, two) = (receipt("1"), receipt("2 \\u00e9"));
        for (answer, expected) in [
            (format!(r#"{{"receipts":[{one},{two}]}}"#), true),
            (format!(r#"{{"receipts":[{two},{one}]}}"#), false),
            (format!(r#"{{"receipts":[{one}]}}"#), false),
            (format!(r#"{{"receipts":[{one},{two},{two}]}}"#), false),
            (r#"{"receipts":[]}"#.to_owned(), false),
            ("<html>welcome</html>".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(
                confirms(answer.as_bytes(), events.iter()),
                expected,
                "{answer}"
            );
            let most: usize = events.iter().map(receipt_bytes_max).sum();
            assert!(!expected || answer.len() <= most);
        }
    }
}
