//! Standard Webhooks 1.0: what lets a receiver know an event again, and know that it comes from here
//! and now.
//!
//! Every request carries `webhook-id`. Where the destination has signing keys it also carries
//! `webhook-timestamp`, the time of this attempt, and `webhook-signature`, one signature by each key over
//! `id.timestamp.body`. A receiver takes a request that any key it knows has signed, so keys are changed
//! without a gap: add the new one, tell the receiver, take the old one away.

mod key;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use wayhold_model::{Event, Timestamp};

pub use key::{InvalidKey, SigningKey};

/// Most keys of one destination: the present one and the next, of both kinds, and as many to spare. Each
/// costs a signature an attempt and up to 92 bytes of a header.
pub const SIGNING_KEYS_MAX: usize = 8;

/// The id of the event, the same at every attempt.
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");

/// Unix seconds of the attempt.
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");

/// Signatures, separated by spaces.
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Adds the headers of one attempt at `now` with this body, which must be the bytes that are sent.
pub(super) fn set_headers(
    keys: &[SigningKey],
    event: &Event,
    body: &Bytes,
    now: Timestamp,
    headers: &mut HeaderMap,
) {
    let id = wayhold_model::webhook_id::webhook_id(event);
    if !keys.is_empty() {
        let timestamp = unix_seconds(now);
        let signatures = signatures(keys, &id, &timestamp, body);
        headers.insert(WEBHOOK_TIMESTAMP, visible(&timestamp));
        headers.insert(WEBHOOK_SIGNATURE, visible(&signatures));
    }
    headers.insert(WEBHOOK_ID, visible(&id));
}

/// One signature by each key over `id.timestamp.body`, in the order of the keys.
fn signatures(keys: &[SigningKey], id: &str, timestamp: &str, body: &[u8]) -> String {
    let head = format!("{id}.{timestamp}.");
    let signatures: Vec<_> = keys.iter().map(|key| key.sign(&head, body)).collect();
    signatures.join(" ")
}

fn unix_seconds(now: Timestamp) -> String {
    (now.as_micros() / 1_000_000).to_string()
}

fn visible(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("letters, digits and marks of base64 can stand in a header")
}

#[cfg(test)]
mod tests {
    use wayhold_model::EventParts;

    use super::*;

    /// Key, id, timestamp, body and signature: those that Standard Webhooks and its libraries publish.
    const VECTORS: [[&str; 5]; 3] = [
        [
            "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
            "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
            "1649367553",
            r#"{"email":"test@example.com","username":"test_user"}"#,
            "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
        ],
        [
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            r#"{"test": 2432232314}"#,
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        ],
        [
            // The bytes 0 to 31.
            "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W",
            "1674087231",
            r#"{"type":"contact.created","timestamp":"2022-11-03T20:26:10.344522Z","data":{"id":"1f81eb52-5198-4599-803e-771906343485"}}"#,
            "v1a,9WMPN5fBW9vm1uGlvFzBO4lpdfFKN4AQCSr2vrWsFuOibXSOTWlcWrPRSWk+YpmD9fAwgYREKtLcYCyZrvXFBw==",
        ],
    ];

    fn keys(texts: &[&str]) -> Vec<SigningKey> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn published_vectors_are_met() {
        for [key, id, timestamp, body, expected] in VECTORS {
            let signed = signatures(&keys(&[key]), id, timestamp, body.as_bytes());
            assert_eq!(signed, expected);
        }
    }

    #[test]
    fn every_live_key_signs_and_each_signature_stands_alone() {
        let [
            [first, id, timestamp, body, expected],
            [second, ..],
            [third, ..],
        ] = VECTORS;
        let together = signatures(
            &keys(&[first, second, third]),
            id,
            timestamp,
            body.as_bytes(),
        );
        let alone: Vec<_> = [first, second, third]
            .map(|key| signatures(&keys(&[key]), id, timestamp, body.as_bytes()))
            .to_vec();
        assert_eq!(together.split(' ').collect::<Vec<_>>(), alone);
        assert_eq!(alone[0], expected);
    }

    fn headers_at(keys: &[SigningKey], seconds: u64) -> HeaderMap {
        let event = Event::new(&EventParts {
            id: "1",
            source: "/shop",
            kind: "order.created",
            ..EventParts::default()
        });
        let now = Timestamp::from_micros(seconds * 1_000_000 + 999_999);
        let mut headers = HeaderMap::new();
        let body = Bytes::from_static(b"{}");
        set_headers(keys, &event.unwrap(), &body, now, &mut headers);
        headers
    }

    #[test]
    fn a_later_attempt_has_the_same_id_and_a_time_and_signature_of_its_own() {
        let keys = keys(&[VECTORS[0][0]]);
        let (first, second) = (
            headers_at(&keys, 1_700_000_000),
            headers_at(&keys, 1_700_000_060),
        );
        assert_eq!(first[WEBHOOK_ID], second[WEBHOOK_ID]);
        assert_eq!(first[WEBHOOK_TIMESTAMP], "1700000000");
        assert_eq!(second[WEBHOOK_TIMESTAMP], "1700000060");
        assert_ne!(first[WEBHOOK_SIGNATURE], second[WEBHOOK_SIGNATURE]);
    }

    #[test]
    fn without_keys_there_is_an_id_and_nothing_that_looks_signed() {
        let headers = headers_at(&[], 1_700_000_000);
        assert_eq!((headers.len(), headers.contains_key(WEBHOOK_ID)), (1, true));
    }

    #[test]
    fn a_change_of_any_byte_that_is_signed_changes_the_signature() {
        let [[key, id, timestamp, body, expected], _, [asymmetric, ..]] = VECTORS;
        for key in [key, asymmetric] {
            let keys = keys(&[key]);
            let right = signatures(&keys, id, timestamp, body.as_bytes());
            for (place, text) in [id, timestamp, body].into_iter().enumerate() {
                for at in 0..text.len() {
                    let mut bytes = text.as_bytes().to_vec();
                    bytes[at] ^= 1;
                    let changed = String::from_utf8(bytes).unwrap();
                    let mut parts = [id, timestamp, body];
                    parts[place] = &changed;
                    let [id, timestamp, body] = parts;
                    assert_ne!(signatures(&keys, id, timestamp, body.as_bytes()), right);
                }
            }
        }
        assert!(expected.starts_with("v1,"));
    }
}
