//! Opens every shard of a data directory: all at the same time, so that a restart takes no longer with
//! more of them, and none runs before every one is open.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use wayhold_model::{Clock, Generation, ShardId};

use crate::catalog::{Catalog, GenerationRecord};
use crate::disk::Disk;
use crate::error::OpenError;
use crate::figures::Recovery;
use crate::options::Options;
use crate::queue::Queue;
use crate::shard::core::Bells;
use crate::shard::mark::{self, MARK};
use crate::shard::open::{Recovering, Running, Surroundings, Threads};
use crate::shard::restore::restore_window;
use crate::shard::segment::database_path;
use crate::shard::segment_file::SegmentReader;
use crate::shards::{Name, Owner, Shards, Shared};
use crate::space::Space;
use crate::window::Window;

/// What all shards of a store are opened with.
pub(crate) struct Opening<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) options: &'a Options,
    pub(crate) disk: &'a Arc<dyn Disk>,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) space: &'a Arc<Space>,
    pub(crate) catalog: &'a Arc<Catalog>,
    pub(crate) bells: &'a Arc<Bells>,
    pub(crate) window: &'a Arc<Window>,
}

/// Shards that run.
pub(crate) struct Opened {
    pub(crate) shards: Shards,
    /// Queues of the shards that take new events, by number.
    pub(crate) queues: Vec<Queue>,
    pub(crate) threads: Vec<Threads>,
    pub(crate) recovery: Recovery,
}

impl Opening<'_> {
    /// Opens all shards and starts their threads. Blocking.
    pub(crate) fn open(self) -> Result<Opened, OpenError> {
        let generations = self.catalog.generations();
        let newest = self.newest(&generations)?;
        self.require_own_shards(&generations)?;
        let directories = self.make_directories(&generations)?;
        let letters = Arc::default();
        let mut options = self.options.share(newest.shards);
        // Shards of older generations keep what they have until its time is over, also out of this.
        let all = generations.iter().map(|one| u64::from(one.shards));
        options.retention_bytes = self.options.retention_bytes / all.sum::<u64>().max(1);
        let surroundings = directories.into_iter().map(|(name, dir)| Surroundings {
            generation: name.0,
            id: name.1,
            dir,
            options: options.clone(),
            disk: Arc::clone(self.disk),
            clock: Arc::clone(self.clock),
            space: Arc::clone(self.space),
            catalog: Arc::clone(self.catalog),
            window: Arc::clone(self.window),
            bells: Arc::clone(self.bells),
            letters: Arc::clone(&letters),
        });
        // A failure ends what was opened without a trace: nothing of it ran, and no mark says otherwise.
        let recovering = open_all(surroundings)?;
        for one in generations.iter().filter(|one| !one.made) {
            let made = self.catalog.generation_is_made(one.generation);
            made.map_err(|error| unusable(&self.dir.join("catalog.db"), error))?;
        }
        let shards: Vec<_> = recovering
            .iter()
            .map(|one| Arc::clone(&one.shard))
            .collect();
        restore_window(self.window, &shards);
        Opened::start(recovering, newest.generation)
    }

    fn newest(&self, generations: &[GenerationRecord]) -> Result<GenerationRecord, OpenError> {
        generations
            .last()
            .filter(|_| generations.iter().all(|one| one.shards > 0))
            .copied()
            .ok_or_else(|| unusable(&self.dir.join("catalog.db"), "it names no shards"))
    }

    /// Refuses a catalogue that was put into the place of another one, before anything is changed: by its hash
    /// seed every file of the shards would seem to be a stranger's. Where every mark says so, the newest
    /// segments are asked as well, since a mark can be in the wrong place too.
    fn require_own_shards(&self, generations: &[GenerationRecord]) -> Result<(), OpenError> {
        let seed = self.catalog.hash_seed();
        let (mut foreign, mut newest) = (false, Vec::new());
        for one in generations {
            for shard in (0..one.shards).map(ShardId) {
                let dir = shard_directory(self.dir, one.generation, shard);
                let mark = dir.join(MARK);
                if !self.exists(&mark)? {
                    continue;
                }
                let bytes = self.disk.read(&mark);
                let owner = mark::owner(&bytes.map_err(|error| unusable(&mark, error))?);
                match owner {
                    Some(owner) if owner.node == Owner::new(one.generation, shard, seed).node => {
                        return Ok(());
                    }
                    Some(_) => foreign = true,
                    None => {}
                }
                newest.extend(self.newest_segments(&dir)?);
            }
        }
        let seeds: Vec<u64> = match foreign {
            true => newest.iter().filter_map(|path| seed_of(path)).collect(),
            false => Vec::new(),
        };
        match seeds.is_empty() || seeds.contains(&seed) {
            true => Ok(()),
            false => Err(unusable(&self.dir.join("catalog.db"), FOREIGN)),
        }
    }

    /// The databases of the newest two segments of a shard: the active one and the prepared one.
    fn newest_segments(&self, dir: &Path) -> Result<Vec<PathBuf>, OpenError> {
        let names = self.disk.list(dir).map_err(|error| unusable(dir, error))?;
        let numbers = names.iter().filter_map(|name| {
            let number = name.to_str()?.strip_suffix(".db")?;
            number.parse::<u64>().ok()
        });
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        let newest = numbers.into_iter().rev().take(2);
        Ok(newest.map(|number| database_path(dir, number)).collect())
    }

    /// Makes what is missing, all before anything is written into any: where one is missing of a generation
    /// that was made and another was used, somebody took it away, and whatever it held with it.
    fn make_directories(
        &self,
        generations: &[GenerationRecord],
    ) -> Result<Vec<(Name, PathBuf)>, OpenError> {
        let mut directories = Vec::new();
        for one in generations {
            let shards = (0..one.shards).map(ShardId);
            directories.extend(shards.map(|id| {
                let dir = shard_directory(self.dir, one.generation, id);
                (Name(one.generation, id), dir, one.made)
            }));
        }
        let mut missing = None;
        let mut is_used = false;
        for (_, dir, was_made) in &directories {
            match self.exists(dir)? {
                true => is_used |= self.exists(&dir.join(MARK))?,
                false => missing = missing.or(Some(dir).filter(|_| *was_made)),
            }
        }
        if let Some(missing) = missing.filter(|_| is_used) {
            return Err(unusable(missing, MISSING));
        }
        for (_, dir, _) in &directories {
            for path in dir.parent().into_iter().chain([dir.as_path()]) {
                let made = self.disk.create_directory(path);
                made.map_err(|error| unusable(path, error))?;
            }
        }
        let directories = directories.into_iter();
        Ok(directories.map(|(name, dir, _)| (name, dir)).collect())
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenError> {
        let exists = self.disk.exists(path);
        exists.map_err(|error| unusable(path, error))
    }
}

/// Where the files of a shard lie.
pub(crate) fn shard_directory(data: &Path, generation: Generation, shard: ShardId) -> PathBuf {
    data.join(format!("g{}", generation.0))
        .join(format!("s{}", shard.0))
}

/// The hash seed of the node that wrote a segment.
fn seed_of(path: &Path) -> Option<u64> {
    Some(SegmentReader::examine(path).ok()?.2)
}

/// Why a catalogue is not taken.
const FOREIGN: &str = "belongs to another data directory; nothing was changed. Put the right one back, or let \
                       `wayhold store repair` make one from the shards";

/// Why a shard's directory is not simply made again.
const MISSING: &str = "is missing although other shards were used; restore it, or make an empty \
                       directory to go on without whatever it held";

fn unusable(path: &Path, reason: impl std::fmt::Display) -> OpenError {
    OpenError::Unusable {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// Opens each in a thread of its own; the first failure, by number, is told once all have ended.
fn open_all(
    surroundings: impl Iterator<Item = Surroundings>,
) -> Result<Vec<Recovering>, OpenError> {
    std::thread::scope(|scope| {
        let opening: Vec<(PathBuf, ScopedJoinHandle<'_, _>)> = surroundings
            .map(|one| (one.dir.clone(), scope.spawn(move || one.open())))
            .collect();
        let opened: Vec<_> = opening
            .into_iter()
            .map(|(path, thread)| {
                let panicked = |_panic| Err(unusable(&path, "opening it panicked; see the log"));
                thread.join().unwrap_or_else(panicked)
            })
            .collect();
        opened.into_iter().collect()
    })
}

impl Opened {
    fn start(recovering: Vec<Recovering>, newest: Generation) -> Result<Self, OpenError> {
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        let mut generations: Vec<Shared> = Vec::new();
        let mut recovery = Recovery::default();
        let mut findings = Vec::new();
        for one in recovering {
            let started = one.start().inspect_err(|_| {
                // Those that run end: writers when their queues go, the others when they are told.
                threads.iter().for_each(Threads::let_go);
            });
            let Running {
                shard,
                orders,
                threads: started,
                recovery: told,
            } = started?;
            recovery.unclean |= told.unclean;
            recovery.unproven += told.unproven;
            recovery.segments += told.segments;
            findings.push((Arc::clone(&shard), told.findings));
            threads.push(started);
            if shard.generation == newest {
                queues.push(Queue::new(orders, shard.options.queue_bytes));
            }
            match generations.last_mut() {
                Some(last) if last.generation == shard.generation => last.shards.push(shard),
                _ => generations.push(Shared {
                    generation: shard.generation,
                    shards: vec![shard],
                }),
            }
        }
        let shards = Shards::new(generations);
        for (shard, found) in findings {
            let named = found.into_iter().map(|one| shards.named(&shard, one));
            recovery.findings.extend(named);
        }
        Ok(Self {
            shards,
            queues,
            threads,
            recovery,
        })
    }
}

/// Name of the lock's file in the data directory.
const LOCK: &str = "LOCK";

/// Makes the data directory and takes its lock, which is held by a descriptor on a file that is not a
/// database.
pub(crate) fn lock_directory(dir: &Path, disk: &dyn Disk) -> Result<File, OpenError> {
    let unusable = |error: std::io::Error| OpenError::Unusable {
        path: dir.to_owned(),
        reason: error.to_string(),
    };
    if !disk.exists(dir).map_err(unusable)? {
        std::fs::create_dir_all(dir).map_err(unusable)?;
        let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(dir, owner_only).map_err(unusable)?;
    }
    disk.create_directory(dir).map_err(unusable)?;
    let path = dir.join(LOCK);
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let mut file = file.map_err(unusable)?;
    taken(file.try_lock(), dir)?;
    // For the person whose second process is refused; the lock itself is the descriptor's.
    let named = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    named.map_err(unusable)?;
    Ok(file)
}

/// Takes the lock of a stopped store for looking at it, without changing anything: others may look at the same
/// time, and no server may start. `None` where there is no lock file.
pub(crate) fn lock_shared(dir: &Path) -> Result<Option<File>, OpenError> {
    match File::open(dir.join(LOCK)) {
        Ok(file) => {
            taken(file.try_lock_shared(), dir)?;
            Ok(Some(file))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && dir.is_dir() => Ok(None),
        Err(error) => Err(unusable(dir, error)),
    }
}

/// Names who has the lock where it was not given.
fn taken(lock: Result<(), std::fs::TryLockError>, dir: &Path) -> Result<(), OpenError> {
    match lock {
        Ok(()) => Ok(()),
        Err(std::fs::TryLockError::WouldBlock) => {
            let pid = std::fs::read_to_string(dir.join(LOCK)).unwrap_or_default();
            let holder = pid
                .trim()
                .parse::<u32>()
                .map_or_else(|_| String::new(), |pid| format!(" (pid {pid})"));
            Err(OpenError::Locked {
                dir: dir.to_owned(),
                holder,
            })
        }
        Err(std::fs::TryLockError::Error(error)) => Err(unusable(dir, error)),
    }
}
