//! What is posted: the CloudEvents HTTP binding in binary or structured mode.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use thiserror::Error;
use wayhold_model::Event;

use super::config::WebhookMode;
use crate::sink::cloudevents::{
    STRUCTURED_CONTENT_TYPE, header_value, visit_attributes, write_structured,
};

/// An attribute that HTTP has no way to carry; the same event never will be sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("attribute {name}: expected a name and value that a header can hold")]
pub(super) struct NotAHeader {
    name: String,
}

/// Headers and body of one event. `configured` come first and are never overridden, since none of them
/// may have a name that is set here.
pub(super) fn request_of(
    event: &Event,
    mode: WebhookMode,
    configured: &HeaderMap,
) -> Result<(HeaderMap, Bytes), NotAHeader> {
    let mut headers = configured.clone();
    match mode {
        WebhookMode::Binary => {
            set_attributes(event, &mut headers)?;
            if wayhold_store::planted!("body-written-anew") {
                let data: serde_json::Value =
                    serde_json::from_slice(event.data()).unwrap_or_default();
                return Ok((headers, data.to_string().into()));
            }
            Ok((headers, event.data().clone()))
        }
        WebhookMode::Structured => {
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static(STRUCTURED_CONTENT_TYPE),
            );
            let mut body = Vec::with_capacity(event.size() + event.data().len() / 2 + 256);
            write_structured(event, &mut body);
            Ok((headers, body.into()))
        }
    }
}

fn set_attributes(event: &Event, headers: &mut HeaderMap) -> Result<(), NotAHeader> {
    let mut failed = None;
    visit_attributes(event, |name, text| {
        let value = HeaderValue::from_str(&header_value(text));
        match (HeaderName::try_from(format!("ce-{name}")), value) {
            (Ok(header), Ok(value)) => {
                headers.insert(header, value);
            }
            (Err(_), _) | (_, Err(_)) => failed = Some(name.to_owned()),
        }
    });
    if let Some(name) = failed {
        return Err(NotAHeader { name });
    }
    if !event.content_type().is_empty() {
        // Not percent-encoded: the binding lets datacontenttype stand as it is.
        let value =
            HeaderValue::from_bytes(event.content_type().as_bytes()).map_err(|_| NotAHeader {
                name: "datacontenttype".to_owned(),
            })?;
        headers.insert(CONTENT_TYPE, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use wayhold_model::EventParts;

    use super::*;

    fn event() -> Event {
        Event::new(&EventParts {
            id: "C234-1234-1234",
            source: "/mycontext",
            kind: "com.example.someevent",
            subject: "Euro € 😀",
            time: "2018-04-05T17:31:00Z",
            key: "secret order",
            content_type: "application/json",
            extensions: r#"{"comexampleother":5,"flag":true,"note":"100% \"q\""}"#,
            data: Bytes::from_static(b"{\"a\": \"abc\"}"),
            ..EventParts::default()
        })
        .unwrap()
    }

    #[test]
    fn binary_mode_puts_every_attribute_into_a_header_and_leaves_the_data_alone() {
        let (headers, body) = request_of(&event(), WebhookMode::Binary, &HeaderMap::new()).unwrap();
        let mut seen: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        seen.sort();
        assert_eq!(
            seen,
            [
                "ce-comexampleother: 5",
                "ce-flag: true",
                "ce-id: C234-1234-1234",
                "ce-note: 100%25%20%22q%22",
                "ce-source: /mycontext",
                "ce-specversion: 1.0",
                "ce-subject: Euro%20%E2%82%AC%20%F0%9F%98%80",
                "ce-time: 2018-04-05T17:31:00Z",
                "ce-type: com.example.someevent",
                "content-type: application/json",
            ]
        );
        assert_eq!(body, event().data());
    }

    #[test]
    fn structured_mode_posts_one_json_object() {
        let mut configured = HeaderMap::new();
        configured.insert("x-tenant", HeaderValue::from_static("7"));
        let (headers, body) = request_of(&event(), WebhookMode::Structured, &configured).unwrap();
        assert_eq!(headers["content-type"], STRUCTURED_CONTENT_TYPE);
        assert_eq!(
            (headers.len(), &headers["x-tenant"]),
            (2, &HeaderValue::from_static("7"))
        );
        let parsed: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(parsed["subject"], "Euro € 😀");
        assert_eq!(parsed["data"]["a"], "abc");
    }
}
