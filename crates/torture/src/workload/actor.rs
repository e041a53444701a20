//! Plays a script on a store whose disk is recorded, and keeps the history.

mod operator;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use wayhold_model::{Clock, DestinationId, OutcomeKind};
use wayhold_store::{
    AppendError, AttemptRecord, Delivery, Lane, NewEvent, Receipt, Resolution, Store,
};

use super::history::{Delivery as Owed, Fact, History, Stage};
use super::script::{Ending, RETENTION, Script, Step};
use super::{DESTINATIONS, HandClock, data_below, destination_names};
use crate::disk::{Fault, Operation, Plan, Recorded};

/// How long something is tried that a fault may prevent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Until it works; that it never does is a failure.
    Full,
    /// A moment; then the script goes on without it.
    Short,
}

/// Longest that anything may take before it counts as hanging.
const HANGS: Duration = Duration::from_secs(30);

/// How long `Step::Clean` waits for the store to look at its segments twice.
const CLEANED: Duration = Duration::from_millis(800);

/// What `Step::Rest` gives to the threads in the background: more than an interval of theirs.
const REST: Duration = Duration::from_millis(40);

/// How long `Patience::Short` is.
const MOMENT: Duration = Duration::from_millis(10);

/// How long a store may take to accept again by itself.
const MENDS: Duration = Duration::from_secs(10);

/// Most deliveries taken from a lane at once.
const BATCH: usize = 64;

/// Plays one script.
pub(crate) struct Actor<'a> {
    script: &'a Script,
    disk: &'a Recorded,
    clock: HandClock,
    patience: Patience,
    history: Arc<Mutex<History>>,
    store: Store,
    destinations: Vec<DestinationId>,
    lanes: Vec<Outstanding>,
    paused: [bool; DESTINATIONS],
    /// How many backups were begun.
    backups: usize,
}

/// How long something is tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    pub(super) patience: Patience,
    pub(super) longest: Duration,
}

/// What a lane gave and nobody settled.
struct Outstanding {
    lane: Lane,
    deliveries: VecDeque<Delivery>,
}

impl<'a> Actor<'a> {
    /// Opens a store on the recorded disk.
    ///
    /// # Errors
    /// What opening said.
    pub(crate) fn open(
        script: &'a Script,
        disk: &'a Recorded,
        patience: Patience,
    ) -> Result<Self, String> {
        let clock = HandClock::new();
        let (store, lanes, destinations) = start(script, disk, &clock)?;
        let history = Arc::new(Mutex::new(History::default()));
        let actor = Self {
            script,
            disk,
            clock,
            patience,
            history,
            store,
            destinations,
            lanes,
            paused: [false; DESTINATIONS],
            backups: 0,
        };
        actor.note(Fact::Named(actor.destinations.clone()));
        actor.note(Fact::Sharded(script.shards));
        Ok(actor)
    }

    /// The clock that the store runs by.
    pub(crate) fn clock(&self) -> HandClock {
        self.clock.clone()
    }

    /// Plays all steps, then stops the store. Returns the history and, where the store said that it
    /// cannot go on, what it said.
    ///
    /// # Errors
    /// A promise broke before any power failed.
    pub(crate) async fn play(mut self) -> (History, Result<(), String>) {
        let mut result = Ok(());
        for (number, step) in self.script.steps.iter().enumerate() {
            let played = tokio::time::timeout(HANGS, self.step(step)).await;
            result = match played {
                Ok(played) => played,
                Err(_elapsed) => Err("hangs".to_owned()),
            };
            if let Err(what) = &result {
                result = Err(format!("step {number} {step:?}: {what}"));
                break;
            }
        }
        if result.is_ok() && self.patience == Patience::Short {
            result = self.mends().await;
        }
        let stopping = self.store.clone();
        let stopped = tokio::task::spawn_blocking(move || stopping.stop());
        if tokio::time::timeout(HANGS, stopped).await.is_err() && result.is_ok() {
            result = Err("stopping hangs".to_owned());
        }
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        (history.clone(), result)
    }

    /// Once nothing fails any more: everything that was sent is accepted, and every command taken as far as it was to
    /// come, or the store says why not.
    async fn mends(&mut self) -> Result<(), String> {
        self.disk.recorder.set_plan(Plan::default());
        let (sent, led) = {
            let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
            let expected = history.all();
            let led = expected.commands.into_iter();
            let led = led.filter_map(|(command, may)| Some((command, may.into_iter().max()?)));
            (expected.sent.into_keys().collect(), led.collect::<Vec<_>>())
        };
        self.patience = Patience::Full;
        let accepted = tokio::time::timeout(MENDS, async {
            self.accept(&[sent]).await?;
            self.lead(&led).await
        });
        let accepted = accepted.await;
        self.patience = Patience::Short;
        match accepted {
            Ok(accepted) => accepted,
            Err(_elapsed) => {
                let health = self.store.health();
                match health.unavailable.is_some() || !health.degraded.is_empty() {
                    true => Ok(()),
                    false => Err("it neither accepts again nor says why".to_owned()),
                }
            }
        }
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Accept(requests) => self.accept(requests).await,
            Step::Repeat(events) => {
                let stored = self.expected_stored();
                let known = events.iter().filter(|event| stored.contains(event));
                let known: Vec<_> = known.copied().collect();
                match known.is_empty() {
                    true => Ok(()),
                    false => self.accept(&[known]).await,
                }
            }
            Step::Deliver {
                destination,
                count,
                ending,
                durable,
            } => {
                self.deliver(*destination, *count, *ending)?;
                match durable {
                    true => self.durable().await,
                    false => Ok(()),
                }
            }
            Step::Redrive { count, ending } => self.redrive(*count, *ending).await,
            Step::Discard => self.discard(),
            Step::Pause(destination) => self.pause(*destination),
            Step::Reshard { shards, beside } => self.reshard(*shards, beside).await,
            Step::BackUp { beside } => self.back_up(beside).await,
            Step::Lead(commands) => self.lead(commands).await,
            Step::Forward(by) => {
                self.clock.forward(*by);
                Ok(())
            }
            Step::Rest => {
                tokio::time::sleep(REST).await;
                Ok(())
            }
            Step::Clean => self.clean().await,
            // A start that fails is another case: there the first one is.
            Step::Restart if self.patience == Patience::Short => Ok(()),
            Step::Restart => {
                // A sync that was to fail and has not come yet fails no start.
                self.disk.recorder.set_plan(Plan::default());
                self.restart()
            }
            Step::FailSync(path) => {
                if self.patience == Patience::Full {
                    self.disk.recorder.set_plan(Plan {
                        at: Some(0),
                        fault: Some(Fault::Io),
                        only: Some(Operation::Sync),
                        path: Some(*path),
                        ..Plan::default()
                    });
                }
                Ok(())
            }
        }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// How long is tried again what a fault may prevent.
    pub(super) fn again(&self) -> Again {
        Again {
            patience: self.patience,
            longest: match self.patience {
                Patience::Full => HANGS,
                Patience::Short => MOMENT,
            },
        }
    }

    pub(super) fn note(&self, fact: Fact) {
        note(&self.history, self.disk, fact);
    }

    fn expected_stored(&self) -> Vec<usize> {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.all().stored.into_keys().collect()
    }

    async fn accept(&mut self, requests: &[Vec<usize>]) -> Result<(), String> {
        let mut running = JoinSet::new();
        for request in requests {
            let new = request
                .iter()
                .filter_map(|event| self.script.event(*event, &self.destinations));
            let request = Request {
                events: request.clone(),
                over: self.script.over(request),
                new: new.collect(),
                store: self.store.clone(),
                history: Arc::clone(&self.history),
                disk: self.disk.clone(),
                patience: self.patience,
            };
            running.spawn(request.send());
        }
        while let Some(sent) = running.join_next().await {
            sent.map_err(|error| format!("a request panicked: {error}"))??;
        }
        Ok(())
    }

    fn deliver(&mut self, destination: usize, count: usize, ending: Ending) -> Result<(), String> {
        let Some(outstanding) = self.lanes.get_mut(destination) else {
            return Ok(());
        };
        if outstanding.deliveries.len() < count {
            match outstanding.lane.read(BATCH) {
                Ok(more) => outstanding.deliveries.extend(more),
                Err(error) if self.patience == Patience::Full => return Err(error.to_string()),
                Err(_) => outstanding.lane.read_failed_again(),
            }
        }
        let taken = count.min(outstanding.deliveries.len());
        let handle = outstanding.lane.handle();
        if ending == Ending::Failed {
            let attempted: Vec<_> = outstanding.deliveries.iter().take(taken).cloned().collect();
            for delivery in attempted {
                let attempt = self.attempt(delivery.attempts + 1);
                handle.record_failure(delivery.event.position, attempt, self.clock.now());
            }
            return Ok(());
        }
        let ended: Vec<_> = outstanding.deliveries.drain(..taken).collect();
        for delivery in &ended {
            let event = Script::of_id(delivery.event.event.id());
            let event = event.ok_or("a lane gave an event that nobody sent")?;
            let (stage, resolution) = match ending {
                Ending::Delivered => (Stage::Resolved, Resolution::Delivered),
                Ending::Expired | Ending::Failed => (Stage::Resolved, Resolution::Expired),
                Ending::Dead => {
                    let attempt = self.attempt(delivery.attempts + 1);
                    (Stage::Dead, Resolution::DeadLettered(attempt))
                }
            };
            self.note(Fact::Became((event, destination), stage));
            handle.settle(&delivery.event, resolution);
        }
        Ok(())
    }

    /// Delivers everything, lets the retention pass, and waits for the segments to go. Those that a letter
    /// refers to stay, and what a fault holds up is given up on.
    async fn clean(&mut self) -> Result<(), String> {
        for destination in 0..DESTINATIONS {
            for _ in 0..2 {
                self.deliver(destination, usize::MAX, Ending::Delivered)?;
            }
        }
        self.durable().await?;
        self.clock.forward(RETENTION * 2);
        let begun = Instant::now();
        while begun.elapsed() < CLEANED {
            let figures = self.store.figures();
            if figures.segments_closed + figures.segments_retained == 0 {
                break;
            }
            tokio::time::sleep(REST).await;
        }
        Ok(())
    }

    fn attempt(&self, number: u32) -> AttemptRecord {
        AttemptRecord {
            answer: None,
            duration: None,
            number,
            at: self.clock.now(),
            outcome: OutcomeKind::Refused,
            class: wayhold_model::FailureClass::Invalid,
            status: Some(400),
            reason: "it does not want this".to_owned(),
        }
    }

    /// Waits until what was settled is durable.
    async fn durable(&self) -> Result<(), String> {
        let Some(outstanding) = self.lanes.first() else {
            return Ok(());
        };
        let durable = outstanding.lane.handle();
        let patience = match self.patience {
            Patience::Full => HANGS,
            Patience::Short => MOMENT * 10,
        };
        match tokio::time::timeout(patience, durable.durable()).await {
            Ok(Ok(())) => {
                self.note(Fact::Durable);
                Ok(())
            }
            Ok(Err(error)) if self.patience == Patience::Full => Err(error.to_string()),
            Err(_) if self.patience == Patience::Full => Err("never durable".to_owned()),
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    }

    fn restart(&mut self) -> Result<(), String> {
        self.lanes.clear();
        self.store.stop();
        let (store, lanes, destinations) = start(self.script, self.disk, &self.clock)?;
        if destinations != self.destinations {
            return Err("destinations have other numbers after a restart".to_owned());
        }
        (self.store, self.lanes) = (store, lanes);
        Ok(())
    }
}

fn note(history: &Mutex<History>, disk: &Recorded, fact: Fact) {
    let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
    history.note(disk.recorder.calls(), fact);
}

fn start(
    script: &Script,
    disk: &Recorded,
    clock: &HandClock,
) -> Result<(Store, Vec<Outstanding>, Vec<DestinationId>), String> {
    let mut options = script.options();
    options.vfs = Some(disk.vfs());
    let clock = Arc::new(clock.clone());
    let data = data_below(disk.recorder.root());
    let (store, _recovery) =
        Store::open_on(&data, options, clock, disk.disk()).map_err(|error| error.to_string())?;
    let records = store.catalog().sync_destinations(&destination_names());
    let records = records.map_err(|error| error.to_string())?;
    let destinations: Vec<_> = records.iter().map(|record| record.id).collect();
    let lanes = destinations.iter().filter_map(|id| store.lane(*id));
    let lanes = lanes.map(|lane| Outstanding {
        lane,
        deliveries: VecDeque::new(),
    });
    let lanes = lanes.collect();
    Ok((store, lanes, destinations))
}

/// One request of a producer, which sends it again until it is answered with success.
struct Request {
    events: Vec<usize>,
    /// Deliveries that are over a limit.
    over: Vec<Owed>,
    new: Vec<NewEvent>,
    store: Store,
    history: Arc<Mutex<History>>,
    disk: Recorded,
    patience: Patience,
}

impl Request {
    async fn send(self) -> Result<(), String> {
        for event in &self.events {
            note(&self.history, &self.disk, Fact::Sent(*event));
        }
        for delivery in &self.over {
            self.sets_aside(*delivery);
        }
        let begun = Instant::now();
        loop {
            let failure = match self.store.append(self.new.clone()).await {
                Ok(receipts) => {
                    for (event, receipt) in self.events.iter().zip(receipts) {
                        self.stored(*event, receipt)?;
                    }
                    return Ok(());
                }
                Err(AppendError::Partly { receipts, cause }) => {
                    for (event, receipt) in self.events.iter().zip(receipts) {
                        if let Some(receipt) = receipt {
                            self.stored(*event, receipt)?;
                        }
                    }
                    cause.to_string()
                }
                Err(
                    conflict @ (AppendError::Conflict { .. } | AppendError::ConflictInBatch { .. }),
                ) => return Err(conflict.to_string()),
                Err(refusal) => refusal.to_string(),
            };
            match self.patience {
                Patience::Full if begun.elapsed() > HANGS => return Err(failure),
                Patience::Short if begun.elapsed() > MOMENT => return Ok(()),
                Patience::Full | Patience::Short => {}
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// An event that is stored for the first time leaves this as a dead letter; a repetition changes nothing.
    fn sets_aside(&self, delivery: Owed) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if !history.all().stored.contains_key(&delivery.0) {
            let calls = self.disk.recorder.calls();
            history.note(calls, Fact::Became(delivery, Stage::Dead));
        }
    }

    fn stored(&self, event: usize, receipt: Receipt) -> Result<(), String> {
        let first = {
            let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
            let expected = history.all();
            expected.stored.get(&event).map(|(position, _)| *position)
        };
        if let Some(first) = first
            && (first != receipt.position || !receipt.duplicate)
        {
            return Err(format!(
                "event {event} was stored at {first} and again at {}",
                receipt.position
            ));
        }
        note(
            &self.history,
            &self.disk,
            Fact::Stored(event, receipt.position),
        );
        Ok(())
    }
}
