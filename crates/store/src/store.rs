//! The store's face: opens a data directory, takes events, finds them again, hands out lanes.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Semaphore;
use wayhold_model::{Clock, DestinationId, Generation, Position, ShardId, hash};

use crate::catalog::{Catalog, CatalogError};
use crate::delivery::{DeliveryState, LaneTotals};
use crate::disk::{Disk, SystemDisk};
use crate::error::{OpenError, ReadError};
use crate::figures::{Figures, Found, Health, Recovery};
use crate::lane::Lane;
use crate::options::Options;
use crate::progress::{DeadLetters, LetterError};
use crate::shard::core::{Held, Shard};
use crate::shard::index_file::IndexError;
use crate::shard::open::{Running, Surroundings, Threads};
use crate::shard::restore::restore_window;
use crate::shard::writer::Order;
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
    /// Ids of all shards.
    pub(crate) window: Arc<Window>,
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
        let space = Arc::new(Space::open(
            Arc::clone(&disk),
            dir.join("reserve"),
            options.reserve_bytes,
            options.min_free_bytes(),
        ));
        let catalog = Arc::new(
            Catalog::open(dir, disk.as_ref(), Arc::clone(&clock))
                .map_err(|error| catalog_error(dir, &error))?,
        );
        let shard_dir = make_shard_directory(dir, disk.as_ref())?;
        let room = Arc::new(Semaphore::new(options.queue_bytes));
        let window = Arc::new(Window::new(options.window_ids));
        let surroundings = Surroundings {
            generation: Generation(1),
            id: ShardId(0),
            dir: shard_dir,
            options,
            disk,
            clock,
            space,
            catalog: Arc::clone(&catalog),
            window: Arc::clone(&window),
        };
        let recovering = surroundings.open()?;
        restore_window(std::slice::from_ref(&recovering.shard));
        let Running {
            shard,
            orders,
            threads,
            mut recovery,
        } = recovering.start()?;
        recovery.took = started.elapsed();
        let dead_letters = DeadLetters::new(shard.progress.clone(), catalog);
        let inner = Inner {
            shard,
            window,
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
        if let Some(known) = shard.confirm(id_hash, &self.inner.window.candidates(id_hash))? {
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
        let unreadable = |error: IndexError| ReadError::Failed {
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
        let threads = &self.inner.threads;
        let mut threads = threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.join(&self.inner.shard);
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
        let threads = &mut self.threads;
        threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .let_go();
    }
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
