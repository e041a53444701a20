//! Takes the surviving events out of a stopped store: every whole row of every database that holds a segment of
//! this node, in its place or put aside, whatever else is damaged or missing; and the copies in dead letters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use wayhold_model::{DestinationId, Generation, Position, ShardId, StoredEvent};

use super::StoppedStore;
use super::segment::{Database, Index};
use super::shard::Shard;
use crate::error::OpenError;
use crate::shard::row::Row;

/// Which events are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Also those that nobody is owed any more, and dead letters.
    pub all: bool,
    /// Only those owed to this destination; with `all`, those that were ever owed to it.
    pub destination: Option<DestinationId>,
}

/// One surviving event.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The event, with its place.
    pub event: Arc<StoredEvent>,
    /// Destinations that it is still owed to, as far as anything says.
    pub owed: Vec<DestinationId>,
}

/// What came out and what did not.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Events that were handed over.
    pub events: u64,
    /// Rows and letters that do not match their checksums.
    pub damaged: u64,
    /// Files that could not be read, or not to their end, and why.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// Why an export ended early.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What takes the events takes no more.
    #[error("the events cannot be written: {0}")]
    Write(#[from] std::io::Error),
}

impl StoppedStore {
    /// Hands every surviving event that is wanted to `take`, shard by shard in order of acceptance, each
    /// once. Blocking; holds one event at a time and one bit per event.
    ///
    /// # Errors
    /// A file was written by a newer version, a directory cannot be read, or `take` failed.
    pub fn export(
        &self,
        wanted: Wanted,
        take: &mut dyn FnMut(Exported) -> std::io::Result<()>,
    ) -> Result<Summary, ExportError> {
        let shards = self.read_shards()?;
        let mut export = Export {
            store: self,
            shards: &shards,
            wanted,
            summary: Summary::default(),
            given: BTreeMap::new(),
            redriving: BTreeSet::new(),
        };
        export.read_redriving();
        for source in export.sources() {
            export.database(&source, take)?;
        }
        export.letters(take)?;
        Ok(export.summary)
    }
}

/// A database with rows to take.
struct Source {
    path: PathBuf,
    place: (Generation, ShardId),
    /// Of its first row; the order in which databases are read.
    first: u64,
    /// Rows above were never acknowledged.
    sealed_at: u64,
}

struct Export<'a> {
    store: &'a StoppedStore,
    shards: &'a [Shard<'a>],
    wanted: Wanted,
    summary: Summary,
    /// Which sequences of a shard were handed over: one bit each, in words of 64.
    given: BTreeMap<(u32, u16), BTreeMap<u64, u64>>,
    /// Deliveries of dead letters that are being sent again.
    redriving: BTreeSet<(Position, DestinationId)>,
}

impl Export<'_> {
    fn read_redriving(&mut self) {
        for state in self.shards.iter().filter_map(|shard| shard.state.as_ref()) {
            let read = state.each_letter(|letter| match letter.content {
                Some((destination, position, _)) if letter.redriving => {
                    self.redriving.insert((position, destination));
                }
                Some(_) => {}
                None => self.summary.damaged += 1,
            });
            if let Err(error) = read {
                let unread = (state.path.clone(), error.to_string());
                self.summary.unreadable.push(unread);
            }
        }
    }

    /// Databases that hold segments of this node, by place and first row.
    fn sources(&mut self) -> Vec<Source> {
        let mut sources = Vec::new();
        for shard in self.shards {
            let files = shard.files;
            let numbers = files.segments().into_iter();
            let paths = numbers.filter_map(|number| files.database(number));
            for path in paths.chain(files.aside()) {
                match Database::open(&path) {
                    Ok(database) => sources.extend(self.source(&database)),
                    Err(error) => {
                        let unread = (path, error.to_string());
                        self.summary.unreadable.push(unread);
                    }
                }
            }
        }
        sources.sort_by_key(|source| (source.place.0.0, source.place.1.0, source.first));
        sources
    }

    /// `None` for one of another node.
    fn source(&self, database: &Database) -> Option<Source> {
        let is_ours = self
            .store
            .hash_seed
            .is_none_or(|seed| seed == database.seed);
        let identity = database.identity;
        let place = (Generation(identity.generation), ShardId(identity.shard));
        let home = self.home(place);
        let index = home.map(|home| {
            let disk = self.store.disk.as_ref();
            Index::open(disk, home.files, identity.number)
        });
        is_ours.then(|| Source {
            path: database.path.clone(),
            place,
            first: database.reader.first().unwrap_or(u64::MAX),
            sealed_at: index
                .and_then(|index| index.sealed_at(identity))
                .unwrap_or(u64::MAX),
        })
    }

    fn home(&self, place: (Generation, ShardId)) -> Option<&Shard<'_>> {
        self.shards
            .iter()
            .find(|shard| (shard.files.generation, shard.files.shard) == place)
    }

    fn database(
        &mut self,
        source: &Source,
        take: &mut dyn FnMut(Exported) -> std::io::Result<()>,
    ) -> Result<(), ExportError> {
        let database = match Database::open(&source.path) {
            Ok(database) => database,
            Err(error) => {
                let unread = (source.path.clone(), error.to_string());
                self.summary.unreadable.push(unread);
                return Ok(());
            }
        };
        let mut failed = None;
        let (damaged, error) = database.rows(|row: Row| {
            if failed.is_some() || row.stored.position.sequence.0 > source.sealed_at {
                return;
            }
            if let Err(error) = self.hand(&row.stored, take) {
                failed = Some(error);
            }
        });
        self.summary.damaged += damaged.len() as u64;
        if let Some(error) = error {
            self.summary.unreadable.push((source.path.clone(), error));
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Copies of events in dead letters, where no row was left of them.
    fn letters(
        &mut self,
        take: &mut dyn FnMut(Exported) -> std::io::Result<()>,
    ) -> Result<(), ExportError> {
        for state in self.shards.iter().filter_map(|shard| shard.state.as_ref()) {
            let mut failed = None;
            let read = state.each_letter(|letter| {
                let Some((_, _, Some(event))) = letter.content else {
                    return;
                };
                if failed.is_none() {
                    failed = self.hand(&event, take).err();
                }
            });
            // What cannot be read was named before.
            drop(read);
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Hands an event over where it is wanted and was not handed over before.
    fn hand(
        &mut self,
        event: &Arc<StoredEvent>,
        take: &mut dyn FnMut(Exported) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let position = event.position;
        let home = self.home((position.generation, position.shard));
        let ids = event.destinations.ids().iter().copied();
        let owed: Vec<DestinationId> = ids
            .filter(|id| {
                self.redriving.contains(&(position, *id))
                    || home.is_none_or(|home| home.owes(*id, position.sequence.0))
            })
            .collect();
        let is_wanted = match (self.wanted.all, self.wanted.destination) {
            (true, None) => true,
            (true, Some(id)) => event.destinations.contains(id),
            (false, None) => !owed.is_empty(),
            (false, Some(id)) => owed.contains(&id),
        };
        if !is_wanted || !self.is_first(position) {
            return Ok(());
        }
        self.summary.events += 1;
        take(Exported {
            event: Arc::clone(event),
            owed,
        })
    }

    /// Whether a place is met for the first time: after some crashes a row lies in two files.
    fn is_first(&mut self, position: Position) -> bool {
        let shard = (position.generation.0, position.shard.0);
        let (word, bit) = (position.sequence.0 / 64, 1 << (position.sequence.0 % 64));
        let word = self
            .given
            .entry(shard)
            .or_default()
            .entry(word)
            .or_default();
        let is_first = *word & bit == 0;
        *word |= bit;
        is_first
    }
}
