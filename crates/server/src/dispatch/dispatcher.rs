//! The dispatcher: starts a lane per destination and is the way to them. It holds no state of its own;
//! run states live in the catalogue, everything else in the lanes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tracing::{error, warn};
use wayhold_model::{Clock, DestinationId, Position, StoredEvent};
use wayhold_store::attempt_log::AttemptLog;
use wayhold_store::{
    CatalogError, DeadLetter, DestinationRecord, Lane, LetterError, PendingFate, RetireError,
    Retired, RunState, Store,
};

use super::lane::{Command, LaneTask, Parts};
use super::snapshot::LaneSnapshot;
use crate::clock::Entropy;
use crate::config::{DeliveryPolicy, OnDeadLetter};
use crate::sink::Sink;
use crate::telemetry::metrics::Metrics;

/// Most commands that wait for one lane: a lane looks up every few milliseconds, so a full queue means
/// that the caller should wait.
const COMMANDS_MAX: usize = 64;

/// A destination of the catalogue, and how it is served.
pub struct Target {
    /// The destination as the catalogue knows it.
    pub record: DestinationRecord,
    /// `None` for a retired one: what it is owed is held.
    pub service: Option<Service>,
}

/// How a destination is served.
#[derive(Clone)]
pub struct Service {
    /// When and how often it is tried.
    pub policy: DeliveryPolicy,
    /// What speaks to it.
    pub sink: Arc<dyn Sink>,
}

/// What lanes take from their surroundings.
#[derive(Clone)]
pub struct Surroundings {
    /// Where events lie.
    pub store: Store,
    /// What the process counts.
    pub metrics: Arc<Metrics>,
    /// Where attempts are recorded.
    pub attempts: AttemptLog,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness for jitter.
    pub entropy: Arc<dyn Entropy>,
}

/// Why an operator's wish was not carried out.
#[derive(Debug, Error)]
pub enum DispatchError {
    /// No destination of that name; list them.
    #[error("no destination is called {name:?}")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The catalogue did not take the change; nothing has changed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A destination was not retired, or not all of it; each kind says what to do next.
    #[error(transparent)]
    Retire(#[from] RetireError),
    /// The server is stopping; ask its successor.
    #[error("the server is stopping")]
    Stopping,
}

/// The way to the lanes; a cheap handle.
#[derive(Clone)]
pub struct Dispatcher {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) around: Surroundings,
    // Grows when a newer configuration adds a destination; none is ever taken out.
    lanes: RwLock<BTreeMap<DestinationId, LaneEntry>>,
    halts: mpsc::Sender<Halt>,
    pub(super) is_stopping: AtomicBool,
    // Held from a change in the catalogue until its lane knows, so that both see changes in one order.
    pub(super) changes: tokio::sync::Mutex<()>,
    // Taken when the dispatcher stops.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Clone)]
pub(super) struct LaneEntry {
    pub(super) name: Arc<str>,
    pub(super) commands: mpsc::Sender<Command>,
}

impl Dispatcher {
    /// Starts a lane for every target on the current runtime. Blocking: it may read the disk.
    ///
    /// # Errors
    /// When dead letters cannot be read; nothing was started then.
    pub fn start(around: &Surroundings, targets: Vec<Target>) -> Result<Self, LetterError> {
        let (halts, halted) = mpsc::channel(HALTS_MAX);
        let inner = Arc::new(Inner {
            around: around.clone(),
            lanes: RwLock::default(),
            halts,
            is_stopping: AtomicBool::new(false),
            changes: tokio::sync::Mutex::new(()),
            tasks: Mutex::default(),
        });
        let mut beginnings = Vec::new();
        for target in targets {
            beginnings.extend(Beginning::of(&around.store, target)?);
        }
        for beginning in beginnings {
            inner.start_lane(beginning);
        }
        tokio::spawn(record_halts(Arc::downgrade(&inner), halted));
        Ok(Self { inner })
    }

    /// How a destination's lane is; `None` for a destination without one, and while the server stops.
    pub async fn snapshot(&self, destination: DestinationId) -> Option<LaneSnapshot> {
        let lane = self.inner.lane(destination)?;
        let (reply, answer) = oneshot::channel();
        lane.commands.send(Command::Inspect(reply)).await.ok()?;
        let mut snapshot = answer.await.ok()?;
        let store = self.inner.around.store.clone();
        tokio::task::spawn_blocking(move || {
            name_events(&store, &mut snapshot);
            snapshot
        })
        .await
        .ok()
    }

    /// All lanes, by destination.
    pub async fn snapshots(&self) -> Vec<LaneSnapshot> {
        let ids = self.inner.all_lanes().into_iter().map(|(id, _)| id);
        let asked = ids.map(|id| self.snapshot(id));
        futures_util::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect()
    }

    /// The delivery that an event's delivery to this destination waits for: the earliest one of its key
    /// that is in flight, failed or waiting before it. `None` when it waits for none.
    pub async fn behind(
        &self,
        event: &StoredEvent,
        destination: DestinationId,
    ) -> Option<Position> {
        let lane = self.inner.lane(destination)?;
        let (reply, answer) = oneshot::channel();
        let position = event.position;
        let command = Command::AheadOf {
            position,
            key: event.key_hash?,
            reply,
        };
        lane.commands.send(command).await.ok()?;
        answer.await.ok()?
    }

    /// Starts no more attempts at a destination until somebody resumes it; those in flight end. Durable
    /// and audited when it returns.
    ///
    /// # Errors
    /// When there is no such destination, or the catalogue cannot take the change.
    pub async fn pause(
        &self,
        name: &str,
        by: &str,
        reason: Option<&str>,
    ) -> Result<DestinationRecord, DispatchError> {
        self.set_run_state(name, RunState::Paused, by, reason).await
    }

    /// The same, until somebody resumes a destination that is not to be served for longer.
    ///
    /// # Errors
    /// As `pause`.
    pub async fn disable(
        &self,
        name: &str,
        by: &str,
        reason: Option<&str>,
    ) -> Result<DestinationRecord, DispatchError> {
        self.set_run_state(name, RunState::Disabled, by, reason)
            .await
    }

    /// Ends a pause, or a destination's being disabled.
    ///
    /// # Errors
    /// As `pause`; a retired destination cannot be resumed.
    pub async fn resume(
        &self,
        name: &str,
        by: &str,
        reason: Option<&str>,
    ) -> Result<DestinationRecord, DispatchError> {
        self.set_run_state(name, RunState::Running, by, reason)
            .await
    }

    /// In a task of its own: a client that disconnects between record and lane must not part the two.
    async fn set_run_state(
        &self,
        name: &str,
        state: RunState,
        by: &str,
        reason: Option<&str>,
    ) -> Result<DestinationRecord, DispatchError> {
        let inner = Arc::clone(&self.inner);
        let (name, by) = (name.to_owned(), by.to_owned());
        let reason = reason.map(str::to_owned);
        let change =
            tokio::spawn(async move { inner.change_run_state(name, state, by, reason).await });
        change.await.unwrap_or(Err(DispatchError::Stopping))
    }

    /// A dead letter is to be sent again, which the store has on record already. Without a lane for it
    /// the next start takes it up.
    pub async fn redrive(&self, letter: DeadLetter) {
        self.tell(letter.destination, Command::Redrive(Box::new(letter)))
            .await;
    }

    /// A dead letter was discarded, which the store has on record already: it holds its key no longer.
    pub async fn discarded(
        &self,
        destination: DestinationId,
        (position, key): (Position, Option<u64>),
    ) {
        self.tell(destination, Command::Discarded { position, key })
            .await;
    }

    /// Dead letters of a destination became pending again, or deliveries were ended, which the store has on
    /// record already: its lane begins again from that.
    pub async fn rewind(&self, destination: DestinationId) {
        self.tell(destination, Command::Rewind).await;
    }

    /// Ends everything that a destination that left the configuration is still owed. Durable and audited
    /// when it returns; goes on when the caller stops waiting.
    ///
    /// # Errors
    /// When there is no such destination, the configuration still has it, or the store cannot end all of it
    /// now: repeating it ends the rest.
    pub async fn retire(
        &self,
        name: &str,
        pending: PendingFate,
        by: &str,
    ) -> Result<Retired, DispatchError> {
        let this = self.clone();
        let (name, by) = (name.to_owned(), by.to_owned());
        let retire = tokio::spawn(async move { this.retire_whole(name, pending, by).await });
        retire.await.unwrap_or(Err(DispatchError::Stopping))
    }

    async fn retire_whole(
        &self,
        name: String,
        pending: PendingFate,
        by: String,
    ) -> Result<Retired, DispatchError> {
        let id = self.inner.lane_named(&name)?;
        let _one_at_a_time = self.inner.changes.lock().await;
        let store = self.inner.around.store.clone();
        let retire = tokio::task::spawn_blocking(move || store.retire(id, pending, &by));
        let retired = retire.await.map_err(|_cancelled| DispatchError::Stopping)?;
        // Whatever was ended before a failure is not to be held either.
        self.rewind(id).await;
        let retired = retired?;
        self.inner.show(id, retired.record.clone()).await;
        Ok(retired)
    }

    async fn tell(&self, destination: DestinationId, command: Command) {
        if let Some(lane) = self.inner.lane(destination)
            && lane.commands.send(command).await.is_err()
        {
            warn!(
                destination = &*lane.name,
                "the lane has stopped; the next start takes it up"
            );
        }
    }

    /// Stops all lanes: nothing new starts, what is in flight ends or stays pending, and everything
    /// recorded is durable. A lane that needs much longer than `grace` is left behind.
    pub async fn stop(&self, grace: Duration) {
        let by = Instant::now() + grace;
        // A change under way has its lanes before they are stopped; none begins after it.
        let changes = timeout_at(by, self.inner.changes.lock()).await;
        self.inner.is_stopping.store(true, Ordering::Release);
        drop(changes);
        for (_, lane) in self.inner.all_lanes() {
            // A closed queue means that the lane has ended.
            lane.commands.send(Command::Stop { by }).await.ok();
        }
        let mut tasks = {
            let mut tasks = self
                .inner
                .tasks
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *tasks)
        };
        let all = async {
            while let Some(ended) = tasks.join_next().await {
                if let Err(error) = ended {
                    error!(%error, "a lane ended by a panic");
                }
            }
        };
        if timeout_at(by + LATE_MAX, all).await.is_err() {
            warn!(
                lanes = tasks.len(),
                "lanes did not stop in time; they are left behind"
            );
        }
    }
}

impl Inner {
    /// The way to one lane.
    pub(super) fn lane(&self, id: DestinationId) -> Option<LaneEntry> {
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        lanes.get(&id).cloned()
    }

    fn all_lanes(&self) -> Vec<(DestinationId, LaneEntry)> {
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().map(|(id, lane)| (*id, lane.clone())).collect()
    }

    /// Starts a lane on the current runtime.
    pub(super) fn start_lane(&self, beginning: Beginning) {
        let Beginning {
            target: Target { record, service },
            reader,
            holds,
            redriving,
        } = beginning;
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let entry = LaneEntry {
            name: record.name.as_str().into(),
            commands,
        };
        let id = record.id;
        let lane = LaneTask::new(Parts {
            holds,
            reader,
            redriving,
            record,
            service,
            metrics: Arc::clone(&self.around.metrics),
            attempts: self.around.attempts.clone(),
            clock: Arc::clone(&self.around.clock),
            entropy: Arc::clone(&self.around.entropy),
            commands: received,
            halts: self.halts.clone(),
        });
        let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
        lanes.insert(id, entry);
        drop(lanes);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.spawn(lane.run());
    }

    async fn change_run_state(
        &self,
        name: String,
        state: RunState,
        by: String,
        reason: Option<String>,
    ) -> Result<DestinationRecord, DispatchError> {
        let _one_at_a_time = self.changes.lock().await;
        self.record_run_state(name, state, by, reason).await
    }

    /// Records it and lets the lane know, one change at a time.
    async fn record_run_state(
        &self,
        name: String,
        state: RunState,
        by: String,
        reason: Option<String>,
    ) -> Result<DestinationRecord, DispatchError> {
        let id = self.lane_named(&name)?;
        let store = self.around.store.clone();
        let change = move || {
            store
                .catalog()
                .set_run_state(id, state, &by, reason.as_deref())
        };
        let changed = tokio::task::spawn_blocking(change).await;
        let record = changed.map_err(|_cancelled| DispatchError::Stopping)??;
        self.show(id, record.clone()).await;
        Ok(record)
    }

    /// Lets a lane know what the catalogue holds of its destination. The change holds whatever the lane
    /// says: one that is ending starts nothing anyway.
    async fn show(&self, id: DestinationId, record: DestinationRecord) {
        self.tell(id, |done| Command::Run { record, done }).await;
    }

    /// Tells a lane something and waits until it has taken it.
    pub(super) async fn tell(
        &self,
        id: DestinationId,
        command: impl FnOnce(oneshot::Sender<()>) -> Command,
    ) {
        let Some(lane) = self.lane(id) else {
            return;
        };
        let (done, answer) = oneshot::channel();
        if lane.commands.send(command(done)).await.is_ok() {
            answer.await.ok();
        }
    }

    fn lane_named(&self, name: &str) -> Result<DestinationId, DispatchError> {
        let mut all = self.all_lanes().into_iter();
        let found = all.find(|(_, lane)| *lane.name == *name);
        found
            .map(|(id, _)| id)
            .ok_or_else(|| DispatchError::Unknown {
                name: name.to_owned(),
            })
    }
}

/// Who stopped a destination that no person stopped.
const ITSELF: &str = "wayhold";

/// A lane stopped by itself, for what its destination answered.
#[derive(Debug)]
pub(super) struct Halt {
    pub(super) destination: String,
    pub(super) state: RunState,
    pub(super) reason: String,
    /// Whether no operator has decided otherwise since.
    pub(super) stands: Arc<AtomicBool>,
}

/// Most of these that wait to be recorded: a lane stops once and then waits to be resumed, so more only wait
/// for their turn.
const HALTS_MAX: usize = 64;

/// Puts on record which lanes stopped by themselves, until all of them have ended.
async fn record_halts(dispatcher: Weak<Inner>, mut halted: mpsc::Receiver<Halt>) {
    while let Some(halt) = halted.recv().await {
        let Some(inner) = dispatcher.upgrade() else {
            return;
        };
        let Halt {
            destination,
            state,
            reason,
            stands,
        } = halt;
        let _one_at_a_time = inner.changes.lock().await;
        // Whoever decided otherwise meanwhile, or stopped it further, stands.
        let is_further = |record: &DestinationRecord| {
            let further = [RunState::Disabled, RunState::Retired];
            record.name == destination && further.contains(&record.state)
        };
        let mut records = inner.around.store.catalog().destinations().into_iter();
        if !stands.load(Ordering::Acquire) || records.any(|record| is_further(&record)) {
            continue;
        }
        let name = destination.clone();
        let recorded = inner
            .record_run_state(name, state, ITSELF.to_owned(), Some(reason))
            .await;
        if let Err(error) = recorded {
            warn!(destination, %error, "that the destination stopped is not on record");
        }
    }
}

/// How long after the grace lanes may take to make the last records durable.
const LATE_MAX: Duration = Duration::from_secs(4);

/// A lane before it starts.
pub(super) struct Beginning {
    target: Target,
    reader: Lane,
    /// Dead letters that hold their keys, as position and key.
    holds: Vec<(Position, Option<u64>)>,
    /// Dead letters whose redrive was under way.
    redriving: Vec<DeadLetter>,
}

impl Beginning {
    /// Of a target that may have dead letters; `None` where it is not in the catalogue, and so has nothing to
    /// deliver. Blocking.
    fn of(store: &Store, target: Target) -> Result<Option<Self>, LetterError> {
        let policy = target.service.as_ref().map(|service| &service.policy);
        let holds = holds_of(store, target.record.id, policy)?;
        let Some(beginning) = Self::without_letters(store, target) else {
            return Ok(None);
        };
        let redriving = beginning.reader.handle().redriving()?;
        Ok(Some(Self {
            holds,
            redriving,
            ..beginning
        }))
    }

    /// Of a target that was never delivered to.
    pub(super) fn without_letters(store: &Store, target: Target) -> Option<Self> {
        let reader = store.lane(target.record.id)?;
        Some(Self {
            target,
            reader,
            holds: Vec::new(),
            redriving: Vec::new(),
        })
    }
}

/// Positions and keys of a destination's dead letters, where they hold their keys. Those under redrive
/// hold nothing: the lane sends them first. Nor do those that refer to their events: no attempt of theirs
/// failed, and there may be millions.
pub(super) fn holds_of(
    store: &Store,
    destination: DestinationId,
    policy: Option<&DeliveryPolicy>,
) -> Result<Vec<(Position, Option<u64>)>, LetterError> {
    if !policy.is_some_and(|policy| policy.on_dead_letter == OnDeadLetter::Hold) {
        return Ok(Vec::new());
    }
    let mut held = Vec::new();
    let mut after = None;
    loop {
        let letters = store
            .dead_letters()
            .list_copies(destination, after, LETTERS_READ_MAX)?;
        let Some(last) = letters.last() else {
            return Ok(held);
        };
        after = Some(last.id);
        // What a replay gave up holds nobody.
        let holds = |letter: &&DeadLetter| !letter.redriving && letter.replay.is_none();
        let dead = letters.iter().filter(holds);
        held.extend(dead.map(|letter| (letter.event.position, letter.event.key_hash)));
    }
}

/// Most dead letters read at once: each brings its event along, of which only the key is wanted.
const LETTERS_READ_MAX: usize = 256;

/// Adds to a snapshot what only the events themselves tell. Blocking.
fn name_events(store: &Store, snapshot: &mut LaneSnapshot) {
    let look_up = |position: Option<Position>| store.event(position?).ok().flatten();
    for blocked in &mut snapshot.blocked {
        if let Some(event) = look_up(blocked.position).and_then(|found| found.event) {
            blocked.key = event.event.key().map(str::to_owned);
            blocked.event_id = Some(event.event.id().to_owned());
        }
    }
    snapshot.oldest_accepted = look_up(snapshot.oldest).map(|found| found.accepted_at);
}
