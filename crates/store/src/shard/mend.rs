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
use crate::disk::Disk;

/// Why an index file could not be made again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unmended {
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
        segment.remake_index(disk, self.hash_seed, self.options.vfs.as_deref())
    }
}

impl Segment {
    /// Puts an index file in place that is made of the rows; the caller holds `files`.
    pub(super) fn remake_index(
        &self,
        disk: &dyn Disk,
        hash_seed: u64,
        vfs: Option<&str>,
    ) -> Result<(), Unmended> {
        let Some((_, sealed_at)) = self.span() else {
            return Ok(());
        };
        let (reader, _) = SegmentReader::open(&self.path, Some(self.identity), hash_seed, vfs)?;
        let mut recent = Recent::default();
        reader.each(|row| match row {
            // Rows above were never acknowledged.
            Ok(row) if row.stored.position.sequence.0 <= sealed_at => recent.push(&row),
            _ => {}
        })?;
        if recent.entries().len() != self.rows() {
            return Err(Unmended::Rows);
        }
        self.replace_index(disk, &recent)?;
        Ok(())
    }
}
