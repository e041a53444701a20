//! A stopped store as files on a disk: what is there, whether it is whole, how its events get out, and how
//! the server starts again where something is damaged. Reads with the store's own readers, and changes nothing
//! but in [`repair`]. Modules in suggested reading order.

mod files;
mod segment;
mod shard;

mod elsewhere;

pub mod inspect;

mod finding;
pub mod verify;

pub mod export;

pub mod repair;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wayhold_model::{DestinationId, Generation, ShardId};

use crate::catalog::{self, CatalogError, Catalogued};
use crate::commands::{self, Examined};
use crate::connection::ConnectionError;
use crate::disk::{Disk, SystemDisk};
use crate::error::OpenError;
use crate::opening::lock_shared;
use files::ShardFiles;
use shard::Shard;

/// The files of a store that no process runs on. Others may look at the same time; a server cannot start.
#[derive(Debug)]
pub struct StoppedStore {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    catalog: Result<Catalogued, CatalogError>,
    /// Commands, where there ever were some, or why they cannot be read.
    commands: Result<Option<Examined>, String>,
    shards: Vec<ShardFiles>,
    /// Of every hash in the directory; without it state files cannot be held against their checksums.
    hash_seed: Option<u64>,
    /// Whether segments can be read and none of them is of the catalogue's node.
    has_foreign_catalog: bool,
    /// `None` where there is no lock file: then no server ever ran here since it was copied.
    _lock: Option<File>,
}

impl StoppedStore {
    /// Looks into a data directory. Blocking.
    ///
    /// # Errors
    /// A process runs on it, it is none, it was written by a newer version, or it cannot be read.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
        let lock = lock_shared(dir)?;
        Self::look(dir, disk, lock)
    }

    /// The same where the caller has the lock.
    fn look(dir: &Path, disk: Arc<dyn Disk>, lock: Option<File>) -> Result<Self, OpenError> {
        let catalog = match catalog::examine(dir) {
            Err(CatalogError::Newer { path, found, known }) => {
                return Err(OpenError::Newer {
                    file: path,
                    found,
                    known,
                });
            }
            other => other,
        };
        let commands = match commands::examine(dir) {
            Err(ConnectionError::Newer { found, known }) => {
                return Err(OpenError::Newer {
                    file: dir.join(commands::FILE),
                    found,
                    known,
                });
            }
            other => other.map_err(|error| error.to_string()),
        };
        let mut names = shards_on_disk(disk.as_ref(), dir)?;
        if names.is_empty() && matches!(catalog, Err(CatalogError::Lost { .. })) {
            return Err(OpenError::Unusable {
                path: dir.to_owned(),
                reason: "holds neither a catalogue nor shards: it is no data directory".to_owned(),
            });
        }
        // Also those that should be there.
        for one in catalog.iter().flat_map(|catalog| &catalog.generations) {
            let shards = (0..one.shards).map(|shard| (one.generation, ShardId(shard)));
            names.extend(shards.filter(|_| one.made));
        }
        names.sort_unstable_by_key(|(generation, shard)| (generation.0, shard.0));
        names.dedup();
        let shards = names
            .into_iter()
            .map(|(generation, shard)| ShardFiles::list(disk.as_ref(), dir, generation, shard))
            .collect::<Result<Vec<_>, _>>()?;
        let known = catalog.as_ref().ok().map(|catalog| catalog.hash_seed);
        let witnesses = segment::seeds(&shards);
        let is_foreign = known.is_some_and(|seed| segment::is_foreign(seed, &witnesses));
        let hash_seed = known.filter(|_| !is_foreign);
        Ok(Self {
            dir: dir.to_owned(),
            disk,
            catalog,
            commands,
            shards,
            hash_seed: hash_seed.or_else(|| segment::most_frequent(&witnesses)),
            has_foreign_catalog: is_foreign,
            _lock: lock,
        })
    }

    /// The name of a destination, or its number where nothing knows its name.
    pub fn name_of(&self, destination: DestinationId) -> String {
        let known = self
            .catalog
            .iter()
            .flat_map(|catalog| &catalog.destinations)
            .find(|record| record.id == destination);
        known.map_or_else(
            || format!("#{}", destination.0),
            |record| record.name.clone(),
        )
    }

    /// The number of a destination, by its name or as `#` and its number.
    pub fn destination(&self, name: &str) -> Option<DestinationId> {
        if let Some(number) = name.strip_prefix('#') {
            return number.parse().ok().map(DestinationId);
        }
        let known = self
            .catalog
            .iter()
            .flat_map(|catalog| &catalog.destinations);
        let known = known.filter(|record| record.name == name);
        known.map(|record| record.id).next()
    }

    /// The shards, with what their marks and state files say.
    fn read_shards(&self) -> Result<Vec<Shard<'_>>, OpenError> {
        self.shards
            .iter()
            .map(|files| Shard::read(self.disk.as_ref(), files, self.hash_seed))
            .collect()
    }
}

/// Shards that have a directory.
fn shards_on_disk(disk: &dyn Disk, dir: &Path) -> Result<Vec<(Generation, ShardId)>, OpenError> {
    let list = |path: &Path| {
        let names = disk.list(path).map_err(|error| OpenError::Unusable {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        Ok::<Vec<String>, OpenError>(names.collect())
    };
    let mut found = Vec::new();
    for name in list(dir)? {
        let Some(Ok(generation)) = name.strip_prefix('g').map(str::parse) else {
            continue;
        };
        for name in list(&dir.join(&name))? {
            if let Some(Ok(shard)) = name.strip_prefix('s').map(str::parse) {
                found.push((Generation(generation), ShardId(shard)));
            }
        }
    }
    Ok(found)
}
