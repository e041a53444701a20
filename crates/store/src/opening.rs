//! Opens shards: every one of a data directory, all at the same time, so that a restart takes no longer with
//! more of them, and none runs before every one is open; and those of a new generation while the others
//! run.
//!
//! The catalogue names a generation before any of its directories is made, and says that it was made before
//! it takes an event; it says that one is retired before any of its directories is removed. So whatever a
//! crash leaves is completed here.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use wayhold_model::{Clock, Generation, ShardId, Timestamp};

use crate::catalog::{Catalog, GenerationRecord};
use crate::disk::Disk;
use crate::error::OpenError;
use crate::figures::Recovery;
use crate::leftovers::remove_retired;
use crate::options::Options;
use crate::progress::LetterNumbers;
use crate::queue::Queue;
use crate::shard::core::{Bells, Shard};
use crate::shard::mark::{self, MARK};
use crate::shard::open::{Recovering, Running, Surroundings, Threads};
use crate::shard::restore::restore_window;
use crate::shard::segment::database_path;
use crate::shard::segment_file::SegmentReader;
use crate::shards::{Map, Name, Owner, Shared};
use crate::space::Space;
use crate::spread::{Taker, Takers};
use crate::window::Window;

/// What all shards of a store are opened with.
pub(crate) struct Ground {
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) space: Arc<Space>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) bells: Arc<Bells>,
    pub(crate) window: Arc<Window>,
    pub(crate) letters: Arc<LetterNumbers>,
}

/// Shards that run.
pub(crate) struct Opened {
    pub(crate) map: Map,
    pub(crate) takers: Takers,
    pub(crate) threads: Vec<(Arc<Shard>, Threads)>,
    pub(crate) recovery: Recovery,
}

/// A new generation that runs.
pub(crate) struct Begun {
    pub(crate) shared: Arc<Shared>,
    pub(crate) takers: Takers,
    pub(crate) threads: Vec<(Arc<Shard>, Threads)>,
}

impl Ground {
    /// Opens all shards and starts their threads. Blocking.
    pub(crate) fn open(&self) -> Result<Opened, OpenError> {
        let generations = self.catalog.generations();
        let newest = self.newest(&generations)?;
        self.require_own_shards(&generations)?;
        let leftovers = remove_retired(self)?;
        let directories = self.directories(&generations);
        self.make_directories(&directories)?;
        // A failure ends what was opened without a trace: nothing of it ran, and no mark says otherwise.
        let mut recovering = self.recover(&directories, newest.shards)?;
        for one in generations.iter().filter(|one| !one.made) {
            let made = self.catalog.generation_is_made(one.generation);
            made.map_err(|error| unusable(&self.dir.join("catalog.db"), error))?;
        }
        let shards: Vec<_> = recovering
            .iter()
            .map(|one| Arc::clone(&one.shard))
            .collect();
        restore_window(&self.window, &shards);
        let time = recovering.iter().map(Recovering::store_time).max();
        for one in &mut recovering {
            one.not_before(time.unwrap_or(Timestamp::EPOCH));
        }
        let mut opened = self.start(recovering, newest.generation)?;
        opened.recovery.findings.extend(leftovers);
        Ok(opened)
    }

    /// Makes all files of a new generation and starts its threads, beside those that run. On a failure
    /// nothing of it runs. Blocking.
    pub(crate) fn begin(
        &self,
        generation: Generation,
        count: u16,
        time: Timestamp,
    ) -> Result<Begun, OpenError> {
        let record = GenerationRecord {
            generation,
            shards: count,
            since: time,
            made: false,
        };
        let directories = self.directories(&[record]);
        self.make_directories(&directories)?;
        failpoint!("reshard.directories-made");
        let mut recovering = self.recover(&directories, count)?;
        for one in &mut recovering {
            one.not_before(time);
        }
        let Opened {
            map,
            takers,
            threads,
            ..
        } = self.start(recovering, generation)?;
        let shared = map.generations().first().cloned();
        let shared = shared.ok_or_else(|| unusable(&self.dir, "no shard was opened"))?;
        Ok(Begun {
            shared,
            takers,
            threads,
        })
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
                let dir = shard_directory(&self.dir, one.generation, shard);
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

    fn directories(&self, generations: &[GenerationRecord]) -> Vec<Directory> {
        let each = |one: &GenerationRecord| {
            let one = *one;
            (0..one.shards).map(ShardId).map(move |id| Directory {
                name: Name(one.generation, id),
                path: shard_directory(&self.dir, one.generation, id),
                was_made: one.made,
            })
        };
        generations.iter().flat_map(each).collect()
    }

    /// Where the shards of a generation lie.
    pub(crate) fn generation_dir(&self, generation: Generation) -> PathBuf {
        self.dir.join(format!("g{}", generation.0))
    }

    /// Makes what is missing, all before anything is written into any: where one is missing of a generation
    /// that was made and another was used, somebody took it away, and whatever it held with it.
    fn make_directories(&self, directories: &[Directory]) -> Result<(), OpenError> {
        let mut missing = None;
        let mut is_used = false;
        for Directory { path, was_made, .. } in directories {
            match self.exists(path)? {
                true => is_used |= self.exists(&path.join(MARK))?,
                false => missing = missing.or(Some(path).filter(|_| *was_made)),
            }
        }
        if let Some(missing) = missing.filter(|_| is_used) {
            return Err(unusable(missing, MISSING));
        }
        for Directory { path, .. } in directories {
            for path in path.parent().into_iter().chain([path.as_path()]) {
                let made = self.disk.create_directory(path);
                made.map_err(|error| unusable(path, error))?;
            }
        }
        Ok(())
    }

    /// Puts the files of shards in order; `sharing` of them share what is bounded for the store.
    fn recover(
        &self,
        directories: &[Directory],
        sharing: u16,
    ) -> Result<Vec<Recovering>, OpenError> {
        let options = self.options.share(sharing);
        open_all(directories.iter().map(|directory| Surroundings {
            generation: directory.name.0,
            id: directory.name.1,
            dir: directory.path.clone(),
            options: options.clone(),
            disk: Arc::clone(&self.disk),
            clock: Arc::clone(&self.clock),
            space: Arc::clone(&self.space),
            catalog: Arc::clone(&self.catalog),
            window: Arc::clone(&self.window),
            bells: Arc::clone(&self.bells),
            letters: Arc::clone(&self.letters),
        }))
    }

    fn start(&self, recovering: Vec<Recovering>, newest: Generation) -> Result<Opened, OpenError> {
        let (mut takers, mut threads) = (Vec::new(), Vec::new());
        let mut generations: Vec<Shared> = Vec::new();
        let mut recovery = Recovery::default();
        let mut findings = Vec::new();
        for one in recovering {
            // Should one fail, those that run end: writers when their queues go, the others with `threads`.
            let Running {
                shard,
                orders,
                threads: started,
                recovery: told,
            } = match one.shard.generation == newest {
                true => one.start()?,
                false => one.rest()?,
            };
            recovery.unclean |= told.unclean;
            recovery.unproven += told.unproven;
            recovery.segments += told.segments;
            findings.push((Arc::clone(&shard), told.findings));
            threads.extend(started.map(|started| (Arc::clone(&shard), started)));
            takers.extend(orders.map(|orders| Taker {
                shard: Arc::clone(&shard),
                queue: Queue::new(orders, shard.options.queue_bytes),
            }));
            match generations.last_mut() {
                Some(last) if last.generation == shard.generation => last.shards.push(shard),
                _ => generations.push(Shared {
                    generation: shard.generation,
                    shards: vec![shard],
                }),
            }
        }
        let generations = generations.into_iter().map(Arc::new).collect();
        let map = Map::new(generations, self.catalog.retired_totals());
        for (shard, found) in findings {
            let named = found.into_iter().map(|one| map.named(&shard, one));
            recovery.findings.extend(named);
        }
        Ok(Opened {
            map,
            takers: Takers(takers),
            threads,
            recovery,
        })
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

/// The directory of a shard.
struct Directory {
    name: Name,
    path: PathBuf,
    /// Whether all files of its generation were made once.
    was_made: bool,
}

/// Why a shard's directory is not simply made again.
const MISSING: &str = "is missing although other shards were used; restore it, or make an empty \
                       directory to go on without whatever it held";

pub(crate) fn unusable(path: &Path, reason: impl std::fmt::Display) -> OpenError {
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
