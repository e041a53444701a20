//! Makes the damaged index file of a sealed segment again from the segment's rows, while the store runs.
//! What an index says follows from its rows, so nothing is lost; until then whoever needs it would ask
//! again for ever, with everything behind it. A crash leaves the damaged file or the new one.

use std::sync::PoisonError;

use super::core::Shard;
use super::index_file::IndexError;
use super::recent::Recent;
use super::segment::Segment;
use super::segment_file::{SegmentError, SegmentReader};
use crate::connection::ConnectionError;

/// Why an index file could not be made again.
#[derive(Debug, thiserror::Error)]
enum Unmended {
    #[error(transparent)]
    Segment(#[from] SegmentError),
    #[error("some of its rows are damaged as well")]
    Rows,
    #[error("it cannot be written: {0}")]
    Write(#[from] std::io::Error),
}

impl From<rusqlite::Error> for Unmended {
    fn from(error: rusqlite::Error) -> Self {
        Self::Segment(ConnectionError::from(error).into())
    }
}

impl Shard {
    /// After reading an index file failed with `error`: whether it may be read again now.
    pub(crate) fn mend_index(&self, segment: &Segment, error: &IndexError) -> bool {
        if !matches!(error, IndexError::Damaged(_)) || segment.is_dropped() {
            return false;
        }
        let name = segment.index_path.display();
        match self.remake_index(segment) {
            Ok(()) => {
                self.condition.degraded(format!(
                    "{name} {error}; it was made again from its segment"
                ));
                true
            }
            Err(cause) => {
                self.condition
                    .degraded(format!("{name} {error}; it cannot be made again: {cause}"));
                false
            }
        }
    }

    fn remake_index(&self, segment: &Segment) -> Result<(), Unmended> {
        let _changing = segment.files.lock().unwrap_or_else(PoisonError::into_inner);
        let disk = self.disk.as_ref();
        // Another lane may have been here first.
        if segment.load(disk).is_ok() {
            return Ok(());
        }
        let Some((_, sealed_at)) = segment.span() else {
            return Ok(());
        };
        let (reader, _) = SegmentReader::open(
            &segment.path,
            Some(segment.identity),
            self.hash_seed,
            self.options.vfs.as_deref(),
        )?;
        let mut recent = Recent::default();
        reader.each(|row| match row {
            // Rows above were never acknowledged.
            Ok(row) if row.stored.position.sequence.0 <= sealed_at => recent.push(&row),
            _ => {}
        })?;
        if recent.entries().len() != segment.rows() {
            return Err(Unmended::Rows);
        }
        segment.replace_index(disk, &recent)?;
        Ok(())
    }
}
