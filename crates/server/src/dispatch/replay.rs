//! The lane of one replay: old events, delivered anew to one destination, beside that destination's own lane and
//! never mixed with it. It has its own order, pace and counts; what it shares is the sink.
//!
//! It reads the events that it selects in the order of their acceptance, sends those of a key one after the other,
//! and records how far it is: up to where it has read, and what of that is open. After a stop it goes on from there.
//! A crash repeats at most [`REPEATS_MAX`] deliveries and those in flight.
//!
//! It takes at most a share of the destination's concurrency (`DeliveryPolicy::replay_concurrency`), which the sink
//! has room for beside all of the destination's own: so its own deliveries lose no place to a replay.

mod errand;
mod progress;
mod settle;
mod speed;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, error, info, warn};
use wayhold_model::breaker::BreakerPolicy;
use wayhold_model::rate::Rate;
use wayhold_model::{Clock, Timestamp};
use wayhold_store::attempt_log::{AttemptEntry, AttemptLog};
use wayhold_store::catalog::{
    ReplayCounts, ReplayProgress, ReplayRecord, ReplayState, SelectedSize,
};
use wayhold_store::{RunState, Scan, Store};

use self::errand::Done;
use self::speed::Speed;
use self::window::{Turn, Window};
use super::Service;
use super::pace::{Openings, Pace};
use super::steady::Steady;
use crate::clock::Entropy;
use crate::config::destination::REPLAY_CONCURRENCY_MAX;
use crate::sink::{Attempt, Finished};
use crate::telemetry::metrics::DestinationMetrics;

pub use self::errand::{Takes, count};

/// Most deliveries that are resolved, or in flight, without that being recorded: so many a crash may repeat.
pub const REPEATS_MAX: usize = 1_000;

/// How often it is recorded how far it is, at least.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Most bytes of events that are read and not resolved.
const OPEN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How often the destination's state is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How a destination is served now, by name; `None` where it is not. Asked anew every now and then, since that may
/// change.
pub type Services = Arc<dyn Fn(&str) -> Option<Service> + Send + Sync>;

/// What a replay's lane is made of.
pub struct ReplayParts {
    /// What the catalogue holds of it.
    pub record: ReplayRecord,
    /// Which events of its time it delivers.
    pub takes: Takes,
    /// Most attempts that may start in a time, where it has a rate of its own.
    pub rate: Option<Rate>,
    /// How destinations are served.
    pub services: Services,
    /// Where events lie.
    pub store: Store,
    /// The record of attempts.
    pub attempts: AttemptLog,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness for jitter.
    pub entropy: Arc<dyn Entropy>,
    /// Where what it delivers is counted.
    pub metrics: Arc<DestinationMetrics>,
    /// What the outside asks of it.
    pub commands: mpsc::Receiver<ReplayCommand>,
    /// Takes how it is.
    pub shown: watch::Sender<ReplayLive>,
}

/// What the outside asks of a replay.
#[derive(Debug)]
pub enum ReplayCommand {
    /// Take the state that the catalogue holds.
    Changed,
    /// Start nothing more and end by then.
    Stop {
        /// When.
        by: Instant,
    },
}

/// How a running replay is at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayLive {
    /// What became of its events.
    pub counts: ReplayCounts,
    /// What it selected, once that is counted.
    pub size: Option<SelectedSize>,
    /// Attempts that have not ended.
    pub in_flight: usize,
    /// Events resolved a second, over the last while.
    pub speed: f64,
    /// Why nothing starts, where something is in the way.
    pub waits_for: Option<String>,
    /// What the last failed attempt said.
    pub last_error: Option<String>,
}

/// An attempt that has not ended.
struct Flying {
    turn: Turn,
    sent_at: Instant,
}

/// The loop of one replay and everything it knows.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says a thing of its own; together they are no state"
)]
pub struct ReplayLane {
    record: ReplayRecord,
    takes: Takes,
    rate: Option<Rate>,
    services: Services,
    service: Option<Service>,
    store: Store,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    metrics: Arc<DestinationMetrics>,
    attempts: AttemptLog,
    // Ended since the last batch of outcomes was taken, for the record.
    recorded: Vec<AttemptEntry>,
    commands: mpsc::Receiver<ReplayCommand>,
    shown: watch::Sender<ReplayLive>,
    steady: Steady,

    size: Option<SelectedSize>,
    progress: ReplayProgress,
    // When the last event that was looked at was accepted.
    read_until: Timestamp,
    // `None` while it is away, and before what was open is loaded.
    scan: Option<Scan>,
    has_read_all: bool,
    is_loaded: bool,
    window: Window,
    pace: Pace,

    flight: BTreeMap<u64, Flying>,
    next_token: u64,
    finished: mpsc::Receiver<Finished>,
    finish: mpsc::Sender<Finished>,
    outcomes: Vec<Finished>,

    errands: JoinSet<Done>,
    // One of each kind at a time.
    is_preparing: bool,
    is_saving: bool,
    is_putting: bool,
    // Nothing that failed is asked for again before this.
    again_at: Instant,
    // Resolved since it was last recorded how far it is.
    unsaved: usize,
    saved_at: Instant,
    is_dirty: bool,

    stopping: Arc<AtomicBool>,
    stop_by: Option<Instant>,
    blocked: Option<String>,
    looked_at: Option<Instant>,
    last_error: Option<String>,
    speed: Speed,
}

impl ReplayLane {
    /// A lane that has not begun.
    pub fn new(parts: ReplayParts) -> Self {
        let ReplayParts {
            record,
            takes,
            rate,
            services,
            store,
            attempts,
            clock,
            entropy,
            metrics,
            commands,
            shown,
        } = parts;
        let (finish, finished) = mpsc::channel(REPLAY_CONCURRENCY_MAX);
        let now = Instant::now();
        Self {
            steady: Steady::new(clock.now()),
            size: record.size,
            progress: record.progress.clone(),
            read_until: record.progress.needs_from,
            scan: None,
            has_read_all: false,
            is_loaded: false,
            window: Window::default(),
            pace: Pace::new(1, BreakerPolicy::default(), rate),
            rate,
            services,
            service: None,
            flight: BTreeMap::new(),
            next_token: 0,
            finished,
            finish,
            outcomes: Vec::new(),
            attempts,
            recorded: Vec::new(),
            errands: JoinSet::new(),
            is_preparing: false,
            is_saving: false,
            is_putting: false,
            again_at: now,
            unsaved: 0,
            saved_at: now,
            is_dirty: false,
            stopping: Arc::default(),
            stop_by: None,
            blocked: None,
            looked_at: None,
            last_error: None,
            speed: Speed::default(),
            record,
            takes,
            store,
            clock,
            entropy,
            metrics,
            commands,
            shown,
        }
    }

    /// Runs until it has ended or is told to stop; then how far it is is on record.
    pub async fn run(mut self) {
        info!(replay = self.record.id, "replay goes on");
        loop {
            self.look_at_destination();
            self.start_attempts();
            self.send_errands();
            self.show();
            if self.is_over() {
                break;
            }
            let timer = self.timer();
            tokio::select! {
                biased;
                command = self.commands.recv() => self.obey(command),
                count = self.finished.recv_many(&mut self.outcomes, REPEATS_MAX) => {
                    debug_assert!(count > 0, "the lane itself holds a sender");
                    self.settle_all();
                }
                Some(done) = self.errands.join_next() => match done {
                    Ok(done) => self.take(done),
                    Err(error) => {
                        error!(replay = self.record.id, %error, "an errand panicked; the next start goes on");
                        self.stop_by = Some(Instant::now());
                    }
                },
                () = sleep_until(timer) => {}
            }
        }
        self.end().await;
    }

    fn now(&self) -> Timestamp {
        self.steady.at(Instant::now())
    }

    fn obey(&mut self, command: Option<ReplayCommand>) {
        match command {
            Some(ReplayCommand::Changed) => self.take_state(),
            Some(ReplayCommand::Stop { by }) => self.stop_by = Some(by),
            // Nobody can stop it any more: the process is ending.
            None => self.stop_by = Some(Instant::now()),
        }
    }

    /// Takes the state that the catalogue holds: whoever changed it last stands.
    fn take_state(&mut self) {
        let Some(record) = self.store.catalog().replay(self.record.id) else {
            return;
        };
        info!(
            replay = record.id,
            state = record.state.name(),
            by = record.by,
            reason = record.reason,
            "replay changed its state"
        );
        self.record = record;
        self.looked_at = None;
    }

    /// Whether the destination takes anything now, looked at every now and then.
    fn look_at_destination(&mut self) {
        let now = Instant::now();
        if self.looked_at.is_some_and(|at| now < at + LOOK_EVERY) {
            return;
        }
        self.looked_at = Some(now);
        let destination = self.store.catalog().destination(self.record.destination);
        let Some(destination) = destination else {
            self.blocked = Some("the destination is not known any more".to_owned());
            return;
        };
        let service = (self.services)(&destination.name);
        self.blocked = match destination.state {
            _ if service.is_none() => {
                Some("the destination is not in the configuration".to_owned())
            }
            RunState::Running => None,
            state => Some(format!("the destination is {}", state.name())),
        };
        // What is in flight is judged by how it was served last.
        if let Some(service) = service {
            self.serve_by(service);
        }
    }

    /// Goes on at the pace that the destination has now.
    fn serve_by(&mut self, new: Service) {
        let is_paced_alike = |old: &Service| {
            let [old, new] = [&old.policy, &new.policy];
            (old.concurrency, old.breaker, old.rate) == (new.concurrency, new.breaker, new.rate)
        };
        if !self.service.as_ref().is_some_and(is_paced_alike) {
            let policy = &new.policy;
            let rate = self.rate.or(policy.rate);
            self.pace = Pace::new(policy.replay_concurrency(), policy.breaker, rate);
        }
        self.service = Some(new);
    }

    fn may_start(&self) -> bool {
        self.record.state == ReplayState::Running
            && self.size.is_some()
            && self.stop_by.is_none()
            && self.blocked.is_none()
    }

    /// Starts as many attempts as state, pace, order and the bound on repeats allow.
    fn start_attempts(&mut self) {
        if !self.may_start() {
            return;
        }
        let now = self.now();
        self.window.wake(now);
        let mut attempts = Vec::new();
        while !self.is_full() {
            let is_probe = match self.pace.openings(now, self.flight.len()) {
                Openings::Free(0) | Openings::WaitUntil(_) => break,
                Openings::Free(_) => false,
                Openings::Probe => true,
            };
            let Some(turn) = self.window.next() else {
                break;
            };
            if !self.pace.let_one_go(now) {
                self.window.give_back(&turn);
                break;
            }
            if is_probe {
                self.pace.probe_chosen();
                self.pace.probe_sent();
            }
            attempts.extend(self.attempt(turn));
        }
        if let Some(service) = &self.service
            && !attempts.is_empty()
        {
            service.sink.submit(&mut attempts);
        }
    }

    /// Whether no more may be sent before it is recorded how far it is.
    fn is_full(&self) -> bool {
        self.unsaved + self.flight.len() >= REPEATS_MAX
    }

    fn attempt(&mut self, turn: Turn) -> Option<Attempt> {
        let timeout = self.service.as_ref()?.policy.timeout;
        let token = self.next_token;
        self.next_token += 1;
        let number = turn.tries.attempts.saturating_add(1);
        let event = Arc::clone(&turn.event);
        let sent_at = Instant::now();
        self.pace.sent_one();
        self.flight.insert(token, Flying { turn, sent_at });
        let attempt = Attempt::new(event, number, timeout, token, self.finish.clone());
        Some(attempt.of_replay(self.record.id))
    }

    /// When the loop must look again though nothing happens.
    fn timer(&self) -> Instant {
        let now = Instant::now();
        if let Some(by) = self.stop_by {
            return by;
        }
        let lane_now = self.now();
        let start = match self.pace.openings(lane_now, self.flight.len()) {
            // What frees it wakes the loop.
            _ if !self.may_start() || self.is_full() => None,
            Openings::WaitUntil(at) => Some(at),
            Openings::Free(0) => None,
            Openings::Free(_) | Openings::Probe if self.window.has_ready() => {
                Some(self.pace.next_goes_at())
            }
            Openings::Free(_) | Openings::Probe => self.window.next_due(),
        };
        let start = start.map(|at| self.steady.instant(at));
        let again = Some(self.again_at).filter(|at| *at > now);
        let look = now + LOOK_EVERY;
        // A moment that has passed is looked at at once, and not without end.
        let start = start.map(|at| at.max(now + Duration::from_millis(1)));
        start.into_iter().chain(again).fold(look, Instant::min)
    }

    fn is_over(&self) -> bool {
        let has_ended = self.record.state.has_ended() && self.flight.is_empty();
        has_ended
            || self
                .stop_by
                .is_some_and(|by| self.flight.is_empty() || by <= Instant::now())
    }

    fn show(&mut self) {
        let live = ReplayLive {
            counts: self.progress.counts,
            size: self.size,
            in_flight: self.flight.len(),
            speed: self.speed.per_second(Instant::now()),
            waits_for: self.waits_for(),
            last_error: self.last_error.clone(),
        };
        self.shown.send_if_modified(|shown| {
            let is_new = *shown != live;
            if is_new {
                *shown = live;
            }
            is_new
        });
    }

    fn waits_for(&self) -> Option<String> {
        if self.record.state != ReplayState::Running {
            return None;
        }
        let counting = || {
            self.size
                .is_none()
                .then(|| "its events are being counted".to_owned())
        };
        let breaker = || {
            let waits = self.pace.is_waiting();
            waits.then(|| "the destination fails and is left alone for a while".to_owned())
        };
        self.blocked.clone().or_else(counting).or_else(breaker)
    }

    /// Waits until how far it is is on record. What is still open is delivered after the next start.
    async fn end(mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        while let Ok(finished) = self.finished.try_recv() {
            self.outcomes.push(finished);
        }
        self.settle_all();
        let by = Instant::now() + END_GRACE;
        let errands = async {
            while let Some(done) = self.errands.join_next().await {
                if let Ok(Done::Read(scan, Ok(batch))) = done {
                    // Read, and recorded as open.
                    self.take_batch(&scan, batch);
                }
            }
        };
        if timeout_at(by, errands).await.is_err() {
            warn!(
                replay = self.record.id,
                "replay did not stop in time; some of it may be repeated"
            );
            return;
        }
        if self.record.state == ReplayState::Done {
            return;
        }
        let (store, id, progress) = (self.store.clone(), self.record.id, self.progress_now());
        let saved = tokio::task::spawn_blocking(move || errand::save(&store, id, &progress, 0));
        if let Ok(Done::Saved(Err(error))) = saved.await {
            warn!(replay = self.record.id, %error, "some of a replay may be repeated");
        }
        self.progress = self.progress_now();
        self.show();
        debug!(
            replay = self.record.id,
            open = self.window.len(),
            "replay stopped"
        );
    }
}

/// How long what is under way may take to end once attempts have.
const END_GRACE: Duration = Duration::from_secs(2);
