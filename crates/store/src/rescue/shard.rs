//! One shard of a stopped store: what its mark and its newest state file say.

use std::collections::BTreeSet;
use std::path::PathBuf;

use wayhold_model::{DestinationId, Sequence};

use super::elsewhere::elsewhere;
use super::files::{Kind, ShardFiles};
use crate::connection::ConnectionError;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::progress::{Examined, Stretch};
use crate::shard::index_file::IndexFile;
use crate::shard::mark::{self, MARK, Mark, MarkError};
use crate::shard::resolved::own_lane;
use crate::shards::Owner;

/// A shard's files with what was read of them.
pub(super) struct Shard<'a> {
    pub(super) files: &'a ShardFiles,
    /// `Ok(None)` where it was never written; else why it says nothing.
    pub(super) mark: Result<Option<Mark>, String>,
    /// The newest state file that counts.
    pub(super) state: Option<Examined>,
    /// Numbers of segments that count for nothing: what they hold lies in a compacted one, or the other way
    /// round.
    pub(super) elsewhere: BTreeSet<u64>,
    /// State files that cannot be used, and why.
    pub(super) broken_states: Vec<(PathBuf, String)>,
}

impl<'a> Shard<'a> {
    /// Reads mark and state.
    pub(super) fn read(
        disk: &dyn Disk,
        files: &'a ShardFiles,
        hash_seed: Option<u64>,
    ) -> Result<Self, OpenError> {
        let owner = hash_seed.map(|seed| Owner::new(files.generation, files.shard, seed));
        let mut shard = Self {
            mark: read_mark(disk, files, owner)?,
            state: None,
            elsewhere: BTreeSet::new(),
            broken_states: Vec::new(),
            files,
        };
        for number in files.states().into_iter().rev() {
            shard.read_state(number, hash_seed)?;
        }
        shard.elsewhere = elsewhere(disk, files, shard.state.as_ref());
        Ok(shard)
    }

    /// The newest whole one counts; every other one is only looked at.
    fn read_state(&mut self, number: u64, hash_seed: Option<u64>) -> Result<(), OpenError> {
        let path = self.files.dir.join(format!("state-{number}.db"));
        let Some(seed) = hash_seed else {
            let reason = "nothing tells the seed of its checksums".to_owned();
            self.broken_states.push((path, reason));
            return Ok(());
        };
        let place = (self.files.generation, self.files.shard);
        match Examined::open(&self.files.dir, number, place, seed) {
            Ok(Some(state)) if self.state.is_none() => self.state = Some(state),
            Ok(_) => {}
            Err(ConnectionError::Newer { found, known }) => {
                return Err(OpenError::Newer {
                    file: path,
                    found,
                    known,
                });
            }
            Err(error) => self.broken_states.push((path, error.to_string())),
        }
        Ok(())
    }

    /// How many of the `count` deliveries that an index file names for a destination are still owed, by the
    /// counts.
    pub(super) fn unresolved_of(
        &self,
        index: &IndexFile,
        destination: DestinationId,
        count: u64,
    ) -> u64 {
        let lane = own_lane(destination);
        self.state.as_ref().map_or(count, |state| {
            state.view(lane).unresolved_of(&Stretch {
                first: Sequence(index.first),
                last: Sequence(index.last),
                count,
                left_out: state.left_out(index.identity.number, lane),
            })
        })
    }

    /// Whether a delivery is still owed, as far as anything says.
    pub(super) fn owes(&self, destination: DestinationId, sequence: u64) -> bool {
        self.state.as_ref().is_none_or(|state| {
            !state
                .view(own_lane(destination))
                .is_resolved(Sequence(sequence))
        })
    }
}

fn read_mark(
    disk: &dyn Disk,
    files: &ShardFiles,
    owner: Option<Owner>,
) -> Result<Result<Option<Mark>, String>, OpenError> {
    let path = files.dir.join(MARK);
    if !files.has(Kind::Mark) {
        return Ok(Err("is missing".to_owned()));
    }
    let bytes = match disk.read(&path) {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let Some(owner) = owner else {
        return Ok(Err("nothing tells whose it is".to_owned()));
    };
    match mark::read(&bytes, owner) {
        Ok(found) => Ok(match found.trouble() {
            Some(trouble) => Err(trouble.to_owned()),
            None => Ok(found.mark()),
        }),
        Err(MarkError::Newer { found, known }) => Err(OpenError::Newer {
            file: path,
            found,
            known,
        }),
        Err(MarkError::Io(error)) => Ok(Err(error.to_string())),
    }
}
