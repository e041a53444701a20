//! The store's face: opens a data directory, takes events, finds them again, hands out lanes.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use wayhold_model::{Clock, DestinationId, Generation, Position, ShardId, hash};

use crate::catalog::{Catalog, CatalogError};
use crate::delivery::{DeliveryState, LaneTotals};
use crate::disk::{Disk, SystemDisk};
use crate::error::{OpenError, ReadError};
use crate::figures::{Figures, Found, Health, Recovery};
use crate::lane::Lane;
use crate::options::Options;
use crate::progress::{DeadLetters, LetterError, Progress, ProgressOptions};
use crate::shard::core::{Bells, Commits, Condition, Gate, Held, Shard};
use crate::shard::preparer::{self, Recipe};
use crate::shard::recovery::{self, Opening};
use crate::shard::tail::Tail;
use crate::shard::writer::{Order, Writer};
use crate::shard::{keeper, readers::Readers};
use crate::space::Space;
use crate::window::Window;

/// The embedded durable store; a cheap handle. `stop` ends it cleanly; without it the next start
/// recovers.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) shard: Arc<Shard>,
    pub(crate) orders: Sender<Order>,
    /// Bytes of events that may still be queued for a commit.
    pub(crate) room: Arc<Semaphore>,
    pub(crate) stopping: AtomicBool,
    dir: PathBuf,
    dead_letters: DeadLetters,
    threads: Mutex<Threads>,
    /// Held while the store is open.
    lock: Mutex<Option<File>>,
}

struct Threads {
    writer: Option<JoinHandle<()>>,
    helpers: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Store {
    /// Opens the store in `dir`, or makes it. Blocking.
    ///
    /// # Errors
    /// Another process has it, it was written by a newer version, or files cannot be used.
    pub fn open(
        dir: &Path,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Recovery), OpenError> {
        let started = Instant::now();
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
        let lock = lock_directory(dir, disk.as_ref())?;
        let catalog = Arc::new(
            Catalog::open(dir, disk.as_ref(), Arc::clone(&clock))
                .map_err(|error| catalog_error(dir, &error))?,
        );
        let shard_dir = make_shard_directory(dir, disk.as_ref())?;
        let space = Arc::new(Space::open(
            Arc::clone(&disk),
            dir.join("reserve"),
            options.reserve_bytes,
            options.min_free_bytes(),
        ));
        let room = Arc::new(Semaphore::new(options.queue_bytes));
        let settings = Settings {
            options,
            disk,
            clock,
            space,
        };
        let (shard, orders, threads, mut recovery) = open_shard(shard_dir, &catalog, settings)?;
        recovery.took = started.elapsed();
        let dead_letters = DeadLetters::new(shard.progress.clone(), catalog);
        let inner = Inner {
            shard,
            orders,
            room,
            stopping: AtomicBool::new(false),
            dir: dir.to_owned(),
            dead_letters,
            threads: Mutex::new(threads),
            lock: Mutex::new(Some(lock)),
        };
        Ok((
            Self {
                inner: Arc::new(inner),
            },
            recovery,
        ))
    }

    /// The seed of every hash that reaches the disk.
    pub fn hash_seed(&self) -> u64 {
        self.inner.shard.hash_seed
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Looks an event up by identity; may read the disk.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn find(&self, source: &str, id: &str) -> Result<Option<Found>, ReadError> {
        let shard = &self.inner.shard;
        let id_hash = hash::id_hash_of(source, id, shard.hash_seed);
        if let Some(known) = shard.confirm(id_hash, &shard.window.candidates(id_hash))? {
            return self.found(known.sequence);
        }
        // Beyond the window, and for ids that were made here: every index is asked, newest first.
        let mut segments = shard.segments();
        segments.extend(
            shard
                .remembered
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
                .cloned(),
        );
        segments.sort_unstable_by_key(|segment| std::cmp::Reverse(segment.number()));
        for segment in segments {
            // A damaged index is named in health; the others still answer.
            if let Ok(Some(found)) = segment.find(shard.disk.as_ref(), id_hash) {
                return self.found(found.sequence);
            }
        }
        Ok(None)
    }

    /// Looks an event up by position; may read the disk.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn event(&self, position: Position) -> Result<Option<Found>, ReadError> {
        let shard = &self.inner.shard;
        if (position.generation, position.shard) != (shard.generation, shard.id) {
            return Ok(None);
        }
        self.found(position.sequence.0)
    }

    fn found(&self, sequence: u64) -> Result<Option<Found>, ReadError> {
        let shard = &self.inner.shard;
        let Some((segment, held)) = shard.segment_of(sequence) else {
            return Ok(None);
        };
        let unreadable = |error: crate::shard::index_file::IndexError| ReadError::Failed {
            file: segment.index_path.display().to_string(),
            reason: error.to_string(),
        };
        let Some(known) = segment
            .identity_at(shard.disk.as_ref(), sequence)
            .map_err(unreadable)?
        else {
            return Ok(None);
        };
        let destinations = segment
            .destinations_of(shard.disk.as_ref(), sequence)
            .map_err(unreadable)?;
        let event = match held {
            Held::Whole => shard.event(sequence)?,
            Held::IndexOnly => None,
        };
        Ok(Some(Found {
            position: shard.position(sequence),
            accepted_at: wayhold_model::Timestamp::from_micros(known.accepted_at),
            destinations: Arc::new(destinations),
            event,
        }))
    }

    /// Where one delivery stands; may read the disk.
    ///
    /// # Errors
    /// Attempts or dead letters cannot be read.
    pub fn delivery_state(
        &self,
        position: Position,
        destination: DestinationId,
    ) -> Result<DeliveryState, LetterError> {
        let shard = &self.inner.shard;
        match shard.lane_of(destination) {
            Some(lane) => shard.progress.delivery_state(lane, position.sequence),
            None => Ok(DeliveryState::Pending),
        }
    }

    /// The reader of a destination's lane; taken once per destination. `None` for a destination that
    /// the catalogue does not know.
    pub fn lane(&self, destination: DestinationId) -> Option<Lane> {
        let shard = Arc::clone(&self.inner.shard);
        let id = shard.lane_of(destination)?;
        Some(Lane::new(shard, id, destination))
    }

    /// Counts of one destination's lane, from three sources that know nothing of each other: index
    /// files count what was accepted, bitmaps what is pending, settlements how it ended.
    pub fn totals(&self, destination: DestinationId) -> LaneTotals {
        let shard = &self.inner.shard;
        let Some(lane) = shard.lane_of(destination) else {
            return LaneTotals::default();
        };
        shard.totals(lane, destination)
    }

    /// Destinations, tokens, audit trail, node.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.inner.shard.catalog
    }

    /// Deliveries that were given up.
    pub fn dead_letters(&self) -> &DeadLetters {
        &self.inner.dead_letters
    }

    /// Whether it can durably accept, and what is not as it should be.
    pub fn health(&self) -> Health {
        let shard = &self.inner.shard;
        let unavailable = if self.inner.stopping.load(Ordering::Acquire) {
            Some("the store is stopping".to_owned())
        } else if shard.space.is_low() {
            Some(format!(
                "the disk has {} free bytes; accepting needs {}",
                shard.space.free(),
                shard.options.min_free_bytes()
            ))
        } else {
            shard.condition.unavailable()
        };
        let mut degraded = shard.condition.findings();
        degraded.extend(shard.progress.health());
        degraded.extend(shard.catalog.closed());
        Health {
            unavailable,
            degraded,
        }
    }

    /// Sizes and counts for metrics and status.
    pub fn figures(&self) -> Figures {
        let mut figures = self.inner.shard.figures();
        let room = self.inner.room.available_permits();
        figures.queued_bytes = self.inner.shard.options.queue_bytes.saturating_sub(room) as u64;
        let catalog = ["catalog.db", "catalog.db-wal"].map(|name| self.inner.dir.join(name));
        figures.state_bytes += catalog.iter().map(|path| file_bytes(path)).sum::<u64>();
        figures
    }

    /// Commits what is queued, syncs mark and progress, releases the lock. Blocking; a second call does
    /// nothing.
    pub fn stop(&self) {
        if self.inner.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        // The writer may be gone already, after a panic.
        drop(self.inner.orders.send(Order::Stop));
        let mut threads = self
            .inner
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        join(threads.writer.take());
        threads.stop.store(true, Ordering::Release);
        self.inner.shard.keeper.wake();
        for helper in std::mem::take(&mut threads.helpers) {
            join(Some(helper));
        }
        self.inner.shard.progress.stop();
        self.inner.shard.catalog.stop();
        self.inner
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Threads end with the store also when nobody stopped it; what they hold is durable already.
        drop(self.orders.send(Order::Stop));
        let threads = self
            .threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        threads.stop.store(true, Ordering::Release);
    }
}

struct Settings {
    options: Options,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    space: Arc<Space>,
}

fn open_shard(
    dir: PathBuf,
    catalog: &Arc<Catalog>,
    settings: Settings,
) -> Result<(Arc<Shard>, Sender<Order>, Threads, Recovery), OpenError> {
    let Settings {
        options,
        disk,
        clock,
        space,
    } = settings;
    let (generation, id) = (Generation(1), ShardId(0));
    let hash_seed = catalog.hash_seed();
    let on_no_space = Arc::clone(&space);
    let (progress, opened) = Progress::open(ProgressOptions {
        directory: dir.clone(),
        generation,
        shard: id,
        hash_seed,
        disk: Arc::clone(&disk),
        vfs: options.vfs.clone(),
        on_no_space: Arc::new(move || on_no_space.exhausted()),
    })
    .map_err(|error| OpenError::Unusable {
        path: error.path,
        reason: error.reason,
    })?;
    let recipe = Recipe {
        disk: Arc::clone(&disk),
        dir: dir.clone(),
        generation: generation.0,
        shard: id.0,
        hash_seed,
        page_size: options.page_size,
        vfs: options.vfs.clone(),
    };
    let condition = Condition::default();
    let opening = Opening {
        recipe: &recipe,
        progress: &progress,
        condition: &condition,
        now: clock.now(),
    };
    let recovered = opening.run()?;
    let shard = Arc::new(Shard {
        generation,
        id,
        window: Arc::new(Window::new(options.window_ids)),
        tail: Tail::new(options.tail_bytes, recovered.start.next),
        newest: AtomicU64::new(recovered.start.next - 1),
        segments: RwLock::new(recovered.segments),
        remembered: RwLock::new(recovered.remembered),
        unclean: recovered.unclean,
        dir,
        options,
        disk,
        clock,
        hash_seed,
        readers: Readers::default(),
        space,
        progress,
        catalog: Arc::clone(catalog),
        bells: Bells::default(),
        condition,
        commits: Commits::default(),
        keeper: Gate::default(),
        mark_dirty: AtomicBool::new(false),
    });
    recovery::restore_window(&shard);
    shard.restore_base(&opened.saved);
    let mut lost = Vec::new();
    if opened.is_fresh && !shard.segments().is_empty() {
        lost.push(
            "no progress was found beside segments; their deliveries may be repeated".to_owned(),
        );
    }
    let recovery = Recovery {
        unclean: recovered.unclean,
        unproven: recovered.unproven,
        segments: shard.segments().len() as u64,
        findings: [shard.condition.findings(), opened.findings, lost].concat(),
        took: Duration::ZERO,
    };
    let (orders, receiver) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let io = |error: std::io::Error| OpenError::Unusable {
        path: shard.dir.clone(),
        reason: error.to_string(),
    };
    let (prepared, preparing) =
        preparer::start(recipe, recovered.next_number, Arc::clone(&stop)).map_err(io)?;
    let mark = shard.disk.overwrite(&shard.dir.join("mark")).map_err(io)?;
    let writer = Writer::new(Arc::clone(&shard), receiver, prepared, recovered.start);
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(io)
    };
    let writer = spawn("wayhold-writer", Box::new(move || writer.run()))?;
    let (kept, kept_stop) = (Arc::clone(&shard), Arc::clone(&stop));
    let keeping = spawn(
        "wayhold-keeper",
        Box::new(move || keeper::run(&kept, mark.as_ref(), &kept_stop)),
    )?;
    let (checked, checked_stop) = (Arc::clone(&shard), Arc::clone(&stop));
    let checkpointing = spawn(
        "wayhold-checkpoint",
        Box::new(move || keeper::run_checkpoints(&checked, &checked_stop)),
    )?;
    let helpers = vec![preparing, keeping, checkpointing];
    let threads = Threads {
        writer: Some(writer),
        helpers,
        stop,
    };
    Ok((shard, orders, threads, recovery))
}

/// Makes the data directory and takes its lock, which is held by a descriptor on a file that is not a
/// database.
fn lock_directory(dir: &Path, disk: &dyn Disk) -> Result<File, OpenError> {
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
    let path = dir.join("LOCK");
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let mut file = file.map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let pid = std::fs::read_to_string(&path).unwrap_or_default();
            let holder = pid
                .trim()
                .parse::<u32>()
                .map_or_else(|_| String::new(), |pid| format!(" (pid {pid})"));
            return Err(OpenError::Locked {
                dir: dir.to_owned(),
                holder,
            });
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(unusable(error)),
    }
    // For the person whose second process is refused; the lock itself is the descriptor's.
    let named = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    named.map_err(unusable)?;
    Ok(file)
}

fn make_shard_directory(dir: &Path, disk: &dyn Disk) -> Result<PathBuf, OpenError> {
    let generation = dir.join("g1");
    let shard = generation.join("s0");
    for path in [&generation, &shard] {
        disk.create_directory(path)
            .map_err(|error| OpenError::Unusable {
                path: path.clone(),
                reason: error.to_string(),
            })?;
    }
    Ok(shard)
}

fn catalog_error(dir: &Path, error: &CatalogError) -> OpenError {
    OpenError::Unusable {
        path: dir.join("catalog.db"),
        reason: error.to_string(),
    }
}

fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn join(thread: Option<JoinHandle<()>>) {
    if thread.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("a thread of the store panicked");
    }
}
