//! An index file against the index in memory that it was written from, and against damage.

use super::*;
use crate::disk::SystemDisk;
use crate::shard::row::Row;
use wayhold_model::{
    DestinationSet, Event, EventParts, Generation, Position, Sequence, ShardId, StoredEvent,
    Timestamp,
};

const IDENTITY: Identity = Identity {
    generation: 1,
    shard: 0,
    number: 7,
    uuid: 0xabc << 70 | 5,
    covers: None,
};

fn recent(count: u64) -> Recent {
    let mut recent = Recent::default();
    for at in 0..count {
        let parts = EventParts {
            id: "1",
            source: "/s",
            kind: "t",
            ..EventParts::default()
        };
        let destinations = if at % 3 == 0 { vec![1, 9] } else { vec![9] };
        recent.push(&Row {
            stored: Arc::new(StoredEvent {
                position: Position {
                    generation: Generation(1),
                    shard: ShardId(0),
                    sequence: Sequence(100 + at * 2),
                },
                accepted_at: Timestamp::from_micros(5_000 + at),
                destinations: Arc::new(DestinationSet::new(
                    destinations.into_iter().map(DestinationId),
                )),
                key_hash: (at % 2 == 0).then_some(at % 4),
                event: Arc::new(Event::new(&parts).unwrap()),
            }),
            id_hash: u128::from(at) << 64 | 77,
            fingerprint: (at % 5 != 0).then_some(at + 1),
        });
    }
    recent
}

#[test]
fn an_index_file_answers_what_the_memory_index_answered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("7.idx");
    let recent = recent(50);
    IndexFile::write(&SystemDisk, &path, IDENTITY, &recent).unwrap();
    let file = IndexFile::open(&SystemDisk, &path).unwrap();
    let loaded = file.load(&SystemDisk).unwrap();
    assert_eq!(
        (file.identity, file.first, file.last, file.rows),
        (IDENTITY, 100, 198, 50)
    );
    assert_eq!(&file.counts, recent.counts());
    for after in [0, 99, 100, 101, 150, 197, 198, 500] {
        for destination in [1, 9, 4].map(DestinationId) {
            assert!(
                loaded
                    .lane_after(destination, after)
                    .eq(recent.lane_after(destination, after))
            );
        }
        for key in 0..5 {
            assert!(
                loaded
                    .key_after(key, after, 160)
                    .eq(recent.key_after(key, after, 160)),
                "{key} {after}"
            );
        }
    }
    for entry in recent.entries() {
        assert_eq!(
            loaded.identity_at(entry.sequence),
            Some(Identified::from(entry))
        );
        assert_eq!(
            file.find(&SystemDisk, entry.id_hash).unwrap(),
            Some(Identified::from(entry))
        );
        assert_eq!(recent.find(entry.id_hash), Some(entry));
        assert_eq!(loaded.destinations_of(entry.sequence), *entry.destinations);
    }
    assert_eq!(loaded.identity_at(101), None);
    assert_eq!(file.find(&SystemDisk, 1).unwrap(), None);
    let mut ids: Vec<(u128, usize)> = file.ids(&SystemDisk).unwrap().rows().collect();
    assert!(ids.is_sorted());
    ids.sort_unstable_by_key(|(_, row)| *row);
    let expected = recent.entries().iter().map(|entry| entry.id_hash);
    assert!(ids.into_iter().eq(expected.zip(0..)));
}

#[test]
fn every_flipped_byte_and_every_cut_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("7.idx");
    IndexFile::write(&SystemDisk, &path, IDENTITY, &recent(8)).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for offset in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[offset] ^= 1;
        assert!(decode(&damaged).is_err(), "byte {offset}");
        assert!(decode(&whole[..offset]).is_err(), "cut at {offset}");
    }
}

/// Whoever looks an id up reads a few rows: only what was held against its checksum may be believed.
#[test]
fn a_flipped_byte_of_ids_or_rows_is_found_before_anything_is_read_from_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("7.idx");
    let recent = recent(50);
    let written = IndexFile::write(&SystemDisk, &path, IDENTITY, &recent).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for section in [IDS, ROWS] {
        let at = usize::try_from(written.offset(section)).unwrap();
        let (length, _) = written.sections[section];
        for offset in at..at + length {
            let mut damaged = whole.clone();
            damaged[offset] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            let file = IndexFile::open(&SystemDisk, &path).unwrap();
            for entry in recent.entries().iter().step_by(17) {
                assert!(matches!(
                    file.find(&SystemDisk, entry.id_hash),
                    Err(IndexError::Damaged(_))
                ));
            }
        }
    }
}

#[test]
fn a_file_of_an_older_format_is_told_from_a_damaged_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("7.idx");
    IndexFile::write(&SystemDisk, &path, IDENTITY, &recent(8)).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    for (format, expected) in [(PLAIN - 1, true), (FORMAT + 1, false)] {
        bytes[8..12].copy_from_slice(&format.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        let error = IndexFile::open(&SystemDisk, &path).unwrap_err();
        assert_eq!(matches!(error, IndexError::Older(_)), expected, "{error}");
        assert_eq!(matches!(error, IndexError::Newer(_)), !expected, "{error}");
    }
}

#[test]
fn a_file_of_a_compacted_segment_says_what_it_covers_and_knows_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("7.idx");
    let recent = recent(40);
    let identity = Identity {
        covers: Some((3, 900)),
        ..IDENTITY
    };
    IndexFile::write(&SystemDisk, &path, identity, &recent).unwrap();
    let file = IndexFile::open(&SystemDisk, &path).unwrap();
    assert_eq!((file.first, file.last, file.rows), (3, 900, 40));
    assert_eq!(file.identity, identity);
    assert!(file.says(&recent));
    let entries = recent.entries();
    for sequence in 0..=1_000 {
        let is_held = entries.iter().any(|entry| entry.sequence == sequence);
        assert_eq!(file.holds(&SystemDisk, sequence).unwrap(), is_held);
    }
    let first = file.first_row(&SystemDisk).unwrap().unwrap();
    assert_eq!(first, Identified::from(&entries[0]));
    let loaded = file.load(&SystemDisk).unwrap();
    for entry in entries {
        let found = file.find(&SystemDisk, entry.id_hash).unwrap();
        assert_eq!(found, Some(Identified::from(entry)));
        assert_eq!(loaded.identity_at(entry.sequence), found);
    }
}
