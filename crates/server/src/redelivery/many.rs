//! Many dead letters at once. An action is planned first: which letters are meant is settled, and how many there
//! are must be what its operator expects. Then it is put on the audit trail and done.
//!
//! A redrive of many feeds the lanes a few letters at a time, in the order of their events, so that what one key
//! had in order goes out in order, memory stays small and a rate can be kept. What was not fed yet is a dead
//! letter like any other: a restart ends the action, and asking again takes the rest.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use wayhold_model::rate::{Bucket, Rate};
use wayhold_model::{DestinationId, FailureClass, Timestamp};
use wayhold_store::{DeadLetter, LetterAt, LetterError, LetterQuery, LetterSelection, Store};

use super::letter_filter::{LettersMeant, Names};
use super::letters::{Letters, RedeliveryError, whole};

/// Most dead letters that one action takes, unless all of them refer to their events: their places are held in
/// memory, 32 bytes each, while it goes on.
pub const LETTERS_PER_ACTION_MAX: usize = 500_000;

/// Letters read at once while they are held against a filter: each brings its event along.
const READ_AT_ONCE: usize = 256;

/// Letters that are recorded as ended or as being sent again in one synced step.
const STEP_MAX: usize = 64;

/// Most letters of one destination that such an action has under redrive at a time: as many as the largest window
/// of a lane, so that a lane never waits for them.
const IN_HAND_MAX: usize = 1_024;

/// Most bytes of their events: a lane keeps those in memory until they have arrived.
const IN_HAND_BYTES_MAX: usize = 16 << 20;

/// How often it is looked whether some of them have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long a disk that took nothing is left alone.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How many dead letters an action would take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// So many.
    pub count: u64,
    /// Number of the oldest.
    pub oldest: Option<u64>,
    /// Number of the newest.
    pub newest: Option<u64>,
}

impl Tally {
    fn add(&mut self, (count, oldest, newest): (u64, u64, u64)) {
        self.count += count;
        self.oldest = Some(self.oldest.map_or(oldest, |before| before.min(oldest)));
        self.newest = Some(self.newest.map_or(newest, |before| before.max(newest)));
    }

    /// It is what its operator expects.
    fn confirm(self, expected: u64) -> Result<(), RedeliveryError> {
        match self.count == expected {
            true => Ok(()),
            false => Err(RedeliveryError::Unexpected {
                expected,
                found: self.count,
            }),
        }
    }
}

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
}

/// The redrives of many that are under way, at most one per destination.
#[derive(Clone, Debug, Default)]
pub(super) struct AllRunning(Arc<Mutex<BTreeMap<DestinationId, Arc<Running>>>>);

impl AllRunning {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<DestinationId, Arc<Running>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all of these, or none where one of their destinations has one.
    fn begin(&self, wanted: &[Arc<Running>]) -> Result<(), DestinationId> {
        let mut running = self.lock();
        if let Some(taken) = wanted
            .iter()
            .find(|one| running.contains_key(&one.destination))
        {
            return Err(taken.destination);
        }
        running.extend(wanted.iter().map(|one| (one.destination, Arc::clone(one))));
        Ok(())
    }
}

impl Letters {
    /// How many dead letters are meant.
    ///
    /// # Errors
    /// When the store cannot read them now, or a filter would have to keep too many in mind.
    pub async fn tally(&self, which: LettersMeant) -> Result<Tally, RedeliveryError> {
        let now = self.clock.now();
        self.try_ask(move |store| match which.filter {
            None => Ok(tally_of_groups(store, &which.query)?),
            Some(_) => Ok(tally_of(&plan(store, &which, now)?)),
        })
        .await
    }

    /// Sends the dead letters that are meant again, each before any unsent later event of its key, at most at
    /// `rate`; answers once that has begun. Goes on when the caller stops waiting.
    ///
    /// # Errors
    /// When there are not as many as `expected` or more than one action takes, one is under way at one of their
    /// destinations, or the store cannot record it: then nothing was done.
    pub async fn redrive_selected(
        &self,
        which: LettersMeant,
        expected: u64,
        rate: Option<Rate>,
        by: &str,
    ) -> Result<Tally, RedeliveryError> {
        let (this, by) = (self.clone(), by.to_owned());
        whole(async move {
            if let Some(of_reference) = all_refer(&which).filter(|_| rate.is_none()) {
                let tally = this.tally(which).await?;
                tally.confirm(expected)?;
                let count = this.redrive_many(of_reference, &by).await?;
                return Ok(Tally { count, ..tally });
            }
            let now = this.clock.now();
            let planned = which.clone();
            let plan = this
                .try_ask(move |store| plan(store, &planned, now))
                .await?;
            let tally = tally_of(&plan);
            tally.confirm(expected)?;
            this.begin(plan, &which, rate, &by).await?;
            Ok(tally)
        })
        .await
    }

    /// Ends the dead letters that are meant without delivering them. Goes on when the caller stops waiting.
    ///
    /// # Errors
    /// When the reason is empty, there are not as many as `expected` or more than one action takes: then nothing
    /// was done. When the store cannot record all of it now: asking again takes the rest.
    pub async fn discard_selected(
        &self,
        which: LettersMeant,
        expected: u64,
        by: &str,
        reason: &str,
    ) -> Result<Tally, RedeliveryError> {
        if reason.trim().is_empty() {
            return Err(RedeliveryError::NoReason);
        }
        let (this, by, reason) = (self.clone(), by.to_owned(), reason.to_owned());
        whole(async move {
            if let Some(of_reference) = all_refer(&which) {
                let tally = this.tally(which).await?;
                tally.confirm(expected)?;
                let count = this.discard_many(of_reference, &by, &reason).await?;
                return Ok(Tally { count, ..tally });
            }
            let now = this.clock.now();
            let planned = which.clone();
            let plan = this
                .try_ask(move |store| plan(store, &planned, now))
                .await?;
            let tally = tally_of(&plan);
            tally.confirm(expected)?;
            let count = this.discard_plan(plan, &which, &by, &reason).await?;
            Ok(Tally { count, ..tally })
        })
        .await
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
        let action = "dead_letters.redrive_stopped";
        self.audit(by, action, Some(destination), words).await?;
        running.stopping.store(true, Ordering::Relaxed);
        info!(by, "redrive of many dead letters is stopped");
        Ok(Some(running))
    }

    async fn begin(
        &self,
        plan: Vec<LetterAt>,
        which: &LettersMeant,
        rate: Option<Rate>,
        by: &str,
    ) -> Result<(), RedeliveryError> {
        let mut by_destination: BTreeMap<DestinationId, Vec<LetterAt>> = BTreeMap::new();
        for letter in plan {
            let letters = by_destination.entry(letter.destination).or_default();
            letters.push(letter);
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
        self.running
            .begin(&wanted)
            .map_err(|_| RedeliveryError::Running)?;
        let pace = rate.map_or_else(String::new, |rate| format!(" at {rate}"));
        let total: u64 = wanted.iter().map(|one| one.selected).sum();
        let words = format!("{total} of {}{pace}", words_of(which));
        let audited = self
            .audit(by, "dead_letters.redriven", which.query.destination, words)
            .await;
        if let Err(error) = audited {
            let mut running = self.running.lock();
            for one in &wanted {
                running.remove(&one.destination);
            }
            return Err(error);
        }
        for (running, letters) in wanted.into_iter().zip(by_destination.into_values()) {
            tokio::spawn(self.clone().feed(running, letters));
        }
        Ok(())
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
        let mut left = letters.as_slice();
        while !left.is_empty() && !running.stopping.load(Ordering::Relaxed) {
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
                }
                Err(RedeliveryError::Stopping) => break,
                Err(error) => {
                    warn!(%error, "dead letters wait to be redriven");
                    sleep(AGAIN_AFTER).await;
                }
            }
        }
        self.running.lock().remove(&running.destination);
        info!(
            destination = running.destination.0,
            redriven = running.redriven(),
            selected = running.selected,
            by = running.by,
            "dead letters redriven"
        );
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

    pub(super) async fn discard_plan(
        &self,
        plan: Vec<LetterAt>,
        which: &LettersMeant,
        by: &str,
        reason: &str,
    ) -> Result<u64, RedeliveryError> {
        let words = format!("{} of {}: {reason}", plan.len(), words_of(which));
        self.audit(by, "dead_letters.discarded", which.query.destination, words)
            .await?;
        let mut discarded = 0;
        for step in plan.chunks(STEP_MAX) {
            let step = step.to_vec();
            let ended = self
                .ask(move |store| store.dead_letters().discard_some(&step))
                .await?;
            discarded += ended.len() as u64;
            for letter in ended {
                let place = (letter.position, letter.key_hash);
                self.dispatcher.discarded(letter.destination, place).await;
            }
        }
        info!(discarded, by, "dead letters discarded");
        Ok(discarded)
    }

    async fn audit(
        &self,
        by: &str,
        action: &'static str,
        destination: Option<DestinationId>,
        words: String,
    ) -> Result<(), RedeliveryError> {
        let by = by.to_owned();
        self.ask(move |store| {
            let names = Names::of(store);
            let subject = destination.map_or("every destination", |id| names.name(id));
            store.catalog().audit(&by, action, subject, Some(&words))?;
            Ok(())
        })
        .await
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

/// The selection as one of letters that all refer to their events, of which there may be millions; `None` where
/// others may be among them.
fn all_refer(which: &LettersMeant) -> Option<LetterSelection> {
    let LetterQuery {
        destination: Some(destination),
        class: Some(class),
        fingerprint: None,
    } = &which.query
    else {
        return None;
    };
    let is_set_aside = FailureClass::from_name(class)
        .is_some_and(|class| matches!(class, FailureClass::BacklogLimit | FailureClass::Retired));
    (is_set_aside && which.filter.is_none()).then(|| LetterSelection {
        destination: *destination,
        class: Some(class.clone()),
    })
}

/// Where the letters lie that are meant, in the order of their events: so those of a key are in order.
fn plan(
    store: &Store,
    which: &LettersMeant,
    now: Timestamp,
) -> Result<Vec<LetterAt>, RedeliveryError> {
    let letters = store.dead_letters();
    let beyond = LETTERS_PER_ACTION_MAX + 1;
    let mut plan = match &which.filter {
        None => letters.places(&which.query, beyond)?,
        Some(_) => filtered(store, which, now, beyond)?,
    };
    if plan.len() >= beyond {
        return Err(RedeliveryError::TooMany);
    }
    plan.sort_unstable_by_key(|letter| (letter.destination, letter.position));
    Ok(plan)
}

fn filtered(
    store: &Store,
    which: &LettersMeant,
    now: Timestamp,
    max: usize,
) -> Result<Vec<LetterAt>, LetterError> {
    let names = Names::of(store);
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let query = which.query.clone();
        let letters = store.dead_letters().page(query, after, READ_AT_ONCE)?;
        let Some(last) = letters.last().filter(|_| found.len() < max) else {
            return Ok(found);
        };
        after = Some(last.id);
        let meant = letters.iter().filter(|letter| {
            !letter.redriving && which.holds(letter, names.name(letter.destination), now)
        });
        found.extend(meant.map(LetterAt::of));
    }
}

fn tally_of(plan: &[LetterAt]) -> Tally {
    let mut tally = Tally::default();
    for letter in plan {
        tally.add((1, letter.id, letter.id));
    }
    tally
}

fn tally_of_groups(store: &Store, query: &LetterQuery) -> Result<Tally, LetterError> {
    let is = |wanted: &Option<String>, found: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted == found)
    };
    let mut tally = Tally::default();
    for group in store.dead_letters().groups(query.destination)? {
        if is(&query.class, &group.class) && is(&query.fingerprint, &group.fingerprint) {
            tally.add((group.count, group.oldest, group.newest));
        }
    }
    Ok(tally)
}

/// What was selected, for the audit trail.
fn words_of(which: &LettersMeant) -> String {
    let mut words = Vec::new();
    if let Some(class) = &which.query.class {
        words.push(format!("class {class}"));
    }
    if let Some(fingerprint) = &which.query.fingerprint {
        words.push(format!("fingerprint {fingerprint}"));
    }
    if let Some(filter) = &which.filter {
        words.push(format!("filter {filter}"));
    }
    match words.is_empty() {
        true => "every class".to_owned(),
        false => words.join(", "),
    }
}
