//! Opens a shard, then starts its threads. Between the two the store fills its idempotency window from the
//! files of all shards.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use wayhold_model::{Clock, Generation, LaneId, Sequence, ShardId, Timestamp};

use super::compactor;
use super::core::{Bells, Commits, Condition, Gate, Shard};
use super::keeper;
use super::mark::MARK;
use super::preparer::{self, Recipe};
use super::readers::Readers;
use super::recovery::{Opening, Recovered};
use super::remover;
use super::tail::Tail;
use super::writer::{self, Order, Start, Writer};
use crate::catalog::Catalog;
use crate::disk::{Disk, unlink_database};
use crate::error::OpenError;
use crate::figures::Recovery;
use crate::options::Options;
use crate::progress::{LetterNumbers, Opened, Progress, ProgressOptions};
use crate::shards::Name;
use crate::space::Space;
use crate::window::Window;

/// What a shard is opened with.
pub(crate) struct Surroundings {
    pub(crate) generation: Generation,
    pub(crate) id: ShardId,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) space: Arc<Space>,
    pub(crate) catalog: Arc<Catalog>,
    /// The store's, for all shards.
    pub(crate) window: Arc<Window>,
    /// One bell per lane of the store, whichever shard has something for it.
    pub(crate) bells: Arc<Bells>,
    /// Numbers the dead letters of all shards.
    pub(crate) letters: Arc<LetterNumbers>,
}

/// A shard whose files are in order and that takes nothing yet.
pub(crate) struct Recovering {
    pub(crate) shard: Arc<Shard>,
    start: Start,
    recipe: Recipe,
    /// Dead letters that were saved from a damaged state file.
    saved: Vec<(LaneId, Sequence)>,
    /// What progress found.
    findings: Vec<String>,
    recovery: Recovery,
}

/// A shard that runs.
pub(crate) struct Running {
    pub(crate) shard: Arc<Shard>,
    /// Where its writer takes requests from, if it has one.
    pub(crate) orders: Option<Sender<Order>>,
    pub(crate) threads: Option<Threads>,
    pub(crate) recovery: Recovery,
}

/// The threads of a shard. Should they be dropped, those beside the writer end by themselves.
#[derive(Default)]
pub(crate) struct Threads {
    writer: Option<JoinHandle<()>>,
    others: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Surroundings {
    /// Puts the files of the last run in order. Blocking.
    pub(crate) fn open(self) -> Result<Recovering, OpenError> {
        let (progress, opened) = self.open_progress()?;
        let recipe = self.recipe();
        let condition = Condition::default();
        let opening = Opening {
            recipe: &recipe,
            progress: &progress,
            condition: &condition,
            now: self.clock.now(),
        };
        let recovered = opening.run()?;
        let recovery = Recovery {
            unclean: recovered.unclean,
            unproven: recovered.unproven,
            segments: (recovered.segments.len() + recovered.retained.len()) as u64,
            findings: Vec::new(),
            took: Duration::ZERO,
        };
        // The newest segment was made just now.
        if opened.is_fresh && recovered.segments.len() + recovered.retained.len() > 1 {
            condition.degraded(
                "no state file was found beside segments; their deliveries may be repeated"
                    .to_owned(),
            );
        }
        let (shard, start) = self.shard((progress, condition), recovered);
        Ok(Recovering {
            shard,
            start,
            recipe,
            saved: opened.saved,
            findings: opened.findings,
            recovery,
        })
    }

    fn open_progress(&self) -> Result<(Progress, Opened), OpenError> {
        let space = Arc::clone(&self.space);
        Progress::open(ProgressOptions {
            directory: self.dir.clone(),
            generation: self.generation,
            shard: self.id,
            hash_seed: self.catalog.hash_seed(),
            disk: Arc::clone(&self.disk),
            vfs: self.options.vfs.clone(),
            letters: Arc::clone(&self.letters),
            on_no_space: Arc::new(move || space.exhausted()),
        })
    }

    fn recipe(&self) -> Recipe {
        Recipe {
            disk: Arc::clone(&self.disk),
            dir: self.dir.clone(),
            generation: self.generation.0,
            shard: self.id.0,
            hash_seed: self.catalog.hash_seed(),
            page_size: self.options.page_size,
            vfs: self.options.vfs.clone(),
        }
    }

    fn shard(
        self,
        (progress, condition): (Progress, Condition),
        recovered: Recovered,
    ) -> (Arc<Shard>, Start) {
        let start = recovered.start;
        // What was resolved just before the last run ended may not be recorded yet.
        let compacted = recovered.segments.iter().filter(|one| one.is_compacted());
        let compacted = Mutex::new(compacted.cloned().collect());
        let shard = Shard {
            compacted,
            generation: self.generation,
            id: self.id,
            window: self.window,
            tail: Tail::new(self.options.tail_bytes, start.next),
            newest: AtomicU64::new(start.next - 1),
            set_aside_until: AtomicU64::new(0),
            segments: RwLock::new(recovered.segments),
            retained: RwLock::new(Vec::new()),
            remembered: RwLock::new(recovered.remembered),
            exchange: Mutex::default(),
            next_number: Arc::new(AtomicU64::new(recovered.next_number)),
            closed: AtomicBool::new(false),
            // Until it is known how many share it.
            retention_bytes: AtomicU64::new(self.options.retention_bytes),
            needed_bytes: AtomicU64::new(0),
            unclean: recovered.unclean,
            hash_seed: self.catalog.hash_seed(),
            dir: self.dir,
            readers: Readers::new(self.options.readers_open),
            options: self.options,
            disk: self.disk,
            clock: self.clock,
            space: self.space,
            progress,
            catalog: self.catalog,
            bells: self.bells,
            condition,
            commits: Commits::default(),
            compactions: AtomicU64::new(0),
            compacted_bytes: AtomicU64::new(0),
            keeper: Gate::default(),
            mark_dirty: AtomicBool::new(false),
        };
        for segment in &recovered.retained {
            shard.retain_segment(segment);
        }
        // What is kept gives way, so accepting need not wait for the first round of the keeper.
        shard.space.check();
        (Arc::new(shard), start)
    }
}

impl Recovering {
    /// Store time, which goes on from here.
    pub(crate) fn store_time(&self) -> Timestamp {
        self.start.now
    }

    /// Store time never moves backwards, and no shard is behind another one that came before it.
    pub(crate) fn not_before(&mut self, time: Timestamp) {
        self.start.now = self.start.now.max(time);
    }

    /// Starts the shard's threads: from now on it takes events.
    pub(crate) fn start(self) -> Result<Running, OpenError> {
        self.run(|shard, start, recipe| {
            let threads = Threads::default();
            let (orders, threads) = threads.with_writer(shard, start, recipe)?;
            Ok((Some(orders), Some(threads.with_keepers(shard)?)))
        })
    }

    /// Closes the shard: it takes no more events and has no writer; nor has it any other thread where all
    /// that it holds is resolved.
    pub(crate) fn rest(self) -> Result<Running, OpenError> {
        self.run(|shard, start, _| {
            let Start {
                active,
                mut mark_file,
                mut mark,
                ..
            } = start;
            let segment = Arc::clone(&active.segment);
            writer::close(shard, active);
            if segment.rows() == 0 {
                shard.forget_empty(&segment);
                unlink_database(shard.disk.as_ref(), &segment.path)?;
            }
            // Nothing is written to its segments any more; the newest generation says how the run ended.
            mark.clean = true;
            mark_file.write(&mark)?;
            mark_file.sync()?;
            let threads = match shard.is_drained() {
                true => None,
                false => Some(Threads::default().with_keepers(shard)?),
            };
            Ok((None, threads))
        })
    }

    fn run(
        self,
        start: impl FnOnce(
            &Arc<Shard>,
            Start,
            Recipe,
        ) -> std::io::Result<(Option<Sender<Order>>, Option<Threads>)>,
    ) -> Result<Running, OpenError> {
        let shard = self.shard;
        shard.restore_base(&self.saved);
        let findings = [shard.condition.findings(), self.findings].concat();
        let (orders, threads) =
            start(&shard, self.start, self.recipe).map_err(|error| OpenError::Unusable {
                path: shard.dir.clone(),
                reason: error.to_string(),
            })?;
        Ok(Running {
            shard,
            orders,
            threads,
            recovery: Recovery {
                findings,
                ..self.recovery
            },
        })
    }
}

/// Held by the writer's thread: should it panic, readiness says so, since nothing can be accepted until a
/// restart.
struct NamesPanic(Arc<Shard>);

impl Drop for NamesPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "the writer ended by a fault of its own; restart the server";
            self.0.condition.set_unavailable(Some(reason.to_owned()));
        }
    }
}

/// What tools show: `g1.s0-writer`. Linux keeps 15 bytes of it.
fn thread_name(shard: &Shard, role: &str) -> String {
    format!("{}-{role}", Name(shard.generation, shard.id))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

impl Threads {
    fn with_writer(
        mut self,
        shard: &Arc<Shard>,
        start: Start,
        recipe: Recipe,
    ) -> std::io::Result<(Sender<Order>, Self)> {
        let (orders, received) = mpsc::channel();
        let numbers = Arc::clone(&shard.next_number);
        let (prepared, preparing) = preparer::start(recipe, numbers, Arc::clone(&self.stop))?;
        self.others.push(preparing);
        let writer = Writer::new(Arc::clone(shard), received, prepared, start);
        let panics = NamesPanic(Arc::clone(shard));
        self.writer = Some(spawn(&thread_name(shard, "writer"), move || {
            let _named = panics;
            writer.run();
        })?);
        Ok((orders, self))
    }

    fn with_keepers(mut self, shard: &Arc<Shard>) -> std::io::Result<Self> {
        let mark = shard.disk.overwrite(&shard.dir.join(MARK))?;
        let (kept, until) = (Arc::clone(shard), Arc::clone(&self.stop));
        self.others
            .push(spawn(&thread_name(shard, "keeper"), move || {
                keeper::run(&kept, mark.as_ref(), &until);
            })?);
        let (closed, until) = (Arc::clone(shard), Arc::clone(&self.stop));
        self.others
            .push(spawn(&thread_name(shard, "checkpoint"), move || {
                keeper::run_checkpoints(&closed, &until);
            })?);
        let (resolved, until) = (Arc::clone(shard), Arc::clone(&self.stop));
        self.others
            .push(spawn(&thread_name(shard, "remove"), move || {
                remover::run(&resolved, &until);
            })?);
        let (kept, until) = (Arc::clone(shard), Arc::clone(&self.stop));
        self.others
            .push(spawn(&thread_name(shard, "compact"), move || {
                compactor::run(&kept, &until);
            })?);
        Ok(self)
    }

    /// Waits for the writer, which was told to stop, then ends the others.
    pub(crate) fn join(&mut self, shard: &Shard) {
        join(self.writer.take());
        self.let_go();
        shard.keeper.wake();
        for other in std::mem::take(&mut self.others) {
            join(Some(other));
        }
    }

    /// Tells the threads beside the writer to end, without waiting: those that pause between two rounds
    /// are woken, so that a stop takes no longer than what is under way.
    pub(crate) fn let_go(&self) {
        self.stop.store(true, Ordering::Release);
        for other in &self.others {
            other.thread().unpark();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.let_go();
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    if thread.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("a thread of the store panicked");
    }
}
