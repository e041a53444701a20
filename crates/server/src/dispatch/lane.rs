//! The loop of one lane: it reads what its destination is owed, starts attempts as order and pace
//! allow, and records how each ended. One task owns everything here; nothing is shared but atomic
//! counters. The loop never blocks: what may touch the disk or wait for a sync runs as an *errand* and
//! comes back as a wake-up.
//!
//! A crash loses what is in memory here and nothing else: the store returns every unresolved delivery
//! again, with its attempts and due time. What was sent and not yet recorded is sent again, at most
//! `pace::repeats_max` deliveries.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, error, info, warn};
use wayhold_model::backoff::Backoff;
use wayhold_model::breaker::BreakerPolicy;
use wayhold_model::verdict::RetryPolicy;
use wayhold_model::{Clock, Position, StoredEvent, Timestamp};
use wayhold_store::{
    DeadLetter, Delivery, DestinationRecord, Lane, LaneHandle, ReadError, RunState,
};

use super::attempt::{Flight, Prepared};
use super::dispatcher::Service;
use super::order::{KEY_POSITIONS_MAX, Next, Order, OrderPolicy, Redrive, Refill, Turn};
use super::pace::{Openings, Pace, READ_AGAIN_AFTER, repeats_max};
use super::snapshot::{LaneSnapshot, LaneState, LastError};
use super::steady::Steady;
use crate::clock::Entropy;
use crate::config::{DeliveryPolicy, OnDeadLetter, OnFailure};
use crate::sink::{Attempt, Finished, Sink};
use crate::telemetry::metrics::{DestinationMetrics, Metrics};

/// Most deliveries read, and outcomes taken, at once: enough to make their fixed costs small, few
/// enough that the loop looks up often.
const BATCH_MAX: usize = 1_024;

/// Most batches read in one pass when everything read is set aside; then the task yields.
const READS_PER_PASS: usize = 4;

/// What a lane is made of.
pub(super) struct Parts {
    pub(super) record: DestinationRecord,
    pub(super) service: Option<Service>,
    pub(super) reader: Lane,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    /// Dead letters at the start, as position and key.
    pub(super) dead: Vec<(Position, Option<u64>)>,
    pub(super) commands: mpsc::Receiver<Command>,
}

/// What the outside asks of a lane.
#[derive(Debug)]
pub(super) enum Command {
    /// Say how you are.
    Inspect(oneshot::Sender<LaneSnapshot>),
    /// Say what this delivery of a key waits for.
    AheadOf {
        position: Position,
        key: u64,
        reply: oneshot::Sender<Option<Position>>,
    },
    /// Take this run state, which the catalogue holds already.
    Run {
        record: DestinationRecord,
        done: oneshot::Sender<()>,
    },
    /// Send this dead letter again.
    Redrive(Box<DeadLetter>),
    /// This dead letter was discarded.
    Discarded {
        position: Position,
        key: Option<u64>,
    },
    /// Start nothing more and end by then.
    Stop { by: Instant },
}

/// Everything that can wake the loop.
enum Wakeup {
    Command(Option<Command>),
    Finished,
    Errand(Done),
    Appended,
    Timer,
    Again,
}

/// An errand that came back.
enum Done {
    Read(Box<Lane>, Result<Vec<Delivery>, ReadError>),
    Loaded(Vec<(Chosen, Result<Arc<StoredEvent>, ReadError>)>),
    Refilled(Vec<(Refill, Result<Vec<Position>, ReadError>)>),
    Recorded(Vec<Prepared>),
    Synced(usize),
}

/// A turn whose event is being fetched.
struct Chosen {
    turn: Turn,
    probe: bool,
}

/// Which errands are under way: at most one of each.
#[derive(Debug, Default)]
struct Away {
    loading: bool,
    refilling: bool,
    recording: bool,
    syncing: bool,
}

pub(super) struct LaneTask {
    pub(super) record: DestinationRecord,
    pub(super) policy: DeliveryPolicy,
    sink: Option<Arc<dyn Sink>>,
    pub(super) metrics: Arc<DestinationMetrics>,
    process_metrics: Arc<Metrics>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) steady: Steady,

    pub(super) handle: LaneHandle,
    // Away while it reads the disk.
    reader: Option<Box<Lane>>,
    // Read and not yet offered.
    buffer: VecDeque<Delivery>,
    at_tail: bool,
    read_again_at: Option<Timestamp>,

    pub(super) order: Order,
    pub(super) pace: Pace,
    last_was_retry: bool,

    // Chosen and not sent: being fetched or recorded.
    preparing: usize,
    // Of what is preparing or in flight, attempts after the first.
    pub(super) retries_away: usize,
    to_load: Vec<Chosen>,
    to_refill: Vec<Refill>,
    to_record: Vec<Prepared>,
    // First attempts that are still to be recorded before they are sent, after an unclean stop.
    record_first: usize,
    away: Away,
    errands: JoinSet<Done>,

    ready: Vec<Attempt>,
    pub(super) flight: Flight,
    finished: mpsc::Receiver<Finished>,
    finish: mpsc::Sender<Finished>,
    outcomes: Vec<Finished>,
    pub(super) delivered: Vec<Position>,
    // Settled since the last sync that was asked for.
    pub(super) unsynced: usize,

    commands: mpsc::Receiver<Command>,
    stop_by: Option<Instant>,
    again: bool,
    pub(super) state: LaneState,
    pub(super) state_since: Timestamp,
    pub(super) last_error: Option<LastError>,
    pub(super) repeats: u64,
    pub(super) repeats_possible: u64,
}

impl LaneTask {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts {
            record,
            service,
            reader,
            metrics,
            clock,
            entropy,
            dead,
            commands,
        } = parts;
        let (policy, sink) = match service {
            Some(Service { policy, sink }) => (policy, Some(sink)),
            None => (unserved(), None),
        };
        let handle = reader.handle();
        let concurrency = policy.concurrency.max(1);
        let (finish, finished) = mpsc::channel(concurrency);
        let mut order = Order::new(OrderPolicy {
            on_failure: policy.on_failure,
            on_dead_letter: policy.on_dead_letter,
            in_flight_per_key: policy.in_flight_per_key.max(1),
            blocked_max: policy.max_blocked_keys.max(1),
        });
        for (position, key) in dead {
            order.found_dead(position, key);
        }
        let repeatable = if handle.stopped_uncleanly() {
            repeats_max(concurrency)
        } else {
            0
        };
        let pending = usize::try_from(handle.pending()).unwrap_or(usize::MAX);
        let now = clock.now();
        Self {
            state: LaneState::Running,
            state_since: record.since.max(Timestamp::EPOCH),
            metrics: metrics.destination(&record.name),
            process_metrics: metrics,
            steady: Steady::new(now),
            handle,
            reader: Some(Box::new(reader)),
            buffer: VecDeque::with_capacity(BATCH_MAX),
            at_tail: false,
            read_again_at: None,
            order,
            pace: Pace::new(concurrency, policy.breaker),
            last_was_retry: false,
            preparing: 0,
            retries_away: 0,
            to_load: Vec::new(),
            to_refill: Vec::new(),
            to_record: Vec::new(),
            record_first: repeatable,
            away: Away::default(),
            errands: JoinSet::new(),
            ready: Vec::with_capacity(concurrency.min(BATCH_MAX)),
            flight: Flight::default(),
            finished,
            finish,
            outcomes: Vec::with_capacity(BATCH_MAX),
            delivered: Vec::with_capacity(BATCH_MAX),
            unsynced: 0,
            commands,
            stop_by: None,
            again: false,
            last_error: None,
            repeats: 0,
            repeats_possible: repeatable.min(pending) as u64,
            record,
            policy,
            sink,
            clock,
            entropy,
        }
    }

    /// Runs until it is told to stop; then everything recorded is durable.
    pub(super) async fn run(mut self) {
        for letter in self.handle.redriving() {
            self.redrive(&letter);
        }
        loop {
            self.start_attempts();
            self.submit();
            self.send_errands();
            self.note_state();
            if self.is_over() {
                break;
            }
            match self.wakeup().await {
                Wakeup::Command(command) => self.obey(command),
                Wakeup::Finished => self.take_outcomes(),
                Wakeup::Errand(done) => self.take_errand(done),
                Wakeup::Appended => self.at_tail = false,
                Wakeup::Timer | Wakeup::Again => {}
            }
        }
        self.end().await;
    }

    pub(super) fn now(&self) -> Timestamp {
        self.steady.at(Instant::now())
    }

    // --- starting ---

    fn is_running(&self) -> bool {
        self.record.state == RunState::Running && self.stop_by.is_none() && self.sink.is_some()
    }

    /// Starts as many attempts as run state, pace, order and the bound on repeats allow.
    fn start_attempts(&mut self) {
        self.again = false;
        let now = self.now();
        if self.read_again_at.is_some_and(|at| at <= now) {
            self.read_again_at = None;
        }
        if !self.is_running() {
            // What lies first is worth knowing even when nothing may start.
            self.read_if_empty();
            return;
        }
        self.order.wake(now);
        let (openings, probe) = match self.openings(now) {
            Openings::Free(openings) => (openings, false),
            Openings::Probe => (1, true),
            Openings::WaitUntil(_) => (0, false),
        };
        let mut reads_left = READS_PER_PASS;
        for _ in 0..openings {
            let Some(turn) = self.choose(now, &mut reads_left) else {
                break;
            };
            self.prepare(turn, probe);
        }
    }

    fn openings(&self, now: Timestamp) -> Openings {
        let away = self.flight.len() + self.preparing;
        let room = repeats_max(self.policy.concurrency).saturating_sub(self.unsynced + away);
        match self.pace.openings(now, away) {
            Openings::Free(openings) => Openings::Free(openings.min(room)),
            other => other,
        }
    }

    /// Whose turn it is: retries and first attempts take turns, so neither starves the other, and
    /// retries take a bounded share.
    fn choose(&mut self, now: Timestamp, reads_left: &mut usize) -> Option<Turn> {
        let retry_may = self.retries_away < self.pace.retries_max();
        if retry_may && !self.last_was_retry {
            if let Some(turn) = self.next_retry() {
                self.last_was_retry = true;
                return Some(turn);
            }
        }
        self.last_was_retry = false;
        if let Some(turn) = self.next_first(now, reads_left) {
            return Some(turn);
        }
        if retry_may { self.next_retry() } else { None }
    }

    fn next_retry(&mut self) -> Option<Turn> {
        loop {
            match self.order.next_retry() {
                Next::Turn(turn) => return Some(turn),
                Next::Refill(refill) => self.to_refill.push(refill),
                Next::Nothing => return None,
            }
        }
    }

    fn next_first(&mut self, now: Timestamp, reads_left: &mut usize) -> Option<Turn> {
        loop {
            match self.order.next_released() {
                Next::Turn(turn) => return Some(turn),
                Next::Refill(refill) => self.to_refill.push(refill),
                Next::Nothing => break,
            }
        }
        loop {
            while self.order.may_read_ahead()
                && let Some(delivery) = self.buffer.pop_front()
            {
                let retry_at = delivery
                    .retry_at
                    .map(|at| Steady::from_wall(at, self.clock.now(), now));
                if let Some(turn) = self.order.offer(delivery, retry_at) {
                    return Some(turn);
                }
            }
            if *reads_left == 0 && self.buffer.is_empty() && self.may_read() {
                self.again = true;
                return None;
            }
            *reads_left = reads_left.saturating_sub(1);
            if !self.read_if_empty() {
                return None;
            }
        }
    }

    fn may_read(&self) -> bool {
        self.reader.is_some()
            && !self.at_tail
            && self.read_again_at.is_none()
            && self.stop_by.is_none()
            && self.order.may_read_ahead()
    }

    /// Reads the next batch if nothing read is left; says whether there is one now. What lies on disk
    /// is fetched by an errand.
    fn read_if_empty(&mut self) -> bool {
        if !self.buffer.is_empty() || !self.may_read() {
            return false;
        }
        let Some(mut reader) = self.reader.take() else {
            return false;
        };
        match reader.read_cached(BATCH_MAX) {
            Some(batch) => {
                self.reader = Some(reader);
                self.at_tail = batch.is_empty();
                self.buffer.extend(batch);
                !self.buffer.is_empty()
            }
            None => {
                self.errands.spawn_blocking(move || {
                    let batch = reader.read(BATCH_MAX);
                    Done::Read(reader, batch)
                });
                false
            }
        }
    }

    /// A turn on its way to being sent: its event is fetched and its start recorded where needed.
    fn prepare(&mut self, mut turn: Turn, probe: bool) {
        self.preparing += 1;
        self.retries_away += usize::from(!turn.history.is_first());
        if probe {
            self.pace.probe_chosen();
        }
        let at_hand = turn
            .event
            .take()
            .or_else(|| self.handle.event_cached(turn.position));
        match at_hand {
            Some(event) => self.prepared(Prepared::new(&turn, event, probe)),
            None => self.to_load.push(Chosen { turn, probe }),
        }
    }

    fn prepared(&mut self, prepared: Prepared) {
        if self.must_record(&prepared) {
            self.to_record.push(prepared);
        } else {
            self.launch(prepared);
        }
    }

    /// The first attempt is recorded by its outcome, later ones before they are sent; after an unclean
    /// stop whatever may have been under way then is recorded before too, so that an event that takes
    /// the process down with it cannot do so uncounted. A redrive is on record as such already.
    fn must_record(&mut self, prepared: &Prepared) -> bool {
        if prepared.history.letter.is_some() {
            return false;
        }
        if prepared.history.attempts > 0 {
            return true;
        }
        let before = self.record_first;
        self.record_first = before.saturating_sub(1);
        before > 0
    }

    fn launch(&mut self, prepared: Prepared) {
        self.preparing -= 1;
        if prepared.probe {
            self.pace.probe_sent();
        }
        if prepared.history.after_unknown {
            self.repeats += 1;
            self.metrics.repeats.inc();
        }
        let event = Arc::clone(&prepared.event);
        let number = prepared.number();
        let token = self.flight.insert(prepared.sent(Instant::now()));
        let finish = self.finish.clone();
        self.ready.push(Attempt::new(
            event,
            number,
            self.policy.timeout,
            token,
            finish,
        ));
    }

    /// Hands what is ready to the sink. A sink that panics loses nothing: attempts that it did not take
    /// end as unknown when they are dropped.
    fn submit(&mut self) {
        let Some(sink) = self.sink.as_deref().filter(|_| !self.ready.is_empty()) else {
            return;
        };
        let ready = &mut self.ready;
        if catch_unwind(AssertUnwindSafe(|| sink.submit(ready))).is_err() {
            self.process_metrics.panics.inc();
            error!(
                destination = self.record.name,
                attempts = ready.len(),
                "the sink panicked; its attempts count as failed"
            );
        }
        self.ready.clear();
    }

    // --- errands ---

    fn send_errands(&mut self) {
        if !self.to_load.is_empty() && !self.away.loading {
            self.away.loading = true;
            let handle = self.handle.clone();
            let chosen = std::mem::take(&mut self.to_load);
            self.errands.spawn_blocking(move || {
                let load = |chosen: Chosen| {
                    let event = handle.event(chosen.turn.position);
                    (chosen, event)
                };
                Done::Loaded(chosen.into_iter().map(load).collect())
            });
        }
        if !self.to_refill.is_empty() && !self.away.refilling {
            self.away.refilling = true;
            let handle = self.handle.clone();
            let refills = std::mem::take(&mut self.to_refill);
            self.errands.spawn_blocking(move || {
                let fetch = |refill: Refill| {
                    let Refill {
                        key,
                        after,
                        through,
                    } = refill;
                    (
                        refill,
                        handle.next_of_key(key, after, through, KEY_POSITIONS_MAX),
                    )
                };
                Done::Refilled(refills.into_iter().map(fetch).collect())
            });
        }
        if !self.to_record.is_empty() && !self.away.recording {
            self.away.recording = true;
            let handle = self.handle.clone();
            let starting = std::mem::take(&mut self.to_record);
            self.errands.spawn(async move {
                let starts = starting.iter().map(|prepared| {
                    handle.record_start(prepared.event.position, prepared.number())
                });
                join_all(starts).await;
                Done::Recorded(starting)
            });
        }
        let unsynced_max = repeats_max(self.policy.concurrency) / 2;
        if self.unsynced > unsynced_max && !self.away.syncing {
            self.away.syncing = true;
            let handle = self.handle.clone();
            let settled = self.unsynced;
            self.errands.spawn(async move {
                handle.durable().await;
                Done::Synced(settled)
            });
        }
    }

    fn take_errand(&mut self, done: Done) {
        match done {
            Done::Read(reader, batch) => {
                self.reader = Some(reader);
                self.take_batch(batch);
            }
            Done::Loaded(loaded) => {
                self.away.loading = false;
                for (chosen, event) in loaded {
                    self.take_loaded(&chosen, event);
                }
            }
            Done::Refilled(refills) => {
                self.away.refilling = false;
                for (refill, positions) in refills {
                    self.take_refill(refill, positions);
                }
            }
            Done::Recorded(prepared) => {
                self.away.recording = false;
                for prepared in prepared {
                    self.launch(prepared);
                }
            }
            Done::Synced(settled) => {
                self.away.syncing = false;
                self.unsynced = self.unsynced.saturating_sub(settled);
            }
        }
    }

    fn take_batch(&mut self, batch: Result<Vec<Delivery>, ReadError>) {
        match batch {
            Ok(batch) => self.buffer.extend(batch),
            Err(error) => {
                warn!(destination = self.record.name, %error, "reading deliveries failed");
                self.read_again_at = Some(self.now().after(READ_AGAIN_AFTER));
            }
        }
    }

    fn take_loaded(&mut self, chosen: &Chosen, event: Result<Arc<StoredEvent>, ReadError>) {
        let Chosen { turn, probe } = chosen;
        let error = match event {
            Ok(event) => return self.prepared(Prepared::new(turn, event, *probe)),
            Err(error) => error,
        };
        self.preparing -= 1;
        self.retries_away -= usize::from(!turn.history.is_first());
        if *probe {
            self.pace.probe_given_up();
        }
        let position = turn.position;
        match error {
            ReadError::Damaged { .. } => {
                // As in reading ahead: it stays unresolved, is named in health, and stops nobody.
                error!(destination = self.record.name, %position, "a damaged event was skipped");
                self.order.resolved(turn.key, turn.history);
            }
            ReadError::Failed { .. } => {
                warn!(destination = self.record.name, %position, %error, "reading an event failed");
                self.order
                    .put_back(turn, self.now().after(READ_AGAIN_AFTER));
            }
        }
    }

    fn take_refill(&mut self, refill: Refill, positions: Result<Vec<Position>, ReadError>) {
        match positions {
            Ok(positions) => self.order.refilled(refill, positions),
            Err(error) => {
                warn!(destination = self.record.name, %error, "looking up a key's events failed");
                self.order
                    .refill_failed(refill, self.now().after(READ_AGAIN_AFTER));
            }
        }
    }

    // --- waking ---

    async fn wakeup(&mut self) -> Wakeup {
        if self.again {
            tokio::task::yield_now().await;
            return Wakeup::Again;
        }
        let timer = self.timer();
        let handle = &self.handle;
        let wait_for_more = self.at_tail && self.stop_by.is_none();
        loop {
            return tokio::select! {
                biased;
                command = self.commands.recv() => Wakeup::Command(command),
                count = self.finished.recv_many(&mut self.outcomes, BATCH_MAX) => {
                    debug_assert!(count > 0, "the lane itself holds a sender");
                    Wakeup::Finished
                }
                Some(done) = self.errands.join_next() => match done {
                    Ok(done) => Wakeup::Errand(done),
                    Err(error) => {
                        self.process_metrics.panics.inc();
                        error!(
                            destination = self.record.name,
                            %error,
                            "an errand panicked; its deliveries wait for the next start"
                        );
                        continue;
                    }
                },
                () = handle.appended(), if wait_for_more => Wakeup::Appended,
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {
                    Wakeup::Timer
                }
            };
        }
    }

    /// When the loop must look again though nothing happens.
    fn timer(&self) -> Option<Instant> {
        if self.stop_by.is_some() {
            return self.stop_by;
        }
        let now = self.now();
        let start = match self.openings(now) {
            _ if !self.is_running() => None,
            Openings::WaitUntil(at) => Some(at),
            Openings::Free(0) => None,
            Openings::Free(_) | Openings::Probe => self.order.next_due(),
        };
        let at = start.into_iter().chain(self.read_again_at).min()?;
        Some(self.steady.instant(at))
    }

    /// When the next attempt starts, in lane time, where the lane waits for a time.
    pub(super) fn next_attempt(&self, now: Timestamp) -> Option<Timestamp> {
        match self.openings(now) {
            _ if !self.is_running() => None,
            Openings::WaitUntil(at) => Some(at),
            Openings::Free(_) | Openings::Probe => self.order.next_due(),
        }
    }

    /// The earliest delivery that was read but not offered.
    pub(super) fn first_unoffered(&self) -> Option<Position> {
        self.buffer.front().map(|delivery| delivery.event.position)
    }

    // --- commands and stopping ---

    fn obey(&mut self, command: Option<Command>) {
        match command {
            Some(Command::Inspect(reply)) => {
                reply.send(self.snapshot()).ok();
            }
            Some(Command::AheadOf {
                position,
                key,
                reply,
            }) => {
                reply.send(self.ahead_of(position, key)).ok();
            }
            Some(Command::Run { record, done }) => {
                info!(
                    destination = record.name,
                    state = record.state.name(),
                    by = record.by,
                    reason = record.reason,
                    "run state changed"
                );
                self.record = record;
                done.send(()).ok();
            }
            Some(Command::Redrive(letter)) => self.redrive(&letter),
            Some(Command::Discarded { position, key }) => self.order.discarded(position, key),
            Some(Command::Stop { by }) => self.stop_by = Some(by),
            // Nobody can stop it any more: the process is ending.
            None => self.stop_by = Some(Instant::now()),
        }
    }

    fn redrive(&mut self, letter: &DeadLetter) {
        let attempts_before = letter.attempts.last().map_or(0, |attempt| attempt.number);
        let redrive = Redrive {
            letter: letter.id,
            attempts_before,
        };
        self.order
            .redrive(letter.event.position, letter.event.key_hash, redrive);
    }

    fn is_over(&self) -> bool {
        self.stop_by
            .is_some_and(|by| self.flight.is_empty() || by <= Instant::now())
    }

    /// Lets the sink end what is still in flight, takes the last outcomes and waits until everything is
    /// durable. What is still open then is pending and comes again.
    async fn end(mut self) {
        if let Some(sink) = &self.sink {
            let by = Instant::now() + END_GRACE;
            if timeout_at(by, sink.stop(END_GRACE)).await.is_err() {
                warn!(
                    destination = self.record.name,
                    "the sink did not stop in time"
                );
            }
        }
        while let Ok(finished) = self.finished.try_recv() {
            self.outcomes.push(finished);
        }
        self.take_outcomes();
        let open = self.flight.len() + self.preparing;
        self.handle.durable().await;
        debug!(destination = self.record.name, open, "lane stopped");
    }

    fn take_outcomes(&mut self) {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        self.settle_all(&mut outcomes);
        self.outcomes = outcomes;
    }
}

/// How long a sink may take to let go after everything that could finish has.
const END_GRACE: Duration = Duration::from_secs(2);

/// Policy of a lane that holds everything: nothing of it takes effect.
fn unserved() -> DeliveryPolicy {
    DeliveryPolicy {
        on_failure: OnFailure::Block,
        on_dead_letter: OnDeadLetter::Hold,
        retry: RetryPolicy {
            backoff: Backoff::default(),
            attempts_max: None,
        },
        breaker: BreakerPolicy::default(),
        concurrency: 1,
        in_flight_per_key: 1,
        timeout: Duration::ZERO,
        max_blocked_keys: 1,
    }
}
