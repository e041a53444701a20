//! Compares a store with what its history allows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use wayhold_model::{Clock, DestinationId, DestinationSet, Position, ShardId};
use wayhold_store::backup::restore;
use wayhold_store::{DeliveryState, Recovery, RunState, Store};

use super::commands;
use super::history::{Delivery, Expected, Kept, Stage};
use super::script::{Script, new_event};
use super::{HandClock, SOURCE, backup_below, data_below, destination_names};

/// More letters than any script leaves.
const LETTERS: usize = 10_000;

/// Opens what is left of a disk and says whether a promise broke.
pub(crate) struct Judge<'a> {
    pub(crate) script: &'a Script,
    pub(crate) expected: &'a Expected,
    pub(crate) clock: &'a HandClock,
    pub(crate) then: Then,
    /// Whether calls failed before, so that the store may have something to say of its files.
    pub(crate) after_faults: bool,
}

/// What is judged after the store as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    /// The same store after a clean stop.
    SecondStart,
    /// Stores that are made of its backups.
    Backups,
}

/// What a store had to decide, for the counters of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Rows that were copied because no sync of theirs was known.
    pub(crate) unproven: u64,
    /// Events that were sent, not acknowledged, and found.
    pub(crate) unacknowledged: u64,
    /// Deliveries that were told to end, not acknowledged, and stand as before.
    pub(crate) forgotten: u64,
    /// Events of which only the trace is left.
    pub(crate) traces: u64,
    /// Dead letters.
    pub(crate) letters: u64,
    /// Dead letters that are being sent again.
    pub(crate) redriving: u64,
    /// Changes of the number of shards that were not acknowledged.
    pub(crate) resharding: u64,
    /// Stores with several generations of shards.
    pub(crate) generations: u64,
    /// Commands that are there, and those that have come further than was acknowledged.
    pub(crate) commands: u64,
    pub(crate) commands_further: u64,
    /// Backups that became stores.
    pub(crate) restored: u64,
    /// Backups that were cut off and are none.
    pub(crate) cut_off: u64,
}

/// A store that was opened for judgement.
struct Case<'a> {
    judge: &'a Judge<'a>,
    store: &'a Store,
    destinations: Vec<DestinationId>,
    /// Events that are there.
    present: BTreeMap<usize, Position>,
    stages: BTreeMap<Delivery, Stage>,
    seen: Seen,
}

/// What is given in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Key(u64),
    Shard(ShardId),
}

impl Judge<'_> {
    /// Opens the store of the disk in `root`, judges it, uses it, stops it.
    ///
    /// # Errors
    /// Which promise broke.
    pub(crate) async fn judge(&self, root: &Path) -> Result<Seen, String> {
        let mut seen = self.judge_data(&data_below(root)).await?;
        if self.then == Then::Backups {
            for (number, kept) in &self.expected.backups {
                let judged = self.judge_backup(root, *number, kept, &mut seen).await;
                judged.map_err(|what| format!("backup {number}: {what}"))?;
            }
        }
        Ok(seen)
    }

    async fn judge_data(&self, data: &Path) -> Result<Seen, String> {
        let (store, recovery) = self.open(data)?;
        let judged = self.look(&store, &recovery).await;
        store.stop();
        let seen = judged?;
        if self.then == Then::SecondStart {
            let (store, recovery) = self.open(data)?;
            let again = self.look_again(&store, &recovery);
            store.stop();
            again?;
        }
        Ok(seen)
    }

    /// What was acknowledged as a backup becomes a store that holds what had been acknowledged before it was
    /// begun. What was cut off becomes such a store, or is refused.
    async fn judge_backup(
        &self,
        root: &Path,
        number: usize,
        kept: &Kept,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let (from, to) = (
            backup_below(root, number),
            root.join(format!("restored-{number}")),
        );
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let restored = match restore(&from, &to, "operator", &clock) {
            Ok(restored) => restored,
            Err(_) if !kept.is_whole => {
                seen.cut_off += 1;
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        };
        if !restored.manifest.left_out.is_empty() {
            // It says so itself; only what a fault has damaged may lack.
            return match self.after_faults {
                true => Ok(()),
                false => Err(format!("it lacks {:?}", restored.manifest.left_out)),
            };
        }
        let judge = Judge {
            expected: &kept.holds,
            then: Then::Nothing,
            ..*self
        };
        judge.judge_data(&to).await?;
        seen.restored += 1;
        Ok(())
    }

    fn open(&self, data: &Path) -> Result<(Store, Recovery), String> {
        let clock = Arc::new(self.clock.clone());
        let opened = Store::open(data, self.script.options(), clock);
        let (store, recovery) = opened.map_err(|error| format!("it does not open: {error}"))?;
        match recovery.findings.iter().find(|one| !self.allows(one)) {
            Some(finding) => Err(format!("opening found damage: {finding}")),
            None => Ok((store, recovery)),
        }
    }

    /// Whether a store may say this. Progress that was moved to a new file after a failed write leaves the
    /// old one, which is put aside by name where the power failed before it was removed.
    fn allows(&self, finding: &str) -> bool {
        let moved = finding.contains("replaced and kept as") && finding.ends_with(".quarantined.1");
        self.after_faults || self.script.fails_progress() && moved
    }

    async fn look(&self, store: &Store, recovery: &Recovery) -> Result<Seen, String> {
        let mut case = Case {
            judge: self,
            store,
            destinations: Vec::new(),
            present: BTreeMap::new(),
            stages: BTreeMap::new(),
            seen: Seen {
                unproven: recovery.unproven,
                ..Seen::default()
            },
        };
        case.shards()?;
        case.destinations()?;
        case.events()?;
        case.order()?;
        case.stages()?;
        case.lanes()?;
        case.letters()?;
        case.accounts()?;
        let found = commands::judge(store, self.expected)?;
        case.seen.commands = found.commands;
        case.seen.commands_further = found.unacknowledged;
        case.repeats().await?;
        case.goes_on().await?;
        commands::goes_on(store).await?;
        let health = store.health();
        let mut degraded = health.degraded.into_iter();
        let finding = degraded.find(|finding| !self.allows(finding));
        match health.unavailable.or(finding) {
            Some(finding) => Err(format!("it is not healthy: {finding}")),
            None => Ok(case.seen),
        }
    }

    /// After a clean stop everything that was sent is there once.
    fn look_again(&self, store: &Store, recovery: &Recovery) -> Result<(), String> {
        if recovery.unclean {
            return Err("a clean stop counts as unclean".to_owned());
        }
        for event in self.expected.sent.keys() {
            let found = store.find(SOURCE, &Script::id(*event));
            if found.map_err(|error| error.to_string())?.is_none() {
                return Err(format!("event {event} is gone after a clean stop"));
            }
        }
        commands::judge(store, self.expected)?;
        Ok(())
    }
}

impl Case<'_> {
    /// New events go to as many shards as was acknowledged, or as was asked for since.
    fn shards(&mut self) -> Result<(), String> {
        let (shards, may) = (self.store.shards(), &self.judge.expected.shards);
        let is_allowed = may.iter().any(|one| usize::from(*one) == shards);
        self.seen.resharding += u64::from(may.len() > 1);
        self.seen.generations += u64::from(self.store.generations().len() > 1);
        match may.is_empty() || is_allowed {
            true => Ok(()),
            false => Err(format!("it has {shards} shards; expected one of {may:?}")),
        }
    }

    fn destinations(&mut self) -> Result<(), String> {
        let catalog = self.store.catalog();
        let expected = self.judge.expected;
        let known = catalog.destinations();
        let records = catalog.sync_destinations(&destination_names());
        let records = records.map_err(|error| error.to_string())?;
        self.destinations = records.iter().map(|record| record.id).collect();
        if !expected.destinations.is_empty() && expected.destinations != self.destinations {
            return Err(format!("destinations have other numbers: {known:?}"));
        }
        for (number, record) in records.iter().enumerate() {
            let is_paused = record.state == RunState::Paused;
            let may = expected
                .paused
                .get(&number)
                .map_or(&[false][..], Vec::as_slice);
            if !may.contains(&is_paused) {
                return Err(format!(
                    "{} is {:?}; expected paused {may:?}",
                    record.name, record.state
                ));
            }
        }
        Ok(())
    }

    /// What was acknowledged is there, and nothing that was never sent.
    fn events(&mut self) -> Result<(), String> {
        let expected = self.judge.expected;
        for event in 0..self.judge.script.events.len() {
            let found = self.store.find(SOURCE, &Script::id(event));
            let found = found.map_err(|error| format!("event {event}: {error}"))?;
            let stored = expected.stored.get(&event).map(|(position, _)| *position);
            let Some(found) = found else {
                match stored {
                    None => continue,
                    Some(at) => {
                        return Err(format!(
                            "event {event} was acknowledged at {at} and is gone"
                        ));
                    }
                }
            };
            if !expected.sent.contains_key(&event) {
                return Err(format!("event {event} was never sent and is there"));
            }
            if stored.is_some_and(|stored| stored != found.position) {
                return Err(format!(
                    "event {event} was acknowledged at {stored:?} and lies at {}",
                    found.position
                ));
            }
            self.seen.unacknowledged += u64::from(stored.is_none());
            let sent = self.judge.script.event(event, &self.destinations);
            let sent = sent.ok_or("no such event")?;
            if found.destinations.ids() != sent.destinations.ids() {
                return Err(format!("event {event} is owed to {:?}", found.destinations));
            }
            match found.event {
                Some(event_found) if event_found.event != sent.event => {
                    return Err(format!("event {event} is not as it was sent"));
                }
                Some(_) => {}
                None => self.seen.traces += 1,
            }
            self.present.insert(event, found.position);
        }
        Ok(())
    }

    /// What was sent after an earlier event of its key was acknowledged lies behind it.
    fn order(&self) -> Result<(), String> {
        let (script, expected) = (self.judge.script, self.judge.expected);
        let keyed = |event: &usize| script.key(*event);
        for (earlier, (at, when)) in &expected.stored {
            for (later, position) in &self.present {
                let Some(sent) = expected.sent.get(later) else {
                    continue;
                };
                let same_key = keyed(earlier).is_some() && keyed(earlier) == keyed(later);
                let is_before = (at.generation, at.sequence)
                    < (position.generation, position.sequence)
                    && (at.generation != position.generation || at.shard == position.shard);
                if same_key && when < sent && !is_before {
                    return Err(format!(
                        "event {later} at {position} overtook {earlier} at {at}"
                    ));
                }
            }
        }
        let places: BTreeSet<_> = self.present.values().collect();
        match places.len() == self.present.len() {
            true => Ok(()),
            false => Err("two events have one position".to_owned()),
        }
    }

    /// Deliveries stand as was acknowledged, or as they were told to since.
    fn stages(&mut self) -> Result<(), String> {
        for (event, position) in &self.present {
            let sent = self
                .judge
                .script
                .events
                .get(*event)
                .ok_or("no such event")?;
            for to in &sent.to {
                let id = self.destinations.get(*to).ok_or("no such destination")?;
                let state = self.store.delivery_state(*position, *id);
                let state = state.map_err(|error| error.to_string())?;
                let stage = match state {
                    DeliveryState::Pending | DeliveryState::Retrying { .. } => Stage::Pending,
                    DeliveryState::Resolved => Stage::Resolved,
                    DeliveryState::Dead {
                        redriving: false, ..
                    } => Stage::Dead,
                    DeliveryState::Dead {
                        redriving: true, ..
                    } => Stage::Redriving,
                };
                let may = self.judge.expected.may((*event, *to));
                if !may.contains(&stage) {
                    return Err(format!(
                        "delivery of event {event} to d{} is {stage:?}; expected one of {may:?}",
                        to + 1
                    ));
                }
                self.seen.forgotten += u64::from(may.last() != Some(&stage));
                self.stages.insert((*event, *to), stage);
            }
        }
        Ok(())
    }

    /// Each lane gives exactly what is pending, once, as it was sent, and in order: of a key, and of a shard as
    /// long as no older generation may hold some of its keys back.
    fn lanes(&self) -> Result<(), String> {
        let is_one = self.store.generations().len() == 1;
        for (number, id) in self.destinations.iter().enumerate() {
            let mut lane = self.store.lane(*id).ok_or("a destination has no lane")?;
            let mut given = BTreeSet::new();
            let mut last = BTreeMap::new();
            loop {
                let batch = lane.read(7);
                let batch = batch.map_err(|error| format!("lane d{}: {error}", number + 1))?;
                if batch.is_empty() {
                    break;
                }
                for delivery in batch {
                    let event = Script::of_id(delivery.event.event.id());
                    let event = event.ok_or("a lane gives what nobody sent")?;
                    let position = delivery.event.position;
                    let key = self.judge.script.key(event).map(Row::Key);
                    let shard = is_one.then_some(Row::Shard(position.shard));
                    let place = (position.generation, position.sequence);
                    for row in key.into_iter().chain(shard) {
                        if last
                            .insert(row, place)
                            .is_some_and(|before| before >= place)
                        {
                            return Err(format!("lane d{} gives {position} late", number + 1));
                        }
                    }
                    let sent = self.judge.script.event(event, &self.destinations);
                    if sent.is_none_or(|sent| sent.event != delivery.event.event) {
                        return Err(format!(
                            "lane d{} gives event {event} otherwise",
                            number + 1
                        ));
                    }
                    if !given.insert(event) {
                        return Err(format!("lane d{} gives event {event} twice", number + 1));
                    }
                }
            }
            let pending: BTreeSet<_> = self.with_stage(Stage::Pending, number).collect();
            if given != pending {
                return Err(format!(
                    "lane d{} gives {given:?}; pending are {pending:?}",
                    number + 1
                ));
            }
        }
        Ok(())
    }

    fn with_stage(&self, stage: Stage, destination: usize) -> impl Iterator<Item = usize> {
        self.stages
            .iter()
            .filter(move |((_, to), is)| *to == destination && **is == stage)
            .map(|((event, _), _)| *event)
    }

    /// Each delivery that was given up has one dead letter with a whole copy, and no other has.
    fn letters(&mut self) -> Result<(), String> {
        let letters = self.store.dead_letters().list(None, None, LETTERS);
        let letters = letters.map_err(|error| error.to_string())?;
        let mut numbers = BTreeSet::new();
        let mut of = BTreeSet::new();
        for letter in &letters {
            let event = Script::of_id(letter.event.event.id()).ok_or("a letter of no event")?;
            let mut destinations = self.destinations.iter();
            let to = destinations.position(|id| *id == letter.destination);
            let delivery = (event, to.ok_or("a letter of no destination")?);
            let stage = match letter.redriving {
                true => Stage::Redriving,
                false => Stage::Dead,
            };
            // The letter outlives what is known of its event.
            let is = self.stages.get(&delivery).copied().unwrap_or(stage);
            if is != stage || !self.judge.expected.may(delivery).contains(&stage) {
                return Err(format!(
                    "letter {} of {delivery:?}: it is {is:?}",
                    letter.id
                ));
            }
            let sent = self.judge.script.event(event, &self.destinations);
            if sent.is_none_or(|sent| sent.event != letter.event.event) {
                return Err(format!(
                    "letter {} holds event {event} otherwise",
                    letter.id
                ));
            }
            if !numbers.insert(letter.id) || !of.insert(delivery) {
                return Err(format!("a second letter of {delivery:?}, {}", letter.id));
            }
            self.seen.redriving += u64::from(letter.redriving);
        }
        self.seen.letters = letters.len() as u64;
        for (delivery, stage) in &self.stages {
            let has_one = matches!(stage, Stage::Dead | Stage::Redriving);
            if has_one != of.contains(delivery) {
                return Err(format!(
                    "{delivery:?} is {stage:?}, and its letter is not so"
                ));
            }
        }
        Ok(())
    }

    /// Accepted = delivered + pending + dead + expired + discarded, and as the history has it.
    fn accounts(&self) -> Result<(), String> {
        for (number, id) in self.destinations.iter().enumerate() {
            let totals = self.store.totals(*id);
            let ended = totals.delivered + totals.expired + totals.discarded;
            let count = |stage| self.with_stage(stage, number).count() as u64;
            let pending = count(Stage::Pending) + count(Stage::Redriving);
            let accepted = pending + count(Stage::Dead) + count(Stage::Resolved);
            let expected = (
                accepted,
                pending,
                count(Stage::Dead),
                count(Stage::Resolved),
            );
            let found = (totals.accepted, totals.pending, totals.dead, ended);
            if expected != found {
                return Err(format!(
                    "d{} counts {totals:?}; expected accepted, pending, dead, ended {expected:?}",
                    number + 1
                ));
            }
        }
        Ok(())
    }

    /// What is sent again gets its first place; what was lost gets one.
    async fn repeats(&self) -> Result<(), String> {
        let events: Vec<_> = self.judge.expected.sent.keys().copied().collect();
        if events.is_empty() {
            return Ok(());
        }
        let script = self.judge.script;
        let new = events
            .iter()
            .filter_map(|event| script.event(*event, &self.destinations));
        let receipts = self.store.append(new.collect()).await;
        let receipts = receipts.map_err(|error| format!("sending again: {error}"))?;
        for (event, receipt) in events.iter().zip(receipts) {
            let before = self.present.get(event);
            let is_first = before.is_none_or(|before| *before == receipt.position);
            if receipt.duplicate != before.is_some() || !is_first {
                return Err(format!(
                    "event {event} was found at {before:?}; sent again it got {receipt:?}"
                ));
            }
        }
        Ok(())
    }

    /// It accepts, and what it accepts is there to be delivered.
    async fn goes_on(&self) -> Result<(), String> {
        let first = self.destinations.first().ok_or("no destination")?;
        let to = DestinationSet::new([*first]);
        let fresh = new_event("fresh", "k1", b"fresh".to_vec(), to).ok_or("no event")?;
        let receipts = self.store.append(vec![fresh]).await;
        let receipts = receipts.map_err(|error| format!("a new event: {error}"))?;
        let [receipt] = receipts.as_slice() else {
            return Err("a new event got no receipt".to_owned());
        };
        if receipt.duplicate || self.present.values().any(|used| *used == receipt.position) {
            return Err(format!("a new event got {receipt:?}"));
        }
        match self.store.event(receipt.position) {
            Ok(Some(found)) if found.event.is_some() => Ok(()),
            found => Err(format!("a new event is not there: {found:?}")),
        }
    }
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        self.unproven += other.unproven;
        self.unacknowledged += other.unacknowledged;
        self.forgotten += other.forgotten;
        self.traces += other.traces;
        self.letters += other.letters;
        self.redriving += other.redriving;
        self.resharding += other.resharding;
        self.generations += other.generations;
        self.commands += other.commands;
        self.commands_further += other.commands_further;
        self.restored += other.restored;
        self.cut_off += other.cut_off;
    }
}
