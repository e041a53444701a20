//! What a producer is told when it gives two different events one id: in what they differ, and the
//! beginnings of both digests, so that its logs can be searched. Never the data itself.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use wayhold_model::Event;

/// How the event that was sent differs from the one that was stored under its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The attributes that differ, by their CloudEvents names (and `key`, `data`).
    pub fields: Vec<&'static str>,
    /// First 8 hexadecimal digits of the SHA-256 of the data that was sent.
    pub sent: String,
    /// The same of the data that was stored.
    pub stored: String,
}

impl Difference {
    /// Compares what fingerprints cover.
    pub(super) fn between(sent: &Event, stored: &Event) -> Self {
        let compared = [
            ("type", sent.kind() != stored.kind()),
            ("subject", sent.subject() != stored.subject()),
            ("key", sent.key() != stored.key()),
            (
                "datacontenttype",
                sent.content_type() != stored.content_type(),
            ),
            ("dataschema", sent.dataschema() != stored.dataschema()),
            ("data", sent.data() != stored.data()),
        ];
        let differing = compared.into_iter().filter(|(_, differs)| *differs);
        Self {
            fields: differing.map(|(name, _)| name).collect(),
            sent: short_digest(sent.data()),
            stored: short_digest(stored.data()),
        }
    }
}

fn short_digest(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .take(4)
        .fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _infallible = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use wayhold_model::EventParts;

    use super::*;

    #[test]
    fn it_names_what_differs_and_the_digests_of_the_data() {
        let event = |subject, data: &'static [u8]| {
            let parts = EventParts {
                id: "1",
                source: "/s",
                kind: "t",
                subject,
                ..Default::default()
            };
            Event::new(&EventParts {
                data: data.into(),
                ..parts
            })
            .unwrap()
        };
        let difference = Difference::between(&event("a", b""), &event("b", b"abc"));
        assert_eq!(difference.fields, ["subject", "data"]);
        assert_eq!(
            (&*difference.sent, &*difference.stored),
            ("e3b0c442", "ba7816bf")
        );
    }
}
