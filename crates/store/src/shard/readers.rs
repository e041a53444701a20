//! Read connections to segments, opened when a lane needs them and kept in a bounded cache.

use std::sync::{Arc, Mutex, PoisonError};

use super::row::Row;
use super::segment::{Segment, SegmentError, SegmentReader};
use crate::options::READERS_OPEN_MAX;

/// The open read connections of one shard, most recently used last.
#[derive(Default)]
pub(crate) struct Readers {
    open: Mutex<Vec<(u64, SharedReader)>>,
}

type SharedReader = Arc<Mutex<SegmentReader>>;

/// A segment's rows cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowsError {
    #[error(transparent)]
    Open(#[from] SegmentError),
    #[error(transparent)]
    Read(#[from] rusqlite::Error),
}

impl Readers {
    /// Reads these sequences of a segment, ascending, at most `bytes_max` bytes of events; `Err` in the
    /// list for a damaged or missing row.
    pub(crate) fn rows(
        &self,
        segment: &Segment,
        sequences: &[u64],
        bytes_max: usize,
        (hash_seed, vfs): (u64, Option<&str>),
    ) -> Result<Vec<Result<Row, u64>>, RowsError> {
        let reader = match self.cached(segment.number()) {
            Some(reader) => reader,
            None => {
                let (reader, _) =
                    SegmentReader::open(&segment.path, Some(segment.identity), hash_seed, vfs)?;
                self.keep(segment.number(), reader)
            }
        };
        let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = reader.rows(sequences, bytes_max)?;
        Ok(rows
            .into_iter()
            .map(|row| row.map_err(|damaged| damaged.sequence))
            .collect())
    }

    /// Closes the connection to a segment. `false` while somebody reads it: try again.
    pub(crate) fn close(&self, number: u64) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = open.iter().position(|(other, _)| *other == number) else {
            return true;
        };
        if open
            .get(at)
            .is_some_and(|(_, reader)| Arc::strong_count(reader) > 1)
        {
            return false;
        }
        open.remove(at);
        true
    }

    fn cached(&self, number: u64) -> Option<SharedReader> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let at = open.iter().position(|(other, _)| *other == number)?;
        let entry = open.remove(at);
        let reader = Arc::clone(&entry.1);
        open.push(entry);
        Some(reader)
    }

    fn keep(&self, number: u64, reader: SegmentReader) -> SharedReader {
        let reader = Arc::new(Mutex::new(reader));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= READERS_OPEN_MAX {
            open.remove(0);
        }
        open.push((number, Arc::clone(&reader)));
        reader
    }
}
