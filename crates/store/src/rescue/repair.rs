//! Makes a damaged store one that starts: what is damaged is put aside, never deleted; what lies in a wrong
//! place is moved to its own; a catalogue that is lost is made again; and then the store is opened and stopped
//! once, which makes index files, mark and progress again by the same code as any start.
//!
//! Every step is durable before the next and leaves less to do: after a kill the same command completes it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use wayhold_model::{Clock, DestinationId, Generation};

use super::StoppedStore;
use super::files::Kind;
use super::segment::{Database, Index};
use super::verify::{Remedy, Verified};
use crate::catalog::{CatalogError, Rebuilt};
use crate::disk::{
    DATABASE_SUFFIXES, Disk, SystemDisk, copy_database_aside, quarantine, quarantine_database,
    with_suffix,
};
use crate::error::OpenError;
use crate::opening::lock_directory;
use crate::options::Options;
use crate::shard::segment::database_path;
use crate::store::Store;

/// Names of destinations by number, for a catalogue that is lost with them.
pub type Names = BTreeMap<DestinationId, String>;

/// Rounds of looking and mending: what was behind a misplaced file shows once that is gone.
const ROUNDS_MAX: usize = 6;

/// One step of a repair, done or planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A file, with what belongs to it, is kept under another name.
    PutAside(PathBuf),
    /// A copy of a database is kept before its rest is taken over.
    KeepCopy(PathBuf),
    /// A database is moved to where it belongs.
    MoveBack {
        /// From.
        from: PathBuf,
        /// To.
        to: PathBuf,
    },
    /// A catalogue is made from what the shards tell; every destination is paused.
    MakeCatalog(PathBuf),
    /// The store is opened and stopped, which makes the rest again.
    Reopen,
}

/// Why nothing, or not everything, was repaired.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A new catalogue needs these names; give them and repeat. Nothing was changed.
    #[error("the catalogue is lost with the names of destinations {}: give each with --destination NUMBER=NAME", numbers(.0))]
    Unnamed(Vec<DestinationId>),
    /// Nothing tells the seed of the hashes, so that no catalogue can be made. Nothing was changed.
    #[error("no segment can be read, so nothing tells the hash seed of a new catalogue")]
    NoSeed,
    /// A file could not be moved; the same command goes on from here.
    #[error("{path}: {reason}")]
    Step {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

fn numbers(ids: &[DestinationId]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| id.0.to_string()).collect();
    ids.join(", ")
}

/// What a repair would do first, without doing it. Blocking.
///
/// # Errors
/// As of `repair`.
pub fn plan(dir: &Path, names: &Names) -> Result<Vec<Step>, RepairError> {
    let store = StoppedStore::open(dir)?;
    let verified = store.verify(&mut |_, _, _| {})?;
    let mut steps = Vec::new();
    if needs_catalog(&verified) {
        store.rebuilt(&verified, names)?;
        steps.push(Step::MakeCatalog(dir.join("catalog.db")));
    }
    for finding in &verified.findings {
        match &finding.remedy {
            Remedy::PutAside(paths) => steps.extend(paths.iter().cloned().map(Step::PutAside)),
            Remedy::Salvage { database, index } => steps.extend([
                Step::KeepCopy(database.clone()),
                Step::PutAside(index.clone()),
            ]),
            Remedy::Move { from, to } => steps.push(Step::MoveBack {
                from: from.clone(),
                to: to.clone(),
            }),
            Remedy::Nothing | Remedy::Start | Remedy::Catalog | Remedy::Restore => {}
        }
    }
    steps.push(Step::Reopen);
    Ok(steps)
}

/// Repairs the store in `dir`; `done` is told of each step when it is durable. What the last step found is
/// returned. Blocking.
///
/// # Errors
/// Nothing was changed unless the error says `Step`, or opening the store failed at the end.
pub fn repair(
    dir: &Path,
    names: &Names,
    clock: Arc<dyn Clock>,
    done: &mut dyn FnMut(&Step),
) -> Result<Vec<String>, RepairError> {
    // Before anything is locked: a directory that is none is not made one.
    drop(StoppedStore::open(dir)?);
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let lock = lock_directory(dir, disk.as_ref())?;
    for _ in 0..ROUNDS_MAX {
        let store = StoppedStore::look(dir, Arc::clone(&disk), None)?;
        let verified = store.verify(&mut |_, _, _| {})?;
        if needs_catalog(&verified) {
            let rebuilt = store.rebuilt(&verified, names)?;
            store.make_catalog(&rebuilt, clock.as_ref(), done)?;
            continue;
        }
        // What is missed may only lie in a wrong place: nothing is given up before that is set right.
        let moved = clear_places(disk.as_ref(), &verified, done)? | store.bring_home(done)?;
        if !moved && !mend(disk.as_ref(), &verified, done)? {
            break;
        }
    }
    drop(lock);
    reopen(dir, &disk, clock, done)
}

fn needs_catalog(verified: &Verified) -> bool {
    let mut findings = verified.findings.iter();
    findings.any(|finding| finding.remedy == Remedy::Catalog)
}

/// Opens and stops the store; nothing that is kept goes meanwhile, and nothing is delivered.
fn reopen(
    dir: &Path,
    disk: &Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    done: &mut dyn FnMut(&Step),
) -> Result<Vec<String>, RepairError> {
    let reserve = disk.len(&dir.join("reserve"));
    let options = Options {
        min_free: Some(0),
        reserve_bytes: reserve.unwrap_or(Options::default().reserve_bytes),
        retention: Duration::MAX,
        retention_bytes: u64::MAX,
        compaction_gain: u64::MAX,
        ..Options::default()
    };
    let (store, recovery) = Store::open(dir, options, clock)?;
    store.stop();
    done(&Step::Reopen);
    Ok(recovery.findings)
}

/// Puts aside what has to be; whether there was anything.
fn mend(
    disk: &dyn Disk,
    verified: &Verified,
    done: &mut dyn FnMut(&Step),
) -> Result<bool, RepairError> {
    let mut any = false;
    for finding in &verified.findings {
        match &finding.remedy {
            Remedy::PutAside(paths) => {
                for path in paths {
                    any |= put_aside(disk, path, done)?;
                }
            }
            Remedy::Salvage { database, index } => {
                step(database, copy_database_aside(disk, database))?;
                done(&Step::KeepCopy(database.clone()));
                any |= put_aside(disk, index, done)?;
            }
            Remedy::Move { .. }
            | Remedy::Nothing
            | Remedy::Start
            | Remedy::Catalog
            | Remedy::Restore => {}
        }
    }
    Ok(any)
}

/// Puts aside what lies in the place of another; whether there was anything. `bring_home` does the rest.
fn clear_places(
    disk: &dyn Disk,
    verified: &Verified,
    done: &mut dyn FnMut(&Step),
) -> Result<bool, RepairError> {
    let mut any = false;
    for finding in &verified.findings {
        if let Remedy::Move { from, .. } = &finding.remedy {
            any |= put_aside(disk, from, done)?;
        }
    }
    Ok(any)
}

fn put_aside(
    disk: &dyn Disk,
    path: &Path,
    done: &mut dyn FnMut(&Step),
) -> Result<bool, RepairError> {
    if !step(path, disk.exists(path))? {
        return Ok(false);
    }
    match path.extension().is_some_and(|ending| ending == "db") {
        true => step(path, quarantine_database(disk, path))?,
        false => step(path, quarantine(disk, path))?,
    };
    done(&Step::PutAside(path.to_owned()));
    Ok(true)
}

fn step<T>(path: &Path, result: std::io::Result<T>) -> Result<T, RepairError> {
    result.map_err(|error| RepairError::Step {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

impl StoppedStore {
    /// Moves whole segments that were put aside, and that an index file or a mark misses, back to their places;
    /// whether there was any. Reads the directories anew: files were put aside a moment ago.
    fn bring_home(&self, done: &mut dyn FnMut(&Step)) -> Result<bool, RepairError> {
        let store = Self::look(&self.dir, Arc::clone(&self.disk), None)?;
        let disk = store.disk.as_ref();
        let shards = store.read_shards()?;
        let mut any = false;
        for from in store
            .shards
            .iter()
            .flat_map(super::files::ShardFiles::aside)
        {
            let Ok(database) = Database::open(&from) else {
                continue;
            };
            let identity = database.identity;
            let home = shards.iter().find(|shard| {
                shard.files.generation.0 == identity.generation
                    && shard.files.shard.0 == identity.shard
            });
            let Some(home) = home.filter(|_| store.hash_seed == Some(database.seed)) else {
                continue;
            };
            let index = Index::open(disk, home.files, identity.number);
            let marked = home.mark.as_ref().ok().and_then(|mark| mark.as_ref());
            let is_missed = index.sealed_at(identity).is_some()
                || (matches!(index, Index::Absent)
                    && marked.is_some_and(|mark| mark.reach(identity.number).is_some()));
            let to = database_path(&home.files.dir, identity.number);
            let is_free =
                !home.files.has(Kind::Segment(identity.number)) && !step(&to, disk.exists(&to))?;
            let (damaged, error) = database.rows(|_| {});
            let is_whole = damaged.is_empty() && error.is_none();
            drop(database);
            if is_missed && is_free && is_whole {
                // The log first: a database without it would seem to be another one.
                for suffix in DATABASE_SUFFIXES {
                    let part = with_suffix(&from, suffix);
                    if step(&part, disk.exists(&part))? {
                        step(&part, move_durably(disk, &part, &with_suffix(&to, suffix)))?;
                    }
                }
                step(&from, move_durably(disk, &from, &to))?;
                done(&Step::MoveBack { from, to });
                any = true;
            }
        }
        Ok(any)
    }

    /// What a new catalogue is made of.
    fn rebuilt(&self, verified: &Verified, names: &Names) -> Result<Rebuilt, RepairError> {
        let hash_seed = self.hash_seed.ok_or(RepairError::NoSeed)?;
        let mut generations: BTreeMap<Generation, u16> = BTreeMap::new();
        for files in &self.shards {
            let shards = generations.entry(files.generation).or_default();
            *shards = (*shards).max(files.shard.0 + 1);
        }
        let known = self.catalog.iter().filter(|_| !self.has_foreign_catalog);
        let known = known.flat_map(|catalog| &catalog.destinations);
        let mut destinations: Names = known.map(|one| (one.id, one.name.clone())).collect();
        destinations.extend(names.iter().map(|(id, name)| (*id, name.clone())));
        let used = verified
            .accounts
            .iter()
            .map(|(destination, _)| *destination);
        let unnamed: Vec<DestinationId> =
            used.filter(|id| !destinations.contains_key(id)).collect();
        match unnamed.is_empty() {
            true => Ok(Rebuilt {
                hash_seed,
                generations: generations.into_iter().collect(),
                destinations: destinations.into_iter().collect(),
            }),
            false => Err(RepairError::Unnamed(unnamed)),
        }
    }

    /// Puts the old catalogue aside, with its log also where that is all that is left, and a new one in place.
    fn make_catalog(
        &self,
        rebuilt: &Rebuilt,
        clock: &dyn Clock,
        done: &mut dyn FnMut(&Step),
    ) -> Result<(), RepairError> {
        let (disk, path) = (self.disk.as_ref(), self.dir.join("catalog.db"));
        put_aside(disk, &path, done)?;
        for suffix in DATABASE_SUFFIXES {
            put_aside(disk, &with_suffix(&path, suffix), done)?;
        }
        let made = rebuilt.write(&self.dir, disk, clock.now());
        made.map_err(|error: CatalogError| RepairError::Step {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        done(&Step::MakeCatalog(path));
        Ok(())
    }
}

/// Renames into another directory, durably in both.
fn move_durably(disk: &dyn Disk, from: &Path, to: &Path) -> std::io::Result<()> {
    disk.rename(from, to)?;
    for path in [from, to] {
        disk.sync_directory(path.parent().unwrap_or(Path::new(".")))?;
    }
    Ok(())
}
