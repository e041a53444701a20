//! Read connections to segments, opened when a lane needs them and kept in a bounded cache.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::row::Row;
use super::segment::Segment;
use super::segment_file::{SegmentError, SegmentReader};
use crate::connection::{ConnectionError, Fault};

/// The open read connections of one shard, most recently used last.
pub(crate) struct Readers {
    open: Mutex<Vec<(u64, SharedReader)>>,
    open_max: usize,
}

pub(crate) type SharedReader = Arc<Mutex<SegmentReader>>;

/// A segment's rows cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowsError {
    #[error(transparent)]
    Open(#[from] SegmentError),
    #[error(transparent)]
    Read(#[from] rusqlite::Error),
}

impl RowsError {
    /// Whether reading again cannot help: the database is damaged, gone, or not ours.
    pub(crate) fn is_lasting(&self, path: &Path) -> bool {
        let is_corrupt = match self {
            // A database without our tables is an error of the statement to SQLite.
            Self::Open(SegmentError::Connection(ConnectionError::Sqlite(error)))
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::Unknown) =>
            {
                true
            }
            Self::Open(SegmentError::Connection(error)) => error.fault() == Fault::Corrupt,
            Self::Open(_) => true,
            Self::Read(error) => Fault::of(error) == Fault::Corrupt,
        };
        is_corrupt || matches!(path.try_exists(), Ok(false))
    }
}

impl Readers {
    /// None yet, and at most so many.
    pub(crate) fn new(open_max: usize) -> Self {
        Self {
            open: Mutex::default(),
            open_max,
        }
    }

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
            None if segment.is_dropped() => return Err(SegmentError::Dropped.into()),
            None => {
                let (reader, _) =
                    SegmentReader::open(&segment.path, Some(segment.identity), hash_seed, vfs)?;
                self.keep(segment, reader).ok_or(SegmentError::Dropped)?
            }
        };
        let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = reader.rows(sequences, bytes_max)?;
        Ok(rows
            .into_iter()
            .map(|row| row.map_err(|damaged| damaged.sequence))
            .collect())
    }

    /// Closes the connections to a dropped segment. `false` while somebody reads it: try again.
    pub(crate) fn close(&self, number: u64) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(other, reader)| *other != number || Arc::strong_count(reader) > 1);
        open.iter().all(|(other, _)| *other != number)
    }

    /// The open connection to a segment; as long as somebody has it the segment is not removed.
    pub(crate) fn cached(&self, number: u64) -> Option<SharedReader> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let at = open.iter().position(|(other, _)| *other == number)?;
        let entry = open.remove(at);
        let reader = Arc::clone(&entry.1);
        open.push(entry);
        Some(reader)
    }

    /// Shares a connection; `None` where the segment was dropped meanwhile. Whoever reads is known here until
    /// it has ended: its files are cut while they are removed, and nobody may have them then.
    fn keep(&self, segment: &Segment, reader: SegmentReader) -> Option<SharedReader> {
        let reader = Arc::new(Mutex::new(reader));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if segment.is_dropped() {
            return None;
        }
        if open.len() >= self.open_max {
            let mut readers = open.iter();
            let idle = readers.position(|(_, reader)| Arc::strong_count(reader) == 1);
            idle.map(|at| open.remove(at));
        }
        open.push((segment.number(), Arc::clone(&reader)));
        Some(reader)
    }
}
