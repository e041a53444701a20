//! The id under which a receiver over HTTP knows an event again: the `webhook-id` of Standard Webhooks and
//! the value of `Idempotency-Key`.
//!
//! It follows from source and id alone, so every attempt, redrive and replay of an event has the same,
//! also after years and from another server. Ids as producers choose them would not do: two sources may
//! use the same one, and a `.` would be ambiguous in what is signed. Receivers keep these ids, so how they
//! are made is a format that does not change.

use data_encoding::BASE32;
use sha2::{Digest, Sha256};

use crate::command::SOURCE;
use crate::event::Event;

/// How many bytes of the hash are kept: 160 bits collide by chance for nobody, and 20 bytes are 32
/// characters without padding.
const HASH_BYTES: usize = 20;

/// `evt_` and, in base32 (RFC 4648 section 6, upper case), the first 20 bytes of the SHA-256 of
/// `source NUL id`.
///
/// A command's own id stays what it is: receivers, people and the ledger know it by that alone.
pub fn webhook_id(event: &Event) -> String {
    if event.source() == SOURCE {
        return event.id().to_owned();
    }
    of_identity(event.identity_bytes())
}

fn of_identity(identity: &[u8]) -> String {
    let hash = Sha256::digest(identity);
    let kept = hash.get(..HASH_BYTES).unwrap_or(&hash);
    format!("evt_{}", BASE32.encode(kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventParts;

    fn id_of(source: &'static str, id: &'static str) -> String {
        let event = Event::new(&EventParts {
            id,
            source,
            kind: "order.created",
            ..EventParts::default()
        });
        webhook_id(&event.unwrap())
    }

    /// Made with Python: `base64.b32encode(hashlib.sha256(source + b"\0" + id).digest()[:20])`.
    const VECTORS: [(&str, &str, &str); 4] = [
        ("/shop", "1", "evt_MVRYQROUPWKVSAHQ66QUBRXAWC36EWQA"),
        (
            "/mycontext",
            "C234-1234-1234",
            "evt_DKDBDEBQ2EFDHZPUM4HAKW3BAU3DPMXO",
        ),
        (
            "https://shop.example/orders",
            "order-42.created",
            "evt_UAIV2QYY57AQLOVYA3TPMYY6VMSTLPLD",
        ),
        ("/Zürich", "aß b", "evt_XPXOX7ZG2ZPGPMGYT7TRNYLP6T6UAAAF"),
    ];

    #[test]
    fn vectors_of_the_format_do_not_move() {
        for (source, id, expected) in VECTORS {
            assert_eq!(id_of(source, id), expected, "{source} {id}");
        }
    }

    #[test]
    fn it_follows_from_source_and_id_alone() {
        let of = |change: fn(&mut EventParts<'static>)| {
            let mut parts = EventParts {
                id: "1",
                source: "/shop",
                kind: "order.created",
                ..EventParts::default()
            };
            change(&mut parts);
            webhook_id(&Event::new(&parts).unwrap())
        };
        let base = of(|_| ());
        assert_eq!(base, of(|parts| parts.kind = "order.changed"));
        assert_eq!(base, of(|parts| parts.data = b"{}".as_slice().into()));
        assert_eq!(base, of(|parts| parts.time = "2026-01-01T00:00:00Z"));
        assert_ne!(base, of(|parts| parts.source = "/sho"));
        assert_ne!(base, of(|parts| parts.id = "2"));
        // The same letters, parted elsewhere.
        assert_ne!(id_of("/a", "bc"), id_of("/ab", "c"));
    }

    #[test]
    fn it_is_fit_for_a_header_and_for_what_is_signed() {
        let id = id_of("/shop/Zürich", "a.b c\"é");
        assert_eq!(id.len(), 36);
        assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
    }
}
