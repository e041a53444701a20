//! Ending what a destination that left the configuration is still owed, by an operator's decision. The
//! deliveries are taken a few at a time from the lists of the segments, never their events; each step is
//! durable before the next, and doing it again takes what a crash has left.

use thiserror::Error;
use wayhold_model::{DestinationId, LaneId, Sequence, Timestamp};

use crate::catalog::{CatalogError, DestinationRecord, RunState};
use crate::delivery::SetAside;
use crate::error::ReadError;
use crate::progress::NotDurable;
use crate::shard::core::Shard;
use crate::shard::index_file::IndexError;
use crate::shard::look_up::unreadable;
use crate::shard::segment::Segment;
use crate::store::Store;

/// Deliveries that are ended in one transaction: as many as progress writes at once anyway.
const DELIVERIES_PER_STEP: usize = 4_096;

/// What becomes of the deliveries that a retired destination is still owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingFate {
    /// They become dead letters of class `retired` that refer to their events.
    DeadLetter,
    /// They end for good.
    Discard,
}

impl PendingFate {
    /// Name in requests and in the audit trail.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeadLetter => "dead-letter",
            Self::Discard => "discard",
        }
    }

    /// From its name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::DeadLetter, Self::Discard]
            .into_iter()
            .find(|fate| fate.name() == name)
    }
}

/// Why the deliveries of a destination were not all ended.
#[derive(Debug, Error)]
pub enum RetireError {
    /// The configuration still has it: remove it there first. Nothing was done.
    #[error(
        "{name:?} is still in the configuration; remove it and its routes there, start again, and \
         repeat this"
    )]
    Configured {
        /// The destination.
        name: String,
    },
    /// The catalogue does not know it, or could not take the record; look again before repeating.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// Some deliveries could not be looked up; repeat it, it goes on where it ended.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The disk did not take it in time; repeat it, it goes on where it ended.
    #[error("{0}; repeat it")]
    NotDurable(#[from] NotDurable),
}

/// What was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retired {
    /// The destination as it is now: who ended it, when, and how many deliveries.
    pub record: DestinationRecord,
    /// Deliveries ended by this call; 0 where an earlier one had ended them all.
    pub ended: u64,
}

impl Store {
    /// Ends every delivery that a retired destination is still owed, those under redrive included. Audited
    /// before the first and recorded after the last; durable when it returns. Blocking, for as long as that
    /// takes.
    ///
    /// # Errors
    /// `Configured`, `Catalog`, `Read` or `NotDurable`; after the last three some may have been ended, and
    /// repeating it ends the rest.
    pub fn retire(
        &self,
        destination: DestinationId,
        pending: PendingFate,
        by: &str,
    ) -> Result<Retired, RetireError> {
        let inner = self.inner();
        let catalog = &inner.catalog;
        let record = catalog
            .destination(destination)
            .ok_or(CatalogError::NotFound {
                what: "destination",
            })?;
        if record.state != RunState::Retired {
            return Err(RetireError::Configured { name: record.name });
        }
        let pending_is = format!("pending: {}", pending.name());
        catalog.audit(by, "destination.ending", &record.name, Some(&pending_is))?;
        crate::failpoint!("retire.before-ending");
        let now = inner.clock.now();
        let mut ended = 0;
        for shard in inner.shards.map().all() {
            ended += shard.end_pending(record.lane, destination, pending, now)?;
        }
        crate::failpoint!("retire.before-record");
        // Repeated after it was done, it leaves the record of who did it.
        if ended == 0 && record.by.is_some() {
            return Ok(Retired { record, ended });
        }
        let reason = match pending {
            PendingFate::DeadLetter => {
                format!("{ended} pending deliveries became dead letters")
            }
            PendingFate::Discard => format!("{ended} pending deliveries were discarded"),
        };
        let record = catalog.note_ended(destination, by, &reason)?;
        Ok(Retired { record, ended })
    }
}

impl Shard {
    /// Ends all pending deliveries of a lane in this shard; how many.
    fn end_pending(
        &self,
        lane: LaneId,
        destination: DestinationId,
        pending: PendingFate,
        now: Timestamp,
    ) -> Result<u64, RetireError> {
        let mut ended = self.progress.end_redrives(lane, pending);
        for segment in self.segments() {
            let mut after = 0;
            loop {
                let sequences = self.owed_after(&segment, destination, after)?;
                let Some(&reached) = sequences.last() else {
                    break;
                };
                after = reached;
                let mut deliveries: Vec<(LaneId, DestinationId, Sequence)> = sequences
                    .into_iter()
                    .map(|sequence| (lane, destination, Sequence(sequence)))
                    .collect();
                self.progress.view(lane, |view| {
                    deliveries.retain(|(_, _, sequence)| !view.is_resolved(*sequence));
                });
                if deliveries.is_empty() {
                    continue;
                }
                ended += match pending {
                    PendingFate::DeadLetter => {
                        self.progress.set_aside(&deliveries, SetAside::Retired, now)
                    }
                    PendingFate::Discard => self.progress.discard_pending(&deliveries),
                };
                crate::failpoint!("retire.before-sync");
                self.progress.durable_soon()?;
            }
        }
        self.progress.durable_soon()?;
        Ok(ended)
    }

    /// The next sequences of a segment that owe a delivery to this destination.
    fn owed_after(
        &self,
        segment: &Segment,
        destination: DestinationId,
        after: u64,
    ) -> Result<Vec<u64>, ReadError> {
        let disk = self.disk.as_ref();
        let list = || segment.lane_after(disk, destination, after, DELIVERIES_PER_STEP);
        let listed = match list() {
            Err(error) if self.mend_index(segment, &error) => list(),
            listed => listed,
        };
        listed.map_err(|error: IndexError| unreadable(segment, &error))
    }
}
