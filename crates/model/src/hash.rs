//! Hashes that reach the disk or decide order. Each is a format: its name, input and vectors stand
//! here, and changing one is a change of the store's format version.
//!
//! All are XXH3 with the seed that the catalogue drew when the data directory was made, so that
//! nobody outside can construct collisions.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed, xxh3_128_with_seed};

use crate::event::Event;

/// Identity of an event for idempotent acceptance: XXH3-128 of `source NUL id`.
pub fn id_hash(event: &Event, seed: u64) -> u128 {
    xxh3_128_with_seed(event.identity_bytes(), seed)
}

/// The same from its two parts, for look-ups.
pub fn id_hash_of(source: &str, id: &str, seed: u64) -> u128 {
    let mut bytes = Vec::with_capacity(source.len() + id.len() + 1);
    bytes.extend_from_slice(source.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(id.as_bytes());
    xxh3_128_with_seed(&bytes, seed)
}

/// What two events of one identity must share to be the same event: XXH3-64 of the data, seeded with
/// the XXH3-64 of `type NUL subject NUL key NUL content type NUL dataschema`. Time, trace context and
/// transport mode are left out on purpose: a producer that sends again may change them.
pub fn fingerprint(event: &Event, seed: u64) -> u64 {
    xxh3_64_with_seed(
        event.data(),
        xxh3_64_with_seed(event.described_bytes(), seed),
    )
}

/// Ordering key to 64 bits: XXH3-64. Two keys that collide are delivered in order of each other, which
/// costs pipelining and breaks nothing.
pub fn key_hash(key: &str, seed: u64) -> u64 {
    xxh3_64_with_seed(key.as_bytes(), seed)
}

/// Checksum of stored bytes: XXH3-64.
pub fn checksum(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// Checksum of a whole file, in pieces: XXH3-64 without a seed, as `xxhsum -H3` prints it.
#[derive(Clone, Default)]
pub struct FileChecksum(Xxh3);

impl FileChecksum {
    /// Takes the bytes that follow.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of everything that was taken.
    pub fn value(&self) -> u64 {
        self.0.digest()
    }
}

impl std::fmt::Debug for FileChecksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileChecksum").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventParts;

    #[test]
    fn a_file_has_one_checksum_however_it_is_read() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut file = FileChecksum::default();
        bytes.chunks(7).for_each(|piece| file.add(piece));
        assert_eq!(file.value(), checksum(&bytes, 0));
        assert_eq!(FileChecksum::default().value(), 0x2d06_8005_38d3_94c2);
    }

    fn event(change: impl FnOnce(&mut EventParts<'static>)) -> Event {
        let mut parts = EventParts {
            id: "1",
            source: "/shop",
            kind: "order.created",
            key: "7",
            data: b"{}".as_slice().into(),
            ..EventParts::default()
        };
        change(&mut parts);
        Event::new(&parts).unwrap()
    }

    #[test]
    fn vectors_of_the_disk_format_do_not_move() {
        let event = event(|_| ());
        assert_eq!(format!("{:032x}", id_hash(&event, 42)), VECTOR_ID);
        assert_eq!(
            format!("{:016x}", fingerprint(&event, 42)),
            VECTOR_FINGERPRINT
        );
        assert_eq!(format!("{:016x}", key_hash("7", 42)), VECTOR_KEY);
    }

    const VECTOR_ID: &str = "ce80d35afac379d5625af1fc66dbcd4e";
    const VECTOR_FINGERPRINT: &str = "44ee0cc9636315ba";
    const VECTOR_KEY: &str = "0c5f1e6f8bfcd1cb";

    #[test]
    fn identity_is_source_and_id_alone() {
        let base = event(|_| ());
        assert_eq!(id_hash(&base, 1), id_hash_of("/shop", "1", 1));
        assert_eq!(id_hash(&base, 1), id_hash(&event(|p| p.kind = "other"), 1));
        assert_ne!(
            id_hash(&base, 1),
            id_hash(&event(|p| p.source = "/other"), 1)
        );
    }

    #[test]
    fn fingerprint_covers_what_a_producer_means_and_not_how_it_was_sent() {
        let base = fingerprint(&event(|_| ()), 1);
        assert_eq!(
            base,
            fingerprint(&event(|p| p.time = "2026-01-01T00:00:00Z"), 1)
        );
        assert_eq!(
            base,
            fingerprint(&event(|p| p.extensions = r#"{"traceparent":"00-x"}"#), 1)
        );
        for changed in [
            event(|p| p.kind = "order.changed"),
            event(|p| p.subject = "s"),
            event(|p| p.key = "8"),
            event(|p| p.content_type = "application/json"),
            event(|p| p.dataschema = "https://example.com/s"),
            event(|p| p.data = b"{ }".as_slice().into()),
        ] {
            assert_ne!(base, fingerprint(&changed, 1));
        }
    }
}
