//! A redrive of many dead letters, from its beginning to its end. It feeds a lane a few letters at a time, in the
//! order of their events, so that what one key had in order goes out in order, memory stays small and a rate can be
//! kept. What was not fed yet is a dead letter like any other.
//!
//! It is on record: which letters are meant, and up to which event they were fed. After a stop it selects them again,
//! without those that came about since it was begun, and goes on from there. What it had fed by then the lane takes up
//! by itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};
use wayhold_model::rate::{Bucket, Rate};
use wayhold_model::{DestinationId, Timestamp};
use wayhold_store::catalog::{AuditWords, NewRedrive, RedriveRecord};
use wayhold_store::{CatalogError, DeadLetter, LetterAt, LetterError, LetterQuery};

use super::letter_filter::{self, LettersMeant, Names};
use super::letters::{Letters, RedeliveryError};
use super::many::{Plan, STEP_MAX, select, words_of};

/// Most letters of one destination that such an action has under redrive at a time: as many as the largest window
/// of a lane, so that a lane never waits for them.
const IN_HAND_MAX: usize = 1_024;

/// Most bytes of their events: a lane keeps those in memory until they have arrived.
const IN_HAND_BYTES_MAX: usize = 16 << 20;

/// How often it is looked whether some of them have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How often it is recorded how far it is. What was fed since and has died again is fed again after a crash.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);

/// How long a disk that took nothing is left alone.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A redrive of many that is under way at one destination.
#[derive(Debug)]
pub struct Running {
    /// Whose letters.
    pub destination: DestinationId,
    /// How many were selected.
    pub selected: u64,
    /// At most so many are begun in a time.
    pub rate: Option<Rate>,
    /// Who asked for it.
    pub by: String,
    /// When.
    pub since: Timestamp,
    /// How many were handed to the lane.
    redriven: AtomicU64,
    stopping: AtomicBool,
}

impl Running {
    /// How many were handed to the lane so far.
    pub fn redriven(&self) -> u64 {
        self.redriven.load(Ordering::Relaxed)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// The redrives of many that are under way, at most one per destination.
#[derive(Clone, Debug, Default)]
pub(super) struct AllRunning(Arc<Mutex<BTreeMap<DestinationId, Arc<Running>>>>);

impl AllRunning {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<DestinationId, Arc<Running>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all of these, or none where one of their destinations has one.
    fn begin(&self, wanted: &[Arc<Running>]) -> Result<(), RedeliveryError> {
        let mut running = self.lock();
        if wanted
            .iter()
            .any(|one| running.contains_key(&one.destination))
        {
            return Err(RedeliveryError::Running);
        }
        running.extend(wanted.iter().map(|one| (one.destination, Arc::clone(one))));
        Ok(())
    }

    fn end(&self, ended: &[Arc<Running>]) {
        let mut running = self.lock();
        for one in ended {
            running.remove(&one.destination);
        }
    }
}

/// What a redrive was asked for, as it is on record.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
}

impl Request {
    fn of(which: &LettersMeant, rate: Option<Rate>) -> Self {
        Self {
            class: which.query.class.clone(),
            fingerprint: which.query.fingerprint.clone(),
            filter: which.filter.as_ref().map(ToString::to_string),
            rate: rate.map(|rate| rate.to_string()),
        }
    }

    /// Which letters of a destination are meant, and at what rate; or what cannot be read.
    fn meant(self, destination: DestinationId) -> Result<(LettersMeant, Option<Rate>), String> {
        let filter = self.filter.as_deref().map(letter_filter::compile);
        let rate = self.rate.as_deref().map(str::parse::<Rate>);
        let which = LettersMeant {
            query: LetterQuery {
                destination: Some(destination),
                class: self.class,
                fingerprint: self.fingerprint,
            },
            filter: filter.transpose().map_err(|error| error.to_string())?,
        };
        Ok((which, rate.transpose().map_err(|error| error.to_string())?))
    }
}

impl Letters {
    /// Goes on with the redrives of many that a stop cut off, on the current runtime.
    pub fn take_up(&self) {
        for record in self.store.catalog().redrives() {
            tokio::spawn(self.clone().go_on(record));
        }
    }

    /// The redrives of many that are under way.
    pub fn running(&self) -> Vec<Arc<Running>> {
        self.running.lock().values().cloned().collect()
    }

    /// Begins no more of a destination's redrive of many; what is under redrive goes on. `None` where there is
    /// none.
    ///
    /// # Errors
    /// When that cannot be put on the audit trail: then it goes on.
    pub async fn stop_running(
        &self,
        destination: DestinationId,
        by: &str,
    ) -> Result<Option<Arc<Running>>, RedeliveryError> {
        let Some(running) = self.running.lock().get(&destination).cloned() else {
            return Ok(None);
        };
        let words = format!("{} of {}", running.redriven(), running.selected);
        let principal = by.to_owned();
        let stopped = self
            .ask(move |store| {
                let names = Names::of(store);
                let subject = names.name(destination);
                let words = &words;
                let audited = AuditWords { subject, words };
                let stopped = Some((principal.as_str(), audited));
                Ok(store.catalog().end_redrive(destination, stopped)?)
            })
            .await?;
        if !stopped {
            return Ok(None);
        }
        running.stopping.store(true, Ordering::Relaxed);
        info!(by, "redrive of many dead letters is stopped");
        Ok(Some(running))
    }

    /// Whether one is under way at a destination of the plan, which is refused.
    pub(super) fn refuse_beside_another(&self, plan: &Plan) -> Result<(), RedeliveryError> {
        let running = self.running.lock();
        let is_fed = |letter: &LetterAt| running.contains_key(&letter.destination);
        match !running.is_empty() && plan.letters.iter().any(is_fed) {
            true => Err(RedeliveryError::Running),
            false => Ok(()),
        }
    }

    /// Begins to send the letters of a plan again, which is on record and audited when it returns.
    pub(super) async fn begin(
        &self,
        plan: &Plan,
        which: &LettersMeant,
        rate: Option<Rate>,
        by: &str,
    ) -> Result<(), RedeliveryError> {
        let mut by_destination: BTreeMap<DestinationId, Vec<LetterAt>> = BTreeMap::new();
        for letter in &plan.letters {
            let letters = by_destination.entry(letter.destination).or_default();
            letters.push(*letter);
        }
        let since = self.clock.now();
        let of = |(destination, letters): (&DestinationId, &Vec<LetterAt>)| {
            Arc::new(Running {
                destination: *destination,
                selected: letters.len() as u64,
                rate,
                by: by.to_owned(),
                since,
                redriven: AtomicU64::new(0),
                stopping: AtomicBool::new(false),
            })
        };
        let wanted: Vec<_> = by_destination.iter().map(of).collect();
        self.running.begin(&wanted)?;
        if let Err(error) = self.record(&wanted, which, plan.below, (rate, by)).await {
            self.running.end(&wanted);
            return Err(error);
        }
        for (running, letters) in wanted.into_iter().zip(by_destination.into_values()) {
            tokio::spawn(self.clone().feed(running, letters));
        }
        Ok(())
    }

    async fn record(
        &self,
        wanted: &[Arc<Running>],
        which: &LettersMeant,
        below: u64,
        (rate, by): (Option<Rate>, &str),
    ) -> Result<(), RedeliveryError> {
        let request = serde_json::to_string(&Request::of(which, rate)).unwrap_or_default();
        let pace = rate.map_or_else(String::new, |rate| format!(" at {rate}"));
        let total: u64 = wanted.iter().map(|one| one.selected).sum();
        let words = format!("{total} of {}{pace}", words_of(which));
        let new = wanted.iter().map(|one| NewRedrive {
            destination: one.destination,
            selected: one.selected,
        });
        let (new, by) = (new.collect::<Vec<_>>(), by.to_owned());
        let destination = which.query.destination;
        let recorded = self
            .ask(move |store| {
                let names = Names::of(store);
                let subject = destination.map_or("every destination", |id| names.name(id));
                let words = &words;
                let audited = AuditWords { subject, words };
                let catalog = store.catalog();
                Ok(catalog.begin_redrives(&new, (&request, below), &by, audited)?)
            })
            .await;
        match recorded {
            Err(RedeliveryError::Letter(LetterError::Audit(CatalogError::InTheWay { .. }))) => {
                Err(RedeliveryError::Running)
            }
            other => other,
        }
    }

    /// Goes on with one that is on record.
    async fn go_on(self, record: RedriveRecord) {
        let destination = record.destination;
        let request = serde_json::from_str::<Request>(&record.request);
        let meant = request
            .map_err(|error| error.to_string())
            .and_then(|request| request.meant(destination));
        let (which, rate) = match meant {
            Ok(meant) => meant,
            Err(error) => {
                // Its letters are dead letters as before, and can be redriven anew.
                error!(destination = destination.0, %error, "what a redrive was asked for cannot be read; it ends");
                return self.end(destination).await;
            }
        };
        let running = Arc::new(Running {
            destination,
            selected: record.selected,
            rate,
            by: record.by,
            since: record.since,
            redriven: AtomicU64::new(record.redriven),
            stopping: AtomicBool::new(false),
        });
        if self.running.begin(&[Arc::clone(&running)]).is_err() {
            return;
        }
        let moment = (record.since, record.below);
        let mut letters = loop {
            let which = which.clone();
            let selected = self.try_ask(move |store| select(store, &which, moment));
            match selected.await {
                Ok(letters) => break letters,
                Err(RedeliveryError::Stopping) => return,
                Err(error) => {
                    warn!(%error, "dead letters wait to be redriven");
                    sleep(AGAIN_AFTER).await;
                }
            }
        };
        letters.retain(|letter| record.place.is_none_or(|place| place < letter.position));
        info!(
            destination = destination.0,
            left = letters.len(),
            by = running.by,
            "a redrive of many dead letters goes on"
        );
        self.feed(running, letters).await;
    }

    /// Hands letters to their lane as it has room and the rate allows, in order.
    async fn feed(self, running: Arc<Running>, letters: Vec<LetterAt>) {
        let begun = Instant::now();
        let since = || {
            let micros = begun.elapsed().as_micros();
            Timestamp::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
        };
        let mut bucket = running.rate.map(Bucket::new);
        let mut hand = Hand::default();
        let mut recorded: Option<Instant> = None;
        let mut left = letters.as_slice();
        while !left.is_empty() && !running.is_stopping() {
            self.let_go(&mut hand).await;
            let mut step = hand.room().min(left.len());
            if let Some(bucket) = &mut bucket {
                let now = since();
                step = (0..step).take_while(|_| bucket.take(now)).count();
            }
            let Some((now, rest)) = left.split_at_checked(step).filter(|_| step > 0) else {
                sleep(LOOK_INTERVAL).await;
                continue;
            };
            let chosen = now.to_vec();
            match self
                .ask(move |store| store.dead_letters().redrive_some(&chosen))
                .await
            {
                Ok(redriven) => {
                    left = rest;
                    running
                        .redriven
                        .fetch_add(redriven.len() as u64, Ordering::Relaxed);
                    for letter in redriven {
                        hand.take(&letter);
                        self.dispatcher.redrive(letter).await;
                    }
                    if recorded.is_none_or(|at| at.elapsed() >= RECORD_INTERVAL) {
                        self.note_progress(&running, now).await;
                        recorded = Some(Instant::now());
                    }
                }
                // It is on record: the next start goes on.
                Err(RedeliveryError::Stopping) => return,
                Err(error) => {
                    warn!(%error, "dead letters wait to be redriven");
                    sleep(AGAIN_AFTER).await;
                }
            }
        }
        if !running.is_stopping() {
            self.end(running.destination).await;
        }
        self.running.end(&[Arc::clone(&running)]);
        info!(
            destination = running.destination.0,
            redriven = running.redriven(),
            selected = running.selected,
            by = running.by,
            "dead letters redriven"
        );
    }

    /// Records that letters were fed up to the last of these.
    async fn note_progress(&self, running: &Running, fed: &[LetterAt]) {
        let Some(place) = fed.last().map(|letter| letter.position) else {
            return;
        };
        let (destination, redriven) = (running.destination, running.redriven());
        let noted = self.ask(move |store| {
            let catalog = store.catalog();
            Ok(catalog.set_redrive_progress(destination, redriven, place)?)
        });
        if let Err(error) = noted.await {
            warn!(%error, "how far a redrive of many dead letters is could not be recorded");
        }
    }

    /// Takes one that is done off the record.
    async fn end(&self, destination: DestinationId) {
        let ended = self.ask(move |store| Ok(store.catalog().end_redrive(destination, None)?));
        if let Err(error) = ended.await {
            // The next start finds none of its letters left, and ends it.
            warn!(%error, "that a redrive of many dead letters has ended could not be recorded");
        }
    }

    /// Lets go of what is not under redrive any more.
    async fn let_go(&self, hand: &mut Hand) {
        if hand.letters.is_empty() {
            return;
        }
        let letters: Vec<_> = hand.letters.iter().map(|(letter, _)| *letter).collect();
        let under_way = self
            .ask(move |store| Ok(store.dead_letters().under_redrive(&letters)))
            .await;
        if let Ok(under_way) = under_way {
            hand.letters
                .retain(|(letter, _)| under_way.contains(&letter.id));
        }
    }
}

/// What such an action has under redrive.
#[derive(Debug, Default)]
struct Hand {
    letters: Vec<(LetterAt, usize)>,
}

impl Hand {
    fn take(&mut self, letter: &DeadLetter) {
        let size = letter.to_send().event.size();
        self.letters.push((LetterAt::of(letter), size));
    }

    /// Letters that may be taken at once. The events of one step are not known before; they may go beyond the
    /// bound once, by a step.
    fn room(&self) -> usize {
        let bytes: usize = self.letters.iter().map(|(_, size)| size).sum();
        match bytes < IN_HAND_BYTES_MAX {
            true => STEP_MAX.min(IN_HAND_MAX.saturating_sub(self.letters.len())),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_record_means_the_same_letters() {
        let destination = DestinationId(7);
        let whole = LettersMeant {
            query: LetterQuery {
                destination: Some(destination),
                class: Some("invalid".to_owned()),
                fingerprint: Some("5b0c".to_owned()),
            },
            filter: Some(letter_filter::compile("data.total > 12 && attempts > 3").unwrap()),
        };
        let all = LettersMeant {
            query: LetterQuery {
                destination: Some(destination),
                ..LetterQuery::default()
            },
            filter: None,
        };
        let rate: Rate = "50/s".parse().unwrap();
        for (which, rate, text) in [
            (
                whole,
                Some(rate),
                r#"{"class":"invalid","fingerprint":"5b0c","filter":"data.total > 12 && attempts > 3","rate":"50/s"}"#,
            ),
            (all, None, "{}"),
        ] {
            let recorded = serde_json::to_string(&Request::of(&which, rate)).unwrap();
            assert_eq!(recorded, text);
            let request: Request = serde_json::from_str(&recorded).unwrap();
            let (again, paced) = request.meant(destination).unwrap();
            assert_eq!((&again.query, paced), (&which.query, rate));
            assert_eq!(words_of(&again), words_of(&which));
        }
        let unreadable = Request {
            filter: Some("data.".to_owned()),
            ..Request::default()
        };
        assert!(unreadable.meant(destination).is_err());
    }
}
