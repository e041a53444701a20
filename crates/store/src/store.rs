//! The store's face: opens a data directory, takes events, finds them again, hands out lanes.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use wayhold_model::{Clock, DestinationId, LaneId, Position, StoredEvent, hash};

use crate::backlog::BacklogMeter;
use crate::caretaker;
use crate::catalog::{Catalog, CatalogError};
use crate::commands::{self, Commands, CommandsOptions, MoveAfter};
use crate::connection::ConnectionError;
use crate::delivery::{AttemptRecord, DeliveryState, LaneTotals};
use crate::disk::{Disk, SystemDisk};
use crate::error::{OpenError, ReadError};
use crate::figures::{Figures, Found, Health, Recovery};
use crate::lane::Lane;
use crate::opening::{Ground, Opened, lock_directory, unusable};
use crate::options::Options;
use crate::progress::{DeadLetters, EventSource, LetterError, NotDurable, ProgressSource};
use crate::reshard::Changing;
use crate::scan::{Scan, ScanOrder, ScanPlace, TimeRange};
use crate::shard::core::{Bells, Shard};
use crate::shard::open::Threads;
use crate::shard::restore::reach;
use crate::shards::Shards;
use crate::space::Space;
use crate::spread::Takers;
use crate::window::Window;

/// The embedded durable store; a cheap handle. `stop` ends it cleanly; without it the next start
/// recovers.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) shards: Arc<Shards>,
    /// The shards that take new events.
    pub(crate) takers: ArcSwap<Takers>,
    /// What those of a later generation are opened with too.
    pub(crate) ground: Ground,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) space: Arc<Space>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Held while a backup is made.
    pub(crate) backing_up: Mutex<()>,
    /// Ids of all shards.
    pub(crate) window: Arc<Window>,
    pub(crate) stopping: AtomicBool,
    dead_letters: DeadLetters,
    /// Opened with the store where it has some, else by whoever needs them first.
    commands: Mutex<Option<Commands>>,
    /// Threads of shards that are not drained.
    pub(crate) threads: Mutex<Vec<(Arc<Shard>, Threads)>>,
    /// Held while the map of shards changes, and by whoever stops.
    pub(crate) changing: Mutex<Changing>,
    /// Held by the caretaker while it works.
    caring: Mutex<()>,
    /// Held while the store is open.
    lock: Mutex<Option<File>>,
}

/// The catalogue of a stopped store, locked.
#[derive(Debug)]
pub struct CatalogAlone {
    /// The catalogue.
    pub catalog: Arc<Catalog>,
    _lock: File,
}

impl Drop for CatalogAlone {
    fn drop(&mut self) {
        self.catalog.stop();
    }
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
        Self::open_on(dir, options, clock, Arc::new(SystemDisk))
    }

    /// Opens the catalogue alone, with the directory's lock, and touches no shard: for what works on a
    /// stopped store. The directory is made where it is absent. Blocking.
    ///
    /// # Errors
    /// As of `open`.
    pub fn catalog_alone(dir: &Path, clock: Arc<dyn Clock>) -> Result<CatalogAlone, OpenError> {
        let disk = SystemDisk;
        let lock = lock_directory(dir, &disk)?;
        // The first start says how many shards there are.
        let catalog = Catalog::open(dir, &disk, clock, 1);
        Ok(CatalogAlone {
            catalog: Arc::new(catalog.map_err(|error| catalog_error(dir, error))?),
            _lock: lock,
        })
    }

    /// The same with another file access, for fault injection.
    ///
    /// # Errors
    /// As of `open`.
    pub fn open_on(
        dir: &Path,
        options: Options,
        clock: Arc<dyn Clock>,
        disk: Arc<dyn Disk>,
    ) -> Result<(Self, Recovery), OpenError> {
        let started = Instant::now();
        let lock = lock_directory(dir, disk.as_ref())?;
        failpoint!("open.locked");
        let space = Arc::new(Space::open(
            Arc::clone(&disk),
            dir.join("reserve"),
            options.reserve_bytes,
            options.min_free_bytes(),
        ));
        let catalog = Arc::new(
            Catalog::open_through(
                options.vfs.as_deref(),
                dir,
                disk.as_ref(),
                Arc::clone(&clock),
                options.shards,
            )
            .map_err(|error| catalog_error(dir, error))?,
        );
        failpoint!("open.catalogue-opened");
        if let Some(newest) = catalog.generations().last() {
            space.ask_for(options.min_free_of(newest.shards));
        }
        let bells = Arc::new(Bells::default());
        let window = Arc::new(Window::new(reach(&options, &catalog.generations())));
        let ground = Ground {
            dir: dir.to_owned(),
            options,
            disk,
            clock: Arc::clone(&clock),
            space: Arc::clone(&space),
            catalog: Arc::clone(&catalog),
            bells,
            window: Arc::clone(&window),
            letters: Arc::default(),
        };
        let Opened {
            map,
            takers,
            threads,
            mut recovery,
        } = ground.open()?;
        failpoint!("open.shards-opened");
        recovery.took = started.elapsed();
        let shards = Arc::new(Shards::new(map));
        let inner = Arc::new(Inner {
            dead_letters: DeadLetters::new(
                progress_of(Arc::clone(&shards)),
                Arc::clone(&catalog),
                events_of(Arc::clone(&shards)),
            ),
            shards,
            takers: ArcSwap::from_pointee(takers),
            ground,
            catalog,
            space,
            clock,
            backing_up: Mutex::default(),
            window,
            stopping: AtomicBool::new(false),
            commands: Mutex::default(),
            threads: Mutex::new(threads),
            changing: Mutex::default(),
            caring: Mutex::default(),
            lock: Mutex::new(Some(lock)),
        });
        caretaker::start(&inner).map_err(|error| unusable(dir, error))?;
        let store = Self { inner };
        let ground = &store.inner.ground;
        if commands::exists(dir, ground.disk.as_ref()).map_err(|error| unusable(dir, error))? {
            store.commands()?;
        }
        Ok((store, recovery))
    }

    /// The seed of every hash that reaches the disk.
    pub fn hash_seed(&self) -> u64 {
        self.inner.catalog.hash_seed()
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// How many shards take new events.
    pub fn shards(&self) -> usize {
        self.inner.takers.load().0.len()
    }

    /// Looks an event up by identity; may read the disk.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn find(&self, source: &str, id: &str) -> Result<Option<Found>, ReadError> {
        let id_hash = hash::id_hash_of(source, id, self.hash_seed());
        match self.inner.newest_of(id_hash) {
            Some(known) => self.event(known.position),
            None => Ok(None),
        }
    }

    /// Looks an event up by position; may read the disk.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn event(&self, position: Position) -> Result<Option<Found>, ReadError> {
        match self.inner.shards.map().of(position) {
            Some(shard) => shard.found(position.sequence.0),
            None => Ok(None),
        }
    }

    /// Reads the events of a time that are still held, from the beginning or from where another scan of the same
    /// order and range had come to.
    pub fn scan(&self, order: ScanOrder, range: TimeRange, place: Option<ScanPlace>) -> Scan {
        Scan::new(Arc::clone(&self.inner.shards), order, range, place)
    }

    /// Whether everything that was accepted in a time is still held; `false` also where nobody can tell any more.
    pub fn holds_all(&self, range: TimeRange) -> bool {
        let map = self.inner.shards.map();
        // What generations that are retired held is gone.
        let begun = self.inner.catalog.generations();
        let begun = begun.first().filter(|first| first.generation.0 > 1);
        begun.is_none_or(|first| first.since <= range.from)
            && map.all().all(|shard| shard.holds_all(range))
    }

    /// Whether an event's own delivery to a destination is not resolved yet.
    pub fn owes(&self, event: &StoredEvent, destination: DestinationId) -> bool {
        let position = event.position;
        let map = self.inner.shards.map();
        let (Some(shard), Some(lane)) = (map.of(position), self.inner.lane_of(destination)) else {
            return false;
        };
        let is_resolved = || {
            shard
                .progress
                .view(lane, |view| view.is_resolved(position.sequence))
        };
        event.destinations.contains(destination) && !is_resolved()
    }

    /// Keeps a delivery that a replay gave up as a dead letter, beside every account; durable within 25 ms.
    pub fn give_up_replayed(
        &self,
        replay: u64,
        destination: DestinationId,
        event: &Arc<StoredEvent>,
        last: AttemptRecord,
    ) {
        if let Some(shard) = self.inner.shards.map().of(event.position) {
            let lane = LaneId::of_replay(replay);
            shard
                .progress
                .give_up_replayed(lane, destination, event, last);
        }
    }

    /// Waits until all progress and letters recorded before are synced. Blocking.
    ///
    /// # Errors
    /// The store stopped, or the disk takes nothing.
    pub fn durable(&self) -> Result<(), NotDurable> {
        let map = self.inner.shards.map();
        map.all()
            .try_for_each(|shard| shard.progress.durable_soon())
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
        let map = self.inner.shards.map();
        let shard = map.of(position);
        match (shard, self.inner.lane_of(destination)) {
            (Some(shard), Some(lane)) => shard.progress.delivery_state(lane, position.sequence),
            _ => Ok(DeliveryState::Pending),
        }
    }

    /// The reader of a destination's lane; taken once per destination. `None` for a destination that
    /// the catalogue does not know.
    pub fn lane(&self, destination: DestinationId) -> Option<Lane> {
        let id = self.inner.lane_of(destination)?;
        let bell = self.inner.ground.bells.of(destination);
        Some(Lane::new(&self.inner.shards, id, destination, bell))
    }

    /// Counts of one destination's lane, from three sources that know nothing of each other: index
    /// files count what was accepted, bitmaps what is pending, settlements how it ended.
    pub fn totals(&self, destination: DestinationId) -> LaneTotals {
        let Some(lane) = self.inner.lane_of(destination) else {
            return LaneTotals::default();
        };
        let map = self.inner.shards.map();
        map.all()
            .map(|shard| shard.totals(lane, destination))
            .fold(map.retired(lane), LaneTotals::plus)
    }

    /// What measures how much is pending, for limits on it, and how old it is, where somebody asks.
    pub fn backlog_meter(&self, ages: bool) -> BacklogMeter {
        BacklogMeter::new(self.clone(), ages)
    }

    /// Destinations, tokens, audit trail, node.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.inner.catalog
    }

    /// Whether there ever were commands: asking for them otherwise makes their file.
    pub fn has_commands(&self) -> bool {
        self.inner.commands().is_some()
    }

    /// Commands by state; `None` where there never were any.
    pub fn command_counts(&self) -> Option<commands::Counts> {
        self.inner.commands().as_ref().map(Commands::counts)
    }

    /// Commands and their ledger; makes the file where there is none yet. Blocking.
    ///
    /// # Errors
    /// The file was written by a newer version, or cannot be used.
    pub fn commands(&self) -> Result<Commands, OpenError> {
        let mut commands = self.inner.commands();
        if let Some(commands) = commands.as_ref() {
            return Ok(commands.clone());
        }
        let ground = &self.inner.ground;
        let space = Arc::clone(&self.inner.space);
        let opened = Commands::open(CommandsOptions {
            directory: ground.dir.clone(),
            vfs: ground.options.vfs.clone(),
            disk: Arc::clone(&ground.disk),
            clock: Arc::clone(&self.inner.clock),
            move_after: MoveAfter {
                pages: ground.options.commands_log_pages,
                groups: ground.options.commands_log_groups,
            },
            on_no_space: Arc::new(move || space.exhausted()),
        });
        let path = ground.dir.join(commands::FILE);
        let opened = opened.map_err(|error| match error {
            ConnectionError::Newer { found, known } => OpenError::Newer {
                file: path,
                found,
                known,
            },
            error => unusable(&path, error),
        })?;
        Ok(commands.insert(opened).clone())
    }

    /// Commands and their ledger, where there ever were some.
    pub fn commands_if_any(&self) -> Option<Commands> {
        self.inner.commands().clone()
    }

    /// Deliveries that were given up.
    pub fn dead_letters(&self) -> &DeadLetters {
        &self.inner.dead_letters
    }

    /// Whether the volume has room for what is new; what was accepted goes on without.
    pub fn has_room(&self) -> bool {
        !self.inner.space.is_low()
    }

    /// Whether it can durably accept, and what is not as it should be. While one shard still accepts,
    /// the store does: the others are named as findings, and refuse what belongs to them.
    pub fn health(&self) -> Health {
        let shards = self.inner.shards.map();
        let mut stuck: Vec<String> = Vec::new();
        for shard in shards.newest() {
            let reason = shard.condition.unavailable();
            stuck.extend(reason.map(|reason| shards.named(shard, reason)));
        }
        let mut degraded = Vec::new();
        for shard in shards.all() {
            let findings = shard.condition.findings().into_iter();
            let findings = findings.chain(shard.progress.health());
            degraded.extend(findings.map(|finding| shards.named(shard, finding)));
        }
        degraded.extend(self.inner.catalog.closed());
        if let Some(reason) = self.inner.commands().as_ref().and_then(Commands::closed) {
            degraded.push(format!("commands take no changes: {reason}"));
        }
        let unavailable = match self.inner.unavailable() {
            Some(reason) => Some(reason),
            None if stuck.len() == shards.newest().len() => Some(stuck.join("; ")),
            None => {
                degraded.extend(stuck.into_iter().map(|one| format!("{one}: its keys wait")));
                None
            }
        };
        Health {
            unavailable,
            degraded,
        }
    }

    /// Sizes and counts for metrics and status.
    pub fn figures(&self) -> Figures {
        let map = self.inner.shards.map();
        let shards = map.all().map(|shard| shard.figures());
        let mut figures = shards.fold(Figures::default(), Figures::plus);
        let takers = self.inner.takers.load();
        let queued = takers.0.iter().map(|taker| taker.queue.queued() as u64);
        figures.queued_bytes = queued.sum();
        figures.shards = takers.0.len() as u64;
        figures.reserve_bytes = self.inner.space.reserve_bytes();
        figures.disk_free_bytes = self.inner.space.free();
        (figures.window_ids, figures.window_reach) = self.inner.remembered();
        let catalog = ["catalog.db", "catalog.db-wal"].map(|name| self.inner.ground.dir.join(name));
        figures.state_bytes += catalog.iter().map(|path| file_bytes(path)).sum::<u64>();
        figures.state_bytes += self.inner.commands().as_ref().map_or(0, Commands::bytes);
        figures
    }

    /// Commits what is queued, syncs mark and progress, releases the lock. Blocking; a second call does
    /// nothing.
    pub fn stop(&self) {
        if self.inner.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        // It sees that the store stops before it does anything more.
        drop(self.inner.caring());
        let mut changing = self.inner.changing();
        changing.stop();
        self.inner.takers.load().stop();
        drop(changing);
        let map = self.inner.shards.map();
        let mut threads = std::mem::take(&mut *self.inner.threads());
        std::thread::scope(|scope| {
            for (shard, threads) in &mut threads {
                scope.spawn(|| threads.join(shard));
            }
        });
        std::thread::scope(|scope| {
            for shard in map.all() {
                scope.spawn(|| shard.progress.stop());
            }
        });
        failpoint!("stop.shards-stopped");
        if let Some(commands) = self.inner.commands().as_ref() {
            commands.stop();
        }
        self.inner.catalog.stop();
        failpoint!("stop.before-unlocking");
        self.inner
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}

impl Inner {
    pub(crate) fn changing(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn commands(&self) -> MutexGuard<'_, Option<Commands>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn caring(&self) -> MutexGuard<'_, ()> {
        self.caring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn threads(&self) -> MutexGuard<'_, Vec<(Arc<Shard>, Threads)>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane_of(&self, destination: DestinationId) -> Option<LaneId> {
        let record = self.catalog.destination(destination);
        record.map(|record| record.lane)
    }

    /// Why nothing can be accepted in any shard.
    fn unavailable(&self) -> Option<String> {
        if self.stopping.load(Ordering::Acquire) {
            Some("the store is stopping".to_owned())
        } else if self.space.is_low() {
            let stopped_for = self.space.stopped_for().unwrap_or_default();
            Some(format!(
                "the disk has {} free bytes; accepting needs {}, begins again at {}, and has stopped since {}",
                self.space.free(),
                self.space.min_free(),
                self.space.mark(),
                self.clock.now().before(stopped_for),
            ))
        } else {
            None
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Threads end with the store also when nobody stopped it; what they hold is durable already.
        self.takers.load().stop();
    }
}

/// Reads events for the letters that refer to them.
fn progress_of(shards: Arc<Shards>) -> Arc<ProgressSource> {
    Arc::new(move || {
        let map = shards.now();
        map.all().map(|shard| shard.progress.clone()).collect()
    })
}

fn events_of(shards: Arc<Shards>) -> Arc<EventSource> {
    Arc::new(move |position| {
        let map = shards.map();
        map.of(position)?.event(position.sequence.0).ok()?
    })
}

fn catalog_error(dir: &Path, error: CatalogError) -> OpenError {
    match error {
        CatalogError::Newer { path, found, known } => OpenError::Newer {
            file: path,
            found,
            known,
        },
        error => OpenError::Unusable {
            path: dir.join("catalog.db"),
            reason: error.to_string(),
        },
    }
}

fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}
