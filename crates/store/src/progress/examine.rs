//! The progress of one shard of a stopped store, read from its newest state file without changing anything.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wayhold_model::{DestinationId, Generation, LaneId, Position, Sequence, ShardId, StoredEvent};

use crate::connection::{self, ConnectionError};
use crate::progress::file::StateFile;
use crate::progress::letter_rows::{self, LetterContext};
use crate::progress::memory::{LaneView, Memory, ResolvedSegment};
use crate::progress::recovery::path_of;
use crate::shards::Owner;

/// Progress as a state file tells it.
pub(crate) struct Examined {
    pub(crate) path: PathBuf,
    /// Version of its format; what it says was read as if it had the newest.
    pub(crate) format: u32,
    /// One sentence per row that is damaged and was left out.
    pub(crate) findings: Vec<String>,
    /// What SQLite's own check finds wrong with it.
    pub(crate) unsound: Vec<String>,
    memory: Memory,
    lanes: Vec<LaneId>,
    file: StateFile,
    context: LetterContext,
}

/// A dead letter of a state file.
pub(crate) struct ExaminedLetter {
    pub(crate) id: u64,
    /// Whether it is being sent again: then it counts as pending.
    pub(crate) redriving: bool,
    /// The destination, where the event lies, and the copy of it where the letter has one; `None` where the
    /// letter is damaged.
    pub(crate) content: Option<(DestinationId, Position, Option<Arc<StoredEvent>>)>,
}

/// Most sentences of SQLite's check that are kept.
const SENTENCES_MAX: u32 = 5;

impl Examined {
    /// Reads the state file of that number; `None` where its making was cut off, so that nothing was ever
    /// kept in it.
    pub(crate) fn open(
        directory: &Path,
        number: u64,
        (generation, shard): (Generation, ShardId),
        hash_seed: u64,
    ) -> Result<Option<Self>, ConnectionError> {
        let path = path_of(directory, number);
        let owner = Owner::new(generation, shard, hash_seed);
        let Some((file, format)) = StateFile::examine(&path, (hash_seed, owner))? else {
            return Ok(None);
        };
        let contents = file.read()?;
        let lanes = contents.loaded.lanes.iter().map(|(lane, ..)| *lane);
        Ok(Some(Self {
            path,
            format,
            findings: contents.findings,
            unsound: connection::integrity(file.reader(), SENTENCES_MAX),
            lanes: lanes.collect(),
            memory: Memory::load(contents.loaded),
            file,
            context: LetterContext {
                place: Position {
                    generation,
                    shard,
                    sequence: Sequence(0),
                },
                hash_seed,
            },
        }))
    }

    /// Lanes that it knows.
    pub(crate) fn lanes(&self) -> &[LaneId] {
        &self.lanes
    }

    /// One lane.
    pub(crate) fn view(&self, lane: LaneId) -> LaneView<'_> {
        self.memory.view(lane)
    }

    /// Segments that were found resolved.
    pub(crate) fn resolved_segments(&self) -> Vec<ResolvedSegment> {
        self.memory.resolved_segments()
    }

    /// Whether it knows that a compacted segment took the place of its sources.
    pub(crate) fn has_compacted(&self, segment: u64) -> bool {
        self.memory.left_out(segment).is_some()
    }

    /// How much of a lane a compacted segment left out.
    pub(crate) fn left_out(&self, segment: u64, lane: LaneId) -> u64 {
        let left_out = self.memory.left_out(segment).unwrap_or_default();
        left_out.get(&lane).copied().unwrap_or(0)
    }

    /// Whether a segment was found resolved: then its obligations are counted in the base.
    pub(crate) fn is_counted(&self, segment: u64) -> bool {
        self.memory.is_counted(segment)
    }

    /// Hands over every dead letter, oldest first, one at a time.
    pub(crate) fn each_letter(
        &self,
        mut take: impl FnMut(ExaminedLetter),
    ) -> Result<(), rusqlite::Error> {
        letter_rows::each(self.file.reader(), self.context, |row| {
            take(ExaminedLetter {
                id: row.id,
                redriving: row.redriving,
                content: row.sound(),
            });
        })
    }
}
