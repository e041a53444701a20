//! Texts with places: a URL's path and query, and headers. A value is escaped for where it stands, so
//! that it never ends the part that it is in.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};

use super::scan::Piece;
use super::values::{Missing, Values};

/// A template.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Text {
    pub(super) pieces: Vec<Piece>,
}

impl Text {
    /// Appends the text for one event, each value escaped by `escape`.
    ///
    /// # Errors
    /// Names the first place that the event has nothing for; an empty value is nothing.
    pub(super) fn render(
        &self,
        values: Values<'_>,
        escape: fn(&str) -> Cow<'_, str>,
        out: &mut String,
    ) -> Result<(), Missing> {
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => out.push_str(text),
                Piece::Place(place) => out.push_str(&escape(&values.filled(place)?)),
            }
        }
        Ok(())
    }

    /// The text with the same sample in every place, to be judged when it is configured.
    pub(super) fn sample(&self) -> String {
        let pieces = self.pieces.iter().map(|piece| match piece {
            Piece::Literal(text) => &**text,
            Piece::Place(_) => "x",
        });
        pieces.collect()
    }
}

impl fmt::Debug for Text {
    /// Its literals may be a credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[template]")
    }
}

/// What a path segment, or a name or value in a query, takes as it is: the unreserved characters of
/// RFC 3986.
const ENCODED_IN_URLS: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The percent sign too, so that two values are never one.
const ENCODED_IN_HEADERS: &AsciiSet = &CONTROLS.add(b'%');

/// A value within a URL's path or query.
pub(super) fn in_url(value: &str) -> Cow<'_, str> {
    utf8_percent_encode(value, ENCODED_IN_URLS).into()
}

/// A value within a header: what a header cannot hold, or would lose, is percent-encoded. Blanks at its ends are
/// lost on the way.
pub(super) fn in_header(value: &str) -> Cow<'_, str> {
    let inner = value.trim_matches(' ');
    if inner.len() == value.len() {
        return utf8_percent_encode(value, ENCODED_IN_HEADERS).into();
    }
    let blanks = value.len() - value.trim_start_matches(' ').len();
    let after = value.len() - inner.len() - blanks;
    let encoded = utf8_percent_encode(inner, ENCODED_IN_HEADERS);
    format!("{}{encoded}{}", "%20".repeat(blanks), "%20".repeat(after)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_for_where_they_stand() {
        for (value, url, header) in [
            ("A-1.b_c~", "A-1.b_c~", "A-1.b_c~"),
            ("a/b?c=d&e#f", "a%2Fb%3Fc%3Dd%26e%23f", "a/b?c=d&e#f"),
            ("100%", "100%25", "100%25"),
            ("a b", "a%20b", "a b"),
            (" a  ", "%20a%20%20", "%20a%20%20"),
            ("  ", "%20%20", "%20%20"),
            ("\r\nx: y", "%0D%0Ax%3A%20y", "%0D%0Ax: y"),
            ("\0\u{7f}\t", "%00%7F%09", "%00%7F%09"),
            ("Zürich", "Z%C3%BCrich", "Z%C3%BCrich"),
            ("\\..\\", "%5C..%5C", "\\..\\"),
            ("+;@:", "%2B%3B%40%3A", "+;@:"),
        ] {
            assert_eq!(in_url(value), url, "{value:?}");
            assert_eq!(in_header(value), header, "{value:?}");
        }
    }
}
