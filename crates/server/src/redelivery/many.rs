//! Many dead letters at once. An action is planned first: which letters are meant is settled, and how many there
//! are must be what its operator expects. Then it is put on the audit trail and done; a redrive is begun, and goes on
//! by itself (`feeding`).

use tracing::info;
use wayhold_model::rate::Rate;
use wayhold_model::{DestinationId, FailureClass, Timestamp};
use wayhold_store::{LetterAt, LetterError, LetterQuery, LetterSelection, Store};

use super::letter_filter::{LettersMeant, Names};
use super::letters::{Letters, RedeliveryError, whole};

/// Most dead letters that one action takes, unless all of them refer to their events: their places are held in
/// memory, 32 bytes each, while it goes on.
pub const LETTERS_PER_ACTION_MAX: usize = 500_000;

/// Letters read at once while they are held against a filter: each brings its event along.
const READ_AT_ONCE: usize = 256;

/// Letters that are recorded as ended or as being sent again in one synced step.
pub(super) const STEP_MAX: usize = 64;

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

/// Which letters an action takes, settled at one moment.
#[derive(Debug)]
pub(super) struct Plan {
    /// Where they lie, in the order of their events: so those of a key are in order.
    pub(super) letters: Vec<LetterAt>,
    /// Above the number of each of them: letters from here on came about later.
    pub(super) below: u64,
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
            Some(_) => Ok(tally_of(&plan(store, &which, now)?.letters)),
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
            // While one runs, how many are left changes from moment to moment.
            this.refuse_beside_another(&plan)?;
            let tally = tally_of(&plan.letters);
            tally.confirm(expected)?;
            this.begin(&plan, &which, rate, &by).await?;
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
            let tally = tally_of(&plan.letters);
            tally.confirm(expected)?;
            let count = this
                .discard_plan(plan.letters, &which, &by, &reason)
                .await?;
            Ok(Tally { count, ..tally })
        })
        .await
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

/// What is meant of the letters that there are now.
fn plan(store: &Store, which: &LettersMeant, now: Timestamp) -> Result<Plan, RedeliveryError> {
    let below = store.dead_letters().next_number();
    let letters = select(store, which, (now, below))?;
    Ok(Plan { letters, below })
}

/// The letters with numbers below `below` that are meant, in the order of their events; ages end at `now`.
pub(super) fn select(
    store: &Store,
    which: &LettersMeant,
    (now, below): (Timestamp, u64),
) -> Result<Vec<LetterAt>, RedeliveryError> {
    let beyond = LETTERS_PER_ACTION_MAX + 1;
    let mut selected = match &which.filter {
        None => store.dead_letters().places(&which.query, below, beyond)?,
        Some(_) => filtered(store, which, (now, below), beyond)?,
    };
    if selected.len() >= beyond {
        return Err(RedeliveryError::TooMany);
    }
    selected.sort_unstable_by_key(|letter| (letter.destination, letter.position));
    Ok(selected)
}

fn filtered(
    store: &Store,
    which: &LettersMeant,
    (now, below): (Timestamp, u64),
    max: usize,
) -> Result<Vec<LetterAt>, LetterError> {
    let names = Names::of(store);
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let query = which.query.clone();
        let page = store.dead_letters().page(query, after, READ_AT_ONCE)?;
        let meant = page.letters.iter().filter(|letter| {
            letter.id < below
                && !letter.redriving
                && which.holds(letter, names.name(letter.destination), now)
        });
        found.extend(meant.map(LetterAt::of));
        after = page.next.filter(|next| *next < below && found.len() < max);
        if after.is_none() {
            return Ok(found);
        }
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
pub(super) fn words_of(which: &LettersMeant) -> String {
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
