//! A URL with places in its path and query. Scheme, host and port are fixed, so that a destination is one
//! receiver, whatever its events hold.

use thiserror::Error;
use url::Url;

use super::scan::{Fault, Piece, scan};
use super::text::{Text, in_url};
use super::values::{Missing, Values};

/// Longest URL as configured and as made, in bytes: common receivers refuse longer ones.
pub(super) const URL_BYTES_MAX: usize = 8 * 1024;

/// A template of URLs at one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UrlTemplate {
    base: Url,
    path: Text,
    query: Option<Text>,
}

/// An event for which no URL can be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum NoUrl {
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error("expected a path whose segments are not \".\" or \"..\" once filled")]
    DotSegment,
    #[error("expected at most {URL_BYTES_MAX} bytes once filled")]
    TooLong,
    #[error("expected a URL once filled")]
    Invalid,
}

impl UrlTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// Everything that is wrong, with its position; no message holds the text.
    pub(super) fn parse(text: &str) -> Result<Self, Vec<String>> {
        if text.len() > URL_BYTES_MAX {
            return Err(vec![format!("expected at most {URL_BYTES_MAX} bytes")]);
        }
        let told = |faults: Vec<Fault>| {
            let faults = faults.iter().map(|fault| fault.told(text));
            faults.collect::<Vec<_>>()
        };
        let pieces = scan(text).map_err(told)?;
        let origin_end = end_of_origin(text);
        if let Some(at) = text.get(..origin_end).and_then(|origin| origin.find('{')) {
            let message = "expected scheme, host and port without places";
            return Err(told(vec![Fault { at, message }]));
        }
        let whole = Text { pieces };
        let base = Url::parse(&whole.sample())
            .map_err(|error| vec![format!("expected an http or https URL: {error}")])?;
        check(&base).map_err(|message| vec![message.to_owned()])?;
        let (path, query) = split(whole, origin_end);
        if path.sample().split(['/', '\\']).any(is_dot_segment) {
            return Err(vec![
                "expected a path without the segments \".\" and \"..\"".to_owned(),
            ]);
        }
        Ok(Self { base, path, query })
    }

    /// A URL at the same host, to know whom it is about. Its path and query are samples.
    pub(super) fn base(&self) -> &Url {
        &self.base
    }

    /// The URL for one event.
    ///
    /// # Errors
    /// Names the place that the event has nothing for, or what its value would make of the path.
    pub(super) fn render(&self, values: Values<'_>) -> Result<Url, NoUrl> {
        let mut text = self.base.origin().ascii_serialization();
        let origin = text.len();
        self.path.render(values, in_url, &mut text)?;
        let path = text.get(origin..).unwrap_or_default();
        if path.split(['/', '\\']).any(is_dot_segment) {
            return Err(NoUrl::DotSegment);
        }
        if let Some(query) = &self.query {
            text.push('?');
            query.render(values, in_url, &mut text)?;
        }
        if text.len() > URL_BYTES_MAX {
            return Err(NoUrl::TooLong);
        }
        let url = Url::parse(&text).map_err(|_| NoUrl::Invalid)?;
        // Escaping makes this certain; a request to another host must not depend on that.
        if url.origin() != self.base.origin() {
            return Err(NoUrl::Invalid);
        }
        Ok(url)
    }
}

/// Where path or query begin: after scheme, host and port.
fn end_of_origin(text: &str) -> usize {
    let host = text.find("://").map_or(0, |at| at + 3);
    let rest = text.get(host..).unwrap_or_default();
    rest.find(['/', '\\', '?', '#'])
        .map_or(text.len(), |at| host + at)
}

/// The same rules as for a webhook's URL.
fn check(url: &Url) -> Result<(), &'static str> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err("expected an http or https URL");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("expected a URL without user and password; put them into auth");
    }
    if url.fragment().is_some() {
        return Err("expected a URL without fragment");
    }
    Ok(())
}

/// Path and query of a template whose first `origin` bytes hold no place.
fn split(whole: Text, origin: usize) -> (Text, Option<Text>) {
    let (mut path, mut query) = (Text::default(), None::<Text>);
    for (index, piece) in whole.pieces.into_iter().enumerate() {
        let piece = match piece {
            Piece::Literal(text) if index == 0 => {
                Piece::Literal(text.get(origin..).unwrap_or_default().into())
            }
            piece => piece,
        };
        if let Some(query) = &mut query {
            query.pieces.push(piece);
            continue;
        }
        match piece {
            Piece::Literal(text) => match text.split_once('?') {
                Some((before, after)) => {
                    path.pieces.push(Piece::Literal(before.into()));
                    query = Some(Text {
                        pieces: vec![Piece::Literal(after.into())],
                    });
                }
                None => path.pieces.push(Piece::Literal(text)),
            },
            place @ Piece::Place(_) => path.pieces.push(place),
        }
    }
    (path, query)
}

/// Whether a URL parser would take this segment for the one it is in, or the one above.
fn is_dot_segment(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    plain == "." || plain == ".."
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use wayhold_model::{Event, EventParts};

    use super::*;

    fn event(subject: &str, text: &str) -> Event {
        let data = serde_json::json!({ "t": text, "n": 1.50 }).to_string();
        Event::new(&EventParts {
            id: "1",
            source: "/shop",
            kind: "order.created",
            subject,
            content_type: "application/json",
            data: Bytes::from(data),
            ..EventParts::default()
        })
        .unwrap()
    }

    #[test]
    fn values_stay_in_the_segment_or_the_parameter_that_they_stand_in() {
        for (template, subject, expected) in [
            (
                "https://erp.example/v1/orders/{subject}",
                "7",
                "https://erp.example/v1/orders/7",
            ),
            (
                "https://erp.example/{subject}",
                "a/../b",
                "https://erp.example/a%2F..%2Fb",
            ),
            (
                "https://erp.example/{subject}/x?q={subject}&r=1",
                "?&=#",
                "https://erp.example/%3F%26%3D%23/x?q=%3F%26%3D%23&r=1",
            ),
            (
                "https://erp.example?q={subject}",
                "ü",
                "https://erp.example/?q=%C3%BC",
            ),
            (
                "https://erp.example/a?x=%20{{}}",
                "-",
                "https://erp.example/a?x=%20{}",
            ),
            (
                "https://erp.example:8443/{/data/n}/..{subject}",
                "x",
                "https://erp.example:8443/1.5/..x",
            ),
        ] {
            let url = UrlTemplate::parse(template)
                .unwrap()
                .render(Values::of(&event(subject, "t")));
            assert_eq!(url.unwrap().as_str(), expected, "{template}");
        }
    }

    #[test]
    fn a_value_that_would_leave_its_segment_or_is_missing_makes_no_url() {
        for (template, subject, expected) in [
            ("https://a.example/{subject}/x", "..", NoUrl::DotSegment),
            ("https://a.example/x/{subject}", ".", NoUrl::DotSegment),
            ("https://a.example/.{subject}/x", ".", NoUrl::DotSegment),
            ("https://a.example/%2e{subject}", ".", NoUrl::DotSegment),
        ] {
            let made = UrlTemplate::parse(template)
                .unwrap()
                .render(Values::of(&event(subject, "t")));
            assert_eq!(made, Err(expected), "{template}");
        }
        let long = "x".repeat(URL_BYTES_MAX);
        let template = UrlTemplate::parse("https://a.example/{/data/t}").unwrap();
        assert_eq!(
            template.render(Values::of(&event("s", &long))),
            Err(NoUrl::TooLong)
        );
        for (text, told) in [
            (
                "{/data/none}",
                "expected a value for {/data/none}, but the event has none",
            ),
            (
                "{/data/t}",
                "expected a value for {/data/t}, but what the event has there is empty",
            ),
        ] {
            let template = UrlTemplate::parse(&format!("https://a.example/{text}")).unwrap();
            let made = template.render(Values::of(&event("s", "")));
            assert_eq!(made.unwrap_err().to_string(), told);
        }
    }

    #[test]
    fn what_is_no_template_of_one_host_is_told_and_never_shown() {
        for (text, expected) in [
            (
                "https://{subject}.example/hunter2",
                "character 9: expected scheme, host and port without places",
            ),
            (
                "{/data/url}",
                "character 1: expected scheme, host and port without places",
            ),
            (
                "https://a.example{/data/path}",
                "character 18: expected scheme, host and port without places",
            ),
            (
                "https://u:hunter2@a.example/",
                "expected a URL without user and password; put them into auth",
            ),
            ("ftp://a.example/hunter2", "expected an http or https URL"),
            (
                "https://a.example/#hunter2",
                "expected a URL without fragment",
            ),
            (
                "https://a.example/x/../{id}",
                "expected a path without the segments \".\" and \"..\"",
            ),
            (
                "https://a.example/x/%2E%2e/{id}",
                "expected a path without the segments \".\" and \"..\"",
            ),
            (
                "hunter2",
                "expected an http or https URL: relative URL without a base",
            ),
            (
                "https://a.example/{Hunter2}",
                "character 19: expected an attribute such as {subject}, or a JSON pointer such as {/data/order}",
            ),
        ] {
            assert_eq!(
                UrlTemplate::parse(text),
                Err(vec![expected.to_owned()]),
                "{text}"
            );
        }
    }

    proptest! {
        /// No value leaves its segment or parameter: the receiver reads exactly what the event held.
        #[test]
        fn no_value_breaks_out_of_its_place(
            subject in "[^\\p{Cc}]{1,30}|[./%?#&=:@\\\\]{1,6}",
            text in "\\PC{1,30}|[\r\n\t\0/.%?#&=\\\\]{1,8}",
        ) {
            let template = UrlTemplate::parse("https://a.example/v1/{subject}/x?q={/data/t}&r=1").unwrap();
            match template.render(Values::of(&event(&subject, &text))) {
                Err(error) => prop_assert!(error == NoUrl::DotSegment && matches!(&*subject, "." | "..")),
                Ok(url) => {
                    prop_assert_eq!(url.host_str(), Some("a.example"));
                    let segments: Vec<_> = url.path_segments().unwrap().collect();
                    prop_assert_eq!(segments.len(), 3);
                    let read = percent_encoding::percent_decode_str(segments[1]).decode_utf8().unwrap();
                    prop_assert_eq!(read, subject.as_str());
                    let pairs: Vec<_> = url.query_pairs().collect();
                    prop_assert_eq!(pairs.len(), 2);
                    prop_assert_eq!(&pairs[0].1, text.as_str());
                }
            }
        }
    }
}
