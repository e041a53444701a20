//! Finding events of a shard again by place; of those that are resolved and gone, what
//! the index files still remember.

use std::sync::Arc;

use wayhold_model::Timestamp;

use super::core::{Held, Shard};
use super::index_file::IndexError;
use super::segment::Segment;
use crate::error::ReadError;
use crate::figures::Found;

impl Shard {
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

/// What an unreadable index file is to the caller.
pub(crate) fn unreadable(segment: &Segment, error: &IndexError) -> ReadError {
    ReadError::Failed {
        file: segment.index_path.display().to_string(),
        reason: error.to_string(),
    }
}
