//! What there is in the files of a stopped store, as values. Reads index files and marks whole, and rows only
//! of segments that have no index file; whether everything is whole is [`super::verify`]'s question.

use std::collections::BTreeMap;
use std::path::PathBuf;

use wayhold_model::DestinationId;

use super::StoppedStore;
use super::files::{Kind, sizes};
use super::segment::{Database, Index};
use super::shard::Shard;
use crate::catalog::{DestinationRecord, GenerationRecord};
use crate::commands::Counts;
use crate::error::OpenError;
use crate::shard::recent::Recent;
use crate::shard::segment::database_path;

/// Everything that lies in a data directory.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// What the catalogue says, or why it says nothing.
    pub catalog: Result<CatalogInventory, String>,
    /// Commands; `None` where there never was one, or why they cannot be read.
    pub commands: Result<Option<CommandsInventory>, String>,
    /// Every shard that is there or should be.
    pub shards: Vec<ShardInventory>,
}

/// What the catalogue says.
#[derive(Clone, Debug)]
pub struct CatalogInventory {
    /// Version of its format.
    pub format: u32,
    /// Name of the node.
    pub node: String,
    /// Generations of shards.
    pub generations: Vec<GenerationRecord>,
    /// Destinations that were ever configured.
    pub destinations: Vec<DestinationRecord>,
    /// How many tokens there are, revoked ones included.
    pub tokens: usize,
}

/// What the file of commands holds.
#[derive(Clone, Debug)]
pub struct CommandsInventory {
    /// The file.
    pub file: PathBuf,
    /// Version of its format.
    pub format: u32,
    /// Commands by state.
    pub counts: Counts,
}

/// What lies in the directory of one shard.
#[derive(Clone, Debug)]
pub struct ShardInventory {
    /// `g1.s0`.
    pub name: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Whether that is there.
    pub exists: bool,
    /// What the mark says, or why it says nothing.
    pub mark: Result<MarkInventory, String>,
    /// The state file that counts, or why there is none.
    pub state: Result<StateInventory, String>,
    /// Segments, also those of which only the index file is left.
    pub segments: Vec<SegmentInventory>,
    /// Files that were put aside.
    pub quarantined: Vec<PathBuf>,
    /// Files of which nobody knows what they are.
    pub unknown: Vec<PathBuf>,
}

/// What a mark says.
#[derive(Clone, Copy, Debug)]
pub struct MarkInventory {
    /// Whether the last run stopped cleanly.
    pub clean: bool,
    /// The newest segment that it names.
    pub segment: u64,
    /// The last sequence of it that is known to be synced.
    pub last: u64,
}

/// What a state file holds.
#[derive(Clone, Debug)]
pub struct StateInventory {
    /// The file.
    pub file: PathBuf,
    /// Version of its format.
    pub format: u32,
    /// Dead letters, those under redrive included.
    pub dead_letters: u64,
    /// Segments that it knows as resolved.
    pub resolved_segments: u64,
}

/// What is known of one segment.
#[derive(Clone, Debug)]
pub struct SegmentInventory {
    /// Its number.
    pub number: u64,
    /// Bytes of its database; `None` where that is gone.
    pub bytes: Option<u64>,
    /// Bytes of the log beside it.
    pub wal_bytes: u64,
    /// Bytes of its index file; `None` where it has none: it is not sealed.
    pub index_bytes: Option<u64>,
    /// How many events it holds.
    pub rows: u64,
    /// Sequences of its first and last event.
    pub span: Option<(u64, u64)>,
    /// First and last sequence of the segments that it was compacted from; `None` for any other segment.
    pub covers: Option<(u64, u64)>,
    /// When its last event was accepted, in microseconds since the epoch; 0 where it has none.
    pub newest: u64,
    /// Whether everything of it is resolved.
    pub resolved: bool,
    /// Deliveries that are still owed, per destination.
    pub pending: BTreeMap<DestinationId, u64>,
    /// Why it cannot be read, where it cannot.
    pub problem: Option<String>,
}

impl StoppedStore {
    /// Lists what there is. Blocking.
    ///
    /// # Errors
    /// A directory cannot be read, or a file was written by a newer version.
    pub fn inspect(&self) -> Result<Inventory, OpenError> {
        let catalog = self.catalog.as_ref();
        let catalog = catalog.map(|catalog| CatalogInventory {
            format: catalog.format,
            node: catalog.node_id.clone(),
            generations: catalog.generations.clone(),
            destinations: catalog.destinations.clone(),
            tokens: catalog.tokens,
        });
        let commands = self.commands.as_ref().map(|commands| {
            commands.as_ref().map(|commands| CommandsInventory {
                file: commands.path.clone(),
                format: commands.format,
                counts: commands.counts,
            })
        });
        let shards = self.read_shards()?;
        Ok(Inventory {
            catalog: catalog.map_err(ToString::to_string),
            commands: commands.map_err(Clone::clone),
            shards: shards.iter().map(|shard| self.inventory(shard)).collect(),
        })
    }

    fn inventory(&self, shard: &Shard<'_>) -> ShardInventory {
        let files = shard.files;
        let mark = match &shard.mark {
            Ok(Some(mark)) => Ok(MarkInventory {
                clean: mark.clean,
                segment: mark.newest(),
                last: mark.reach(mark.newest()).map_or(0, |reach| reach.last),
            }),
            Ok(None) => Err("was never written".to_owned()),
            Err(reason) => Err(reason.clone()),
        };
        let state = match (&shard.state, shard.broken_states.first()) {
            (Some(state), _) => Ok(StateInventory {
                file: state.path.clone(),
                format: state.format,
                dead_letters: {
                    let mut letters = 0;
                    drop(state.each_letter(|_| letters += 1));
                    letters
                },
                resolved_segments: state.resolved_segments().len() as u64,
            }),
            (None, Some((path, reason))) => Err(format!("{}: {reason}", path.display())),
            (None, None) => Err("is missing".to_owned()),
        };
        let segments = files.segments().into_iter();
        ShardInventory {
            name: files.name(),
            dir: files.dir.clone(),
            exists: files.exists,
            mark,
            state,
            segments: segments.map(|number| self.segment(shard, number)).collect(),
            quarantined: files.paths(Kind::Quarantined).collect(),
            unknown: files.paths(Kind::Unknown).collect(),
        }
    }

    fn segment(&self, shard: &Shard<'_>, number: u64) -> SegmentInventory {
        let files = shard.files;
        let in_place = files.database(number);
        let path = in_place.clone();
        let path = path.unwrap_or_else(|| database_path(&files.dir, number));
        let (bytes, wal_bytes) = sizes(self.disk.as_ref(), &path);
        let mut inventory = SegmentInventory {
            number,
            bytes: in_place.map(|_| bytes),
            wal_bytes,
            index_bytes: None,
            rows: 0,
            span: None,
            covers: None,
            newest: 0,
            resolved: false,
            pending: BTreeMap::new(),
            problem: None,
        };
        let state = shard.state.as_ref();
        let is_counted = state.is_some_and(|state| state.is_counted(number));
        match Index::open(self.disk.as_ref(), files, number) {
            Index::Open(index) => {
                inventory.index_bytes = Some(index.bytes);
                inventory.rows = index.rows as u64;
                inventory.span = (index.rows > 0).then_some((index.first, index.last));
                inventory.newest = index.newest;
                inventory.resolved = is_counted || index.resolved_at != 0;
                inventory.covers = index.identity.covers;
                let pending = index.counts.iter().map(|(destination, count)| {
                    let owed = shard.unresolved_of(&index, *destination, *count);
                    (*destination, owed)
                });
                if !inventory.resolved && !shard.elsewhere.contains(&number) {
                    inventory.pending = pending.filter(|(_, owed)| *owed > 0).collect();
                }
            }
            Index::Unusable(error) => inventory.problem = Some(format!("index file {error}")),
            Index::Absent => match Database::open(&path) {
                Ok(database) => {
                    inventory.covers = database.identity.covers;
                    let (recent, _, _) = database.index(None);
                    inventory.resolved = is_counted;
                    take_over(&mut inventory, &recent, shard);
                }
                Err(error) => inventory.problem = Some(error.to_string()),
            },
        }
        inventory
    }
}

/// Counts what the rows of a segment without an index file say.
fn take_over(inventory: &mut SegmentInventory, recent: &Recent, shard: &Shard<'_>) {
    let entries = recent.entries();
    inventory.rows = entries.len() as u64;
    inventory.span = entries
        .first()
        .zip(entries.last())
        .map(|(first, last)| (first.sequence, last.sequence));
    inventory.newest = entries.last().map_or(0, |entry| entry.accepted_at);
    for entry in entries.iter().filter(|_| !inventory.resolved) {
        let owed = entry.destinations.ids().iter();
        for destination in owed.filter(|id| shard.owes(**id, entry.sequence)) {
            *inventory.pending.entry(*destination).or_default() += 1;
        }
    }
}
