//! The real store under a history: every step is done to it and to the reference, and what it says is
//! compared with what the reference says.

/// An error unless it holds.
macro_rules! ensure {
    ($holds:expr, $($otherwise:tt)+) => {
        if !$holds {
            return Err(format!($($otherwise)+));
        }
    };
}

mod compare;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use wayhold_model::{DestinationId, DestinationSet, Position, StoredEvent, Timestamp};
use wayhold_store::{
    AppendError, Delivery, DeliveryState, Lane, LetterError, LetterSelection, NewEvent, Receipt,
    ReshardError, Resolution, Store,
};

use super::reference::{Reference, State};
use super::seen::Seen;
use super::steps::{DESTINATIONS, Ending, Step};
use super::values::{attempt, ended_as, event, number_of, resolution};
use super::world::End;

/// What is stored after a change of the number of shards is read once the older writers have ended, which they
/// do by themselves: longer than this is never.
const OLDER_ENDS: Duration = Duration::from_secs(20);

/// Who acts on dead letters.
const OPERATOR: &str = "model";

/// The store and the reference, side by side.
pub(super) struct Subject {
    store: Store,
    lanes: Vec<InHand>,
    to: Vec<DestinationId>,
    reference: Reference,
    step: usize,
    pub(super) seen: Seen,
}

/// One destination's lane, and what was read of it since the store was opened.
struct InHand {
    lane: Lane,
    /// What was read and is not ended, in the order in which it was read.
    held: Vec<Arc<StoredEvent>>,
    /// Numbers of all that was read.
    read: BTreeSet<u64>,
}

type Checked = Result<(), String>;

impl InHand {
    fn new(lane: Option<Lane>) -> Result<Self, String> {
        Ok(Self {
            lane: lane.ok_or("a destination has no lane")?,
            held: Vec::new(),
            read: BTreeSet::new(),
        })
    }
}

impl Subject {
    /// Begins with a store that is empty.
    pub(super) fn new(store: Store) -> Result<Self, String> {
        let names: Vec<String> = (1..=DESTINATIONS).map(|n| format!("d{n}")).collect();
        let named = store.catalog().sync_destinations(&names);
        named.map_err(|error| error.to_string())?;
        let mut subject = Self {
            to: Vec::new(),
            lanes: Vec::new(),
            store,
            reference: Reference::default(),
            step: 0,
            seen: Seen::default(),
        };
        subject.take_lanes()?;
        Ok(subject)
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// The store was stopped and opened again: all it knew it knows.
    pub(super) async fn restarted(&mut self, store: Store) -> Checked {
        self.seen.restarted += 1;
        self.store = store;
        self.synced();
        self.take_lanes()?;
        self.check().await
    }

    /// The process or the machine ended and the store was opened again: what was not synced may be undone.
    pub(super) async fn ended(&mut self, store: Store, how: End) -> Checked {
        match how {
            End::Kill => self.seen.killed += 1,
            End::PowerCut => self.seen.cut += 1,
        }
        self.store = store;
        self.take_lanes()?;
        self.end_redrives()?;
        let events: Vec<_> = self
            .reference
            .iter()
            .map(|(n, one)| (n, one.position))
            .collect();
        for (number, position) in events {
            for to in 0..DESTINATIONS {
                let before = self.reference.state(number, to);
                let found = self.state(position, to, before)?;
                self.reference.found(number, to, found)?;
                self.seen.repeated += u64::from(Some(found) != before);
            }
        }
        self.sync(0).await?;
        self.check().await
    }

    fn take_lanes(&mut self) -> Checked {
        let known = self.store.catalog().destinations();
        self.to = known.iter().map(|one| one.id).collect();
        ensure!(self.to.len() == DESTINATIONS, "destinations are {known:?}");
        self.lanes = Vec::new();
        for to in &self.to {
            self.lanes.push(InHand::new(self.store.lane(*to))?);
        }
        Ok(())
    }

    /// Redrives that a kill cut off are under way again: they arrive.
    fn end_redrives(&mut self) -> Checked {
        for to in 0..DESTINATIONS {
            let handle = self.lane(to)?.lane.handle();
            for letter in handle.redriving().map_err(|error| error.to_string())? {
                let number = number_of(&letter.event)?;
                self.reference.found(number, to, State::Pending)?;
                handle.settle_letter(letter.id, Resolution::Delivered);
                self.reference.set(number, to, State::Delivered);
            }
        }
        Ok(())
    }

    /// Counts what the store compacted since it was opened.
    pub(super) fn count_compactions(&mut self) {
        self.seen.compacted += self.store.figures().compactions;
    }

    /// Does one step, and compares.
    pub(super) async fn step(&mut self, step: &Step) -> Checked {
        self.step += 1;
        match step {
            Step::Accept { batches, full } => self.accept(batches, *full).await?,
            Step::Repeat { pick, altered } => self.repeat(*pick, *altered).await?,
            Step::Read { to, max } => self.read(*to, *max)?,
            Step::Settle { to, count, how } => self.settle(*to, *count, *how)?,
            Step::Deliver { max } => {
                for to in 0..DESTINATIONS {
                    self.read(to, *max)?;
                    self.settle(to, usize::MAX, Ending::Delivered)?;
                }
            }
            Step::Park { to, pick } => self.park(*to, *pick).await?,
            Step::Sync { to } => self.sync(*to).await?,
            Step::Redrive { to, pick, how } => self.redrive(*to, *pick, *how)?,
            Step::Revive { to } => self.revive(*to)?,
            Step::Discard { to, pick } => self.discard(*to, *pick)?,
            Step::Reshard(count) => self.reshard(*count)?,
            // Done by whoever owns the files and the clock.
            Step::Pass { .. } | Step::Restart | Step::Kill | Step::PowerCut => {}
        }
        self.check_counts()
    }

    async fn sync(&mut self, to: usize) -> Checked {
        let handle = self.lane(to)?.lane.handle();
        let durable = handle.durable().await;
        durable.map_err(|error| error.to_string())?;
        self.synced();
        Ok(())
    }

    /// All destinations' records are synced together.
    fn synced(&mut self) {
        for to in 0..DESTINATIONS {
            self.reference.synced(to);
        }
    }

    async fn accept(&mut self, batches: &[Vec<u64>], to: Option<usize>) -> Checked {
        let owed = Arc::new(DestinationSet::new(self.to.iter().copied()));
        let full = to.and_then(|to| self.to.get(to)).copied();
        let full = full.map(|full| Arc::new(DestinationSet::new([full])));
        let mut sent = Vec::new();
        for keys in batches {
            let mut events = Vec::new();
            for key in keys {
                let number = self.reference.number();
                let data = format!(
                    "{key}:{number}:{}",
                    "x".repeat(usize::try_from(number % 97).unwrap_or(0))
                );
                events.push((number, *key, data));
            }
            sent.push(events);
        }
        let answers = join_all(sent.iter().map(|events| {
            let batch = events.iter().map(|(number, key, data)| NewEvent {
                set_aside: full.clone(),
                ..event(*number, *key, data, &owed)
            });
            self.store.append(batch.collect())
        }));
        for (events, answer) in sent.iter().zip(answers.await) {
            let receipts: Vec<Option<Receipt>> = match answer {
                Ok(receipts) => receipts.into_iter().map(Some).collect(),
                Err(AppendError::Partly { receipts, .. }) => receipts,
                Err(AppendError::Busy | AppendError::Unavailable { .. }) => Vec::new(),
                Err(error) => return Err(format!("a batch was refused: {error}")),
            };
            let mut last = BTreeMap::new();
            self.seen.refused += u64::from(receipts.is_empty());
            for ((number, key, data), receipt) in events.iter().zip(receipts) {
                let Some(receipt) = receipt else { continue };
                ensure!(
                    !receipt.duplicate,
                    "event {number} is new and was called a duplicate"
                );
                let before = last.insert(*key, receipt.position);
                ensure!(
                    *key == 0 || before.is_none_or(|before| before < receipt.position),
                    "event {number} lies before an earlier one of its key and batch"
                );
                self.seen.accepted += 1;
                let data = data.clone();
                self.reference
                    .accept(*number, *key, data, receipt.position, self.step)?;
                if let Some(to) = to {
                    self.reference.set_aside(*number, to);
                    self.seen.set_aside += 1;
                }
            }
        }
        Ok(())
    }

    async fn repeat(&mut self, pick: u64, altered: bool) -> Checked {
        let Some((number, one)) = self.reference.pick(pick) else {
            return Ok(());
        };
        let (key, position) = (one.key, one.position);
        let data = match altered {
            true => format!("{} altered", one.data),
            false => one.data.clone(),
        };
        let owed = Arc::new(DestinationSet::new(self.to.iter().copied()));
        let answer = self
            .store
            .append(vec![event(number, key, &data, &owed)])
            .await;
        match (altered, answer) {
            (false, Ok(receipts)) => {
                let again = receipts.first().filter(|receipt| receipt.duplicate);
                ensure!(
                    again.map(|receipt| receipt.position) == Some(position),
                    "event {number} was accepted at {position}; sent again it got {receipts:?}"
                );
                self.seen.duplicates += 1;
            }
            (true, Err(AppendError::Conflict { first, .. })) => {
                ensure!(first == position, "event {number} conflicts with {first}");
                self.seen.conflicts += 1;
            }
            (_, answer) => return Err(format!("event {number}, altered {altered}: {answer:?}")),
        }
        Ok(())
    }

    fn read(&mut self, to: usize, max: usize) -> Checked {
        let deadline = Instant::now() + OLDER_ENDS;
        loop {
            let read = self.lane(to)?.lane.read(max);
            let read: Vec<Delivery> = read.map_err(|error| error.to_string())?;
            let count = read.len();
            ensure!(count <= max, "{count} were read, at most {max} asked for");
            for delivery in read {
                self.take(to, delivery)?;
            }
            if count > 0 {
                return Ok(());
            }
            let pending = self.reference.that_are(to, State::Pending);
            let missed: Vec<_> = pending.difference(&self.lane(to)?.read).copied().collect();
            if missed.is_empty() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "lane {to} ended without {missed:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn take(&mut self, to: usize, delivery: Delivery) -> Checked {
        let number = number_of(&delivery.event)?;
        let Some(known) = self.reference.get(number).cloned() else {
            return Err(format!(
                "lane {to} gave event {number}, which was never accepted"
            ));
        };
        let state = self.reference.state(number, to);
        ensure!(
            state == Some(State::Pending),
            "lane {to} gave event {number}, which is {state:?}"
        );
        self.same(number, &delivery.event)?;
        let earlier: Vec<u64> = self
            .reference
            .iter()
            .filter(|(_, one)| {
                known.key != 0 && one.key == known.key && one.position < known.position
            })
            .map(|(number, _)| number)
            .filter(|number| self.reference.state(*number, to) == Some(State::Pending))
            .collect();
        self.seen.read += 1;
        let lane = self.lane(to)?;
        let overtaken: Vec<_> = earlier
            .iter()
            .filter(|one| !lane.read.contains(one))
            .collect();
        ensure!(
            overtaken.is_empty(),
            "lane {to} gave event {number} before {overtaken:?} of its key"
        );
        ensure!(
            lane.read.insert(number),
            "lane {to} gave event {number} twice"
        );
        lane.held.push(delivery.event);
        Ok(())
    }

    fn settle(&mut self, to: usize, count: usize, how: Ending) -> Checked {
        let lane = self.lane(to)?;
        let handle = lane.lane.handle();
        let ended: Vec<_> = lane.held.drain(..count.min(lane.held.len())).collect();
        if how == Ending::Delivered {
            let positions: Vec<Position> = ended.iter().map(|event| event.position).collect();
            handle.settle_delivered(&positions);
        } else {
            for event in &ended {
                handle.settle(event, resolution(how));
            }
        }
        self.seen.settled += ended.len() as u64;
        for event in ended {
            self.reference.set(number_of(&event)?, to, ended_as(how));
        }
        Ok(())
    }

    async fn park(&mut self, to: usize, pick: u64) -> Checked {
        let lane = self.lane(to)?;
        let handle = lane.lane.handle();
        let at = usize::try_from(pick).unwrap_or(0) % lane.held.len().max(1);
        let Some(position) = lane.held.get(at).map(|event| event.position) else {
            return Ok(());
        };
        let attempts = match self.delivery_state(position, to)? {
            DeliveryState::Retrying { attempts, .. } => attempts,
            _ => 0,
        };
        let started = handle.record_start(position, attempts + 1).await;
        started.map_err(|error| error.to_string())?;
        handle.record_failure(position, attempt(attempts + 1), Timestamp::from_micros(1));
        let now = self.delivery_state(position, to)?;
        ensure!(
            matches!(now, DeliveryState::Retrying { attempts: n, .. } if n == attempts + 1),
            "after attempt {} of {position} failed it stands as {now:?}",
            attempts + 1
        );
        self.seen.parked += 1;
        Ok(())
    }

    fn redrive(&mut self, to: usize, pick: u64, how: Ending) -> Checked {
        // What is set aside is made pending again all together, by `revive`.
        let aside = self.reference.aside(to);
        let letter = self.letter(to, pick)?;
        let Some((number, letter)) = letter.filter(|(number, _)| !aside.contains(number)) else {
            return Ok(());
        };
        let redriven = self.store.dead_letters().redrive(letter, OPERATOR);
        let redriven = redriven.map_err(|error| format!("letter {letter}: {error}"))?;
        self.same(number, &redriven.event)?;
        self.reference.set(number, to, State::Pending);
        let again = self.store.dead_letters().redrive(letter, OPERATOR);
        ensure!(
            matches!(again, Err(LetterError::Redriving { .. })),
            "letter {letter} was redriven twice at a time: {again:?}"
        );
        let handle = self.lane(to)?.lane.handle();
        // What waits for nobody's word ends; expiry is no outcome of an operator's redrive.
        let how = if how == Ending::Expired {
            Ending::Delivered
        } else {
            how
        };
        handle.settle_letter(letter, resolution(how));
        self.reference.set(number, to, ended_as(how));
        self.seen.redriven += 1;
        Ok(())
    }

    fn discard(&mut self, to: usize, pick: u64) -> Checked {
        let Some((number, letter)) = self.letter(to, pick)? else {
            return Ok(());
        };
        let discarded = self
            .store
            .dead_letters()
            .discard(letter, OPERATOR, "the model said so");
        discarded.map_err(|error| format!("letter {letter}: {error}"))?;
        self.reference.set(number, to, State::Discarded);
        self.reference.found(number, to, State::Discarded)?;
        self.seen.discarded += 1;
        Ok(())
    }

    fn revive(&mut self, to: usize) -> Checked {
        let aside = self.reference.aside(to);
        let which = LetterSelection {
            destination: self.to.get(to).copied().ok_or("no such destination")?,
            class: None,
        };
        let revived = self.store.dead_letters().revive(&which, OPERATOR);
        let revived = revived.map_err(|error| error.to_string())?;
        ensure!(
            revived == aside.len() as u64,
            "{revived} deliveries of {to} were made pending again, expected {aside:?}"
        );
        for number in aside {
            self.reference.set(number, to, State::Pending);
            self.reference.found(number, to, State::Pending)?;
        }
        self.seen.revived += revived;
        // The lane is read from its beginning.
        let lane = self.store.lane(which.destination);
        *self.lane(to)? = InHand::new(lane)?;
        Ok(())
    }

    /// A dead letter of a destination.
    fn letter(&mut self, to: usize, pick: u64) -> Result<Option<(u64, u64)>, String> {
        let dead = self.reference.that_are(to, State::Dead);
        let at = usize::try_from(pick).unwrap_or(0) % dead.len().max(1);
        let Some(number) = dead.into_iter().nth(at) else {
            return Ok(None);
        };
        let position = self.reference.get(number).map(|one| one.position);
        match self.delivery_state(position.ok_or("nothing of that number")?, to)? {
            DeliveryState::Dead {
                letter,
                redriving: false,
            } => Ok(Some((number, letter))),
            other => Err(format!(
                "event {number} is dead for {to}, and stands as {other:?}"
            )),
        }
    }

    fn reshard(&mut self, count: u16) -> Checked {
        match self.store.set_shards(count, OPERATOR, None) {
            Ok(begun) => self.seen.resharded += u64::from(begun.is_some()),
            // A history that drains little holds many generations.
            Err(ReshardError::TooMany { .. }) => {}
            Err(error) => return Err(format!("{count} shards: {error}")),
        }
        ensure!(
            self.store.shards() == usize::from(count) || self.store.generations().len() > 1,
            "there are {} shards, expected {count}",
            self.store.shards()
        );
        Ok(())
    }

    /// Reads every lane to its end: whatever is pending comes, once and in order.
    pub(super) fn drain(&mut self) -> Checked {
        const AT_ONCE: usize = 64;
        for to in 0..DESTINATIONS {
            loop {
                let before = self.lane(to)?.read.len();
                self.read(to, AT_ONCE)?;
                if self.lane(to)?.read.len() == before {
                    break;
                }
            }
        }
        Ok(())
    }

    fn lane(&mut self, to: usize) -> Result<&mut InHand, String> {
        self.lanes
            .get_mut(to)
            .ok_or_else(|| format!("there is no lane {to}"))
    }

    fn delivery_state(&self, position: Position, to: usize) -> Result<DeliveryState, String> {
        let destination = self.to.get(to).ok_or("no such destination")?;
        let state = self.store.delivery_state(position, *destination);
        state.map_err(|error| error.to_string())
    }
}
