//! Rows that were refused: which keys wait for them, and what an operator is told. They are tried again
//! after a while, because the table, the routes or the limits may be others by then.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;
use wayhold_model::Timestamp;

use super::row::{Place, Row};
use super::standing::RefusedRow;
use crate::ingest::Refusal;

/// Most rows that may be refused at a time: each is kept with its reason, and its key is named in every
/// query. With more of them something is wrong with all, and reading stops.
pub(super) const REFUSED_MAX: usize = 1_000;

/// How long until refused rows are tried again.
pub(super) const AGAIN: Duration = Duration::from_secs(10);

/// Refused rows of one source.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// What is told of each, in the order of refusal.
    rows: Vec<RefusedRow>,
    /// Keys that wait.
    keys: HashSet<String>,
    /// The same, as a query takes them.
    list: Vec<String>,
    /// Rows without a key that were refused: they hold nobody up, and are not tried each time.
    places: HashSet<Place>,
    /// When each was refused first, by its event's id.
    since: HashMap<String, Timestamp>,
    tried: Option<Instant>,
}

impl Held {
    /// Keys of which an earlier row was refused.
    pub(super) fn keys(&self) -> &HashSet<String> {
        &self.keys
    }

    /// The same in a list.
    pub(super) fn list(&self) -> &[String] {
        &self.list
    }

    /// Whether this very row was refused and nobody waits for it.
    pub(super) fn has(&self, place: &Place) -> bool {
        self.places.contains(place)
    }

    /// What is told of the rows.
    pub(super) fn rows(&self) -> &[RefusedRow] {
        &self.rows
    }

    /// Whether more rows are refused than may be.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= REFUSED_MAX
    }

    /// Notes a refused row; later rows of its key wait from now on. Answers whether it was not refused before.
    pub(super) fn hold(&mut self, row: &Row, refusal: &Refusal, now: Timestamp) -> bool {
        let id = row.id.clone().unwrap_or_default();
        let is_new = !self.since.contains_key(&id);
        let since = *self.since.entry(id.clone()).or_insert(now);
        self.tried.get_or_insert_with(Instant::now);
        let key = row.key.clone().filter(|key| !key.is_empty());
        let told = RefusedRow {
            id,
            key: key.clone(),
            reason: refusal.to_string(),
            since,
        };
        // One without a key may be read again by another place before its time.
        let known = self.rows.iter_mut().find(|one| one.id == told.id);
        match known.filter(|one| !one.id.is_empty()) {
            Some(known) => *known = told,
            None => self.rows.push(told),
        }
        match key {
            Some(key) if self.keys.insert(key.clone()) => self.list.push(key),
            Some(_) => {}
            None => drop(self.places.insert(row.place.clone())),
        }
        is_new
    }

    /// When to try all of them again, where there are any.
    pub(super) fn due(&self) -> Option<Instant> {
        self.tried.map(|tried| tried + AGAIN)
    }

    /// Forgets them, so that they are tried again; since when they were refused is kept for those that are
    /// refused again.
    pub(super) fn try_again(&mut self) {
        let refused: HashSet<String> = self.rows.drain(..).map(|row| row.id).collect();
        self.since.retain(|id, _| refused.contains(id));
        self.keys.clear();
        self.list.clear();
        self.places.clear();
        self.tried = None;
    }
}
