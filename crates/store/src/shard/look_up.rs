//! Finding events of a shard again, by identity and by place; of those that are resolved and gone, what
//! the index files still remember.

use std::sync::Arc;

use wayhold_model::Timestamp;

use super::core::{Held, Shard};
use super::index_file::IndexError;
use super::segment::Segment;
use crate::error::ReadError;
use crate::figures::Found;

impl Shard {
    /// The newest event of an identity, also beyond the window; may read the disk.
    pub(crate) fn find(&self, id_hash: u128) -> Result<Option<Found>, ReadError> {
        if let Some(known) = self.confirm(id_hash, &self.window.candidates(id_hash))? {
            return self.found(known.sequence);
        }
        // Beyond the window, and for ids that were made here: every index is asked, newest first.
        for segment in self.known().iter().rev() {
            // A damaged index is named in health; the others still answer.
            if let Ok(Some(found)) = segment.find(self.disk.as_ref(), id_hash) {
                return self.found(found.sequence);
            }
        }
        Ok(None)
    }

    /// The event at a sequence; may read the disk.
    pub(crate) fn found(&self, sequence: u64) -> Result<Option<Found>, ReadError> {
        let Some((segment, held)) = self.segment_of(sequence) else {
            return Ok(None);
        };
        let disk = self.disk.as_ref();
        let known = segment
            .identity_at(disk, sequence)
            .map_err(|error| unreadable(&segment, &error))?;
        let Some(known) = known else {
            return Ok(None);
        };
        let destinations = segment
            .destinations_of(disk, sequence)
            .map_err(|error| unreadable(&segment, &error))?;
        let event = match held {
            Held::Whole => self.event(sequence)?,
            Held::IndexOnly => None,
        };
        Ok(Some(Found {
            position: self.position(sequence),
            accepted_at: Timestamp::from_micros(known.accepted_at),
            destinations: Arc::new(destinations),
            event,
        }))
    }
}

fn unreadable(segment: &Segment, error: &IndexError) -> ReadError {
    ReadError::Failed {
        file: segment.index_path.display().to_string(),
        reason: error.to_string(),
    }
}
