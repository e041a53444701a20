//! The loop of one lane: it reads what its destination is owed, starts attempts as order and pace
//! allow, and records how each ended. One task owns everything here; nothing is shared but atomic
//! counters. The loop never blocks: what may touch the disk or wait for a sync runs as an *errand* and
//! comes back as a wake-up.
//!
//! A crash loses what is in memory here and nothing else: the store returns every unresolved delivery
//! again, with its attempts and due time. What was sent and not yet recorded is sent again, at most
//! `pace::repeats_max` deliveries.

mod errand;
mod follow;
mod report;
mod settle;
mod start;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, error, info, warn};
use wayhold_model::backoff::{Backoff, Waits};
use wayhold_model::breaker::BreakerPolicy;
use wayhold_model::verdict::{Patience, RetryPolicy};
use wayhold_model::{Clock, FailureClass, Position, Timestamp};
use wayhold_store::attempt_log::{AttemptEntry, AttemptLog};
use wayhold_store::{DeadLetter, Delivery, DestinationRecord, Lane, LaneHandle, RunState};

use self::errand::{Away, Chosen, Done};
use super::attempt::{Flight, Prepared};
use super::dispatcher::{Halt, Service};
use super::order::{Order, OrderPolicy, Redrive, Refill};
use super::pace::{Openings, Pace, repeats_max};
use super::snapshot::{LaneSnapshot, LaneState, LastError};
use super::steady::Steady;
use crate::clock::Entropy;
use crate::config::{DeliveryPolicy, OnDeadLetter, OnFailure, Recorded};
use crate::sink::{Attempt, Finished, Known, Sink};
use crate::telemetry::metrics::{DestinationMetrics, Metrics};

/// Most deliveries read, and outcomes taken, at once: enough to make their fixed costs small, few
/// enough that the loop looks up often.
const BATCH_MAX: usize = 1_024;

/// What a lane is made of.
pub(super) struct Parts {
    pub(super) record: DestinationRecord,
    pub(super) service: Option<Service>,
    pub(super) reader: Lane,
    pub(super) metrics: Arc<Metrics>,
    pub(super) attempts: AttemptLog,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    /// Dead letters that hold their keys, as position and key.
    pub(super) holds: Vec<(Position, Option<u64>)>,
    /// Dead letters whose redrive was under way.
    pub(super) redriving: Vec<DeadLetter>,
    pub(super) commands: mpsc::Receiver<Command>,
    /// Takes word that the lane stopped by itself.
    pub(super) halts: mpsc::Sender<Halt>,
}

/// What the outside asks of a lane.
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
    /// Follow a newer configuration, which the catalogue knows already.
    Follow {
        record: DestinationRecord,
        /// `None` where it has no such destination any more. In a box, so that no other command carries its room.
        service: Option<Box<Service>>,
        done: oneshot::Sender<()>,
    },
    /// These dead letters hold their keys, which some of them may do already.
    Held {
        letters: Vec<(Position, Option<u64>)>,
        done: oneshot::Sender<()>,
    },
    /// Send this dead letter again.
    Redrive(Box<DeadLetter>),
    /// This dead letter was discarded.
    Discarded {
        position: Position,
        key: Option<u64>,
    },
    /// Deliveries became pending, or were ended, all over the lane: read it from the beginning again.
    Rewind,
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

/// The two kinds of attempts that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lot {
    First,
    Retry,
}

/// One lane's loop and everything it knows.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says a thing of its own; together they are no state"
)]
pub(super) struct LaneTask {
    record: DestinationRecord,
    policy: DeliveryPolicy,
    sink: Option<Arc<dyn Sink>>,
    // Sinks of older versions, at which attempts are still in flight.
    former: Vec<Arc<dyn Sink>>,
    // A sink that begins once all of those have let go.
    next: Option<Arc<dyn Sink>>,
    metrics: Arc<DestinationMetrics>,
    process_metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    steady: Steady,

    handle: LaneHandle,
    // Away while it reads the disk.
    reader: Option<Box<Lane>>,
    // Read and not yet offered.
    buffer: VecDeque<Delivery>,
    // The batch after it, read while it is sent.
    ahead: Vec<Delivery>,
    at_tail: bool,
    // When the shards are read again where reading failed; the others are read meanwhile.
    read_again_at: Option<Timestamp>,

    order: Order,
    pace: Pace,
    last_chosen: Lot,

    // Chosen and not sent: being fetched or recorded.
    preparing: usize,
    // Of what is preparing or in flight, attempts after the first.
    retries_away: usize,
    to_load: Vec<Chosen>,
    to_refill: Vec<Refill>,
    to_record: Vec<Prepared>,
    // First attempts that are still to be recorded before they are sent, after an unclean stop.
    record_first: usize,
    away: Away,
    errands: JoinSet<Done>,

    // Prepared, and held back by the rate; they count as preparing.
    paced: VecDeque<Prepared>,
    ready: Vec<Attempt>,
    flight: Flight,
    // Which failures were taken.
    known: Known,
    finished: mpsc::Receiver<Finished>,
    finish: mpsc::Sender<Finished>,
    outcomes: Vec<Finished>,
    delivered: Vec<Position>,
    attempts: AttemptLog,
    // Ended since the last batch of outcomes was taken, for the record.
    recorded: Vec<AttemptEntry>,
    // Settled since the last sync that was asked for.
    unsynced: usize,

    commands: mpsc::Receiver<Command>,
    halts: mpsc::Sender<Halt>,
    // Whether the lane's own last stop still stands, as long as it is not on record.
    own_stop: Option<Arc<AtomicBool>>,
    // Which class of failure has been all that came, since when, and how often.
    streak: Option<(FailureClass, Timestamp, u32)>,
    // When the destination last took an event.
    delivered_at: Option<Timestamp>,
    // Answers to what was sent before say nothing of whether the destination may run: somebody resumed it, or
    // it goes by a newer version.
    trusted_from: Option<Instant>,
    stop_by: Option<Instant>,
    // Whether the sink ever panicked while it was handed attempts.
    sink_panicked: bool,
    // Whether the lane is to be read from the beginning once nothing is under way.
    rewinding: bool,
    again: bool,
    // When attempts were last started as far as everything allowed.
    looked_at: Timestamp,
    state: LaneState,
    state_since: Timestamp,
    last_error: Option<LastError>,
    repeats: u64,
    repeats_possible: u64,
    /// Dead letters whose redrive was under way when the lane was made.
    redriving: Vec<DeadLetter>,
}

impl LaneTask {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts {
            record,
            service,
            reader,
            metrics,
            attempts,
            clock,
            entropy,
            holds,
            redriving,
            commands,
            halts,
        } = parts;
        let (policy, sink) = match service {
            Some(Service { policy, sink }) => (policy, Some(sink)),
            None => (unserved(), None),
        };
        let handle = reader.handle();
        let concurrency = policy.concurrency.max(1);
        let (finish, finished) = mpsc::channel(concurrency);
        let mut order = Order::new(OrderPolicy::of(&policy));
        for (position, key) in holds {
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
            // These grow to what the destination needs: most of a thousand never get a batch.
            buffer: VecDeque::new(),
            ahead: Vec::new(),
            at_tail: false,
            read_again_at: None,
            order,
            pace: Pace::new(concurrency, policy.breaker, policy.rate),
            last_chosen: Lot::First,
            preparing: 0,
            retries_away: 0,
            to_load: Vec::new(),
            to_refill: Vec::new(),
            to_record: Vec::new(),
            record_first: repeatable,
            away: Away::default(),
            errands: JoinSet::new(),
            paced: VecDeque::new(),
            ready: Vec::with_capacity(concurrency.min(BATCH_MAX)),
            flight: Flight::default(),
            known: Known::default(),
            finished,
            finish,
            outcomes: Vec::new(),
            delivered: Vec::new(),
            attempts,
            recorded: Vec::new(),
            unsynced: 0,
            commands,
            halts,
            own_stop: None,
            streak: None,
            delivered_at: None,
            trusted_from: None,
            stop_by: None,
            sink_panicked: false,
            rewinding: false,
            again: false,
            looked_at: Timestamp::EPOCH,
            last_error: None,
            repeats: 0,
            repeats_possible: repeatable.min(pending) as u64,
            record,
            policy,
            sink,
            former: Vec::new(),
            next: None,
            clock,
            entropy,
            redriving,
        }
    }

    /// Runs until it is told to stop; then everything recorded is durable.
    pub(super) async fn run(mut self) {
        for letter in std::mem::take(&mut self.redriving) {
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

    fn now(&self) -> Timestamp {
        self.steady.at(Instant::now())
    }

    async fn wakeup(&mut self) -> Wakeup {
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
                () = tokio::task::yield_now(), if self.again => Wakeup::Again,
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
        // As of the last look: what came due since then was not looked at, and has to be.
        let start = match self.openings(self.looked_at) {
            _ if !self.is_running() => None,
            Openings::WaitUntil(at) => Some(at),
            Openings::Free(0) => None,
            Openings::Free(_) | Openings::Probe => self.order.next_due(),
        };
        // While the reader is away its return wakes the loop.
        let again = self.read_again_at.filter(|_| self.reader.is_some());
        let paced = (!self.paced.is_empty()).then(|| self.pace.next_goes_at());
        let at = start.into_iter().chain(again).chain(paced).min()?;
        Some(self.steady.instant(at))
    }

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
                // An operator's word is the last one, also over a stop that is still on its way to the record.
                if let Some(stands) = self.own_stop.take() {
                    stands.store(false, Ordering::Release);
                }
                if record.state == RunState::Running {
                    self.trusted_from = Some(Instant::now());
                    self.streak = None;
                    self.delivered_at = None;
                }
                self.record = record;
                done.send(()).ok();
            }
            Some(Command::Follow {
                record,
                service,
                done,
            }) => {
                self.follow(record, service.map(|service| *service));
                done.send(()).ok();
            }
            Some(Command::Held { letters, done }) => {
                self.order.found_all_dead(&letters);
                done.send(()).ok();
            }
            Some(Command::Redrive(letter)) => self.redrive(&letter),
            Some(Command::Discarded { position, key }) => self.order.discarded(position, key),
            Some(Command::Rewind) => self.rewinding = true,
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
            of_replay: letter.replay.is_some(),
        };
        self.order.redrive(letter.to_send(), redrive);
    }

    fn is_over(&self) -> bool {
        self.stop_by
            .is_some_and(|by| self.flight.is_empty() || by <= Instant::now())
    }

    /// Lets the sink end what is still in flight, takes the last outcomes and waits until everything is
    /// durable. What is still open then is pending and comes again.
    async fn end(mut self) {
        let by = Instant::now() + END_GRACE;
        let sinks = self.sink.iter().chain(&self.former);
        let stops = futures_util::future::join_all(sinks.map(|sink| sink.stop(END_GRACE)));
        if timeout_at(by, stops).await.is_err() {
            warn!(
                destination = self.record.name,
                "the sink did not stop in time"
            );
        }
        self.hear_former(by).await;
        while let Ok(finished) = self.finished.try_recv() {
            self.outcomes.push(finished);
        }
        self.take_outcomes();
        let open = self.flight.len() + self.preparing;
        if let Err(error) = self.handle.durable().await {
            warn!(destination = self.record.name, %error, "outcomes may be repeated");
        }
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
        retry: RetryPolicy::new(Patience {
            waits: Waits::Backoff(Backoff::default()),
            attempts_max: None,
            age_max: None,
        }),
        breaker: BreakerPolicy::default(),
        record: Recorded::Failures,
        rate: None,
        concurrency: 1,
        in_flight_per_key: 1,
        timeout: Duration::ZERO,
        max_blocked_keys: 1,
    }
}
