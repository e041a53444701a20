//! Events that the server fetches itself, row by row from somebody's table. A batch is stored whole where
//! it can be; a row that is refused keeps back only later rows of its key, since those must not overtake it.

use std::collections::HashSet;

use wayhold_model::admission::Fill;
use wayhold_model::event::is_json;

use super::accept::{Accept, Admitted};
use super::draft::Draft;
use super::{Refusal, Refused, json};

/// What became of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowResult {
    /// Its event is durable, or one that nobody wants and the configuration says to ignore.
    Accepted,
    /// It cannot be accepted as it is.
    Refused(Refusal),
    /// It may be accepted later as it is.
    Later(Refusal),
    /// An earlier row of its key was not accepted.
    Behind,
}

/// A row on its way in.
pub(crate) struct RowDraft<'a> {
    /// The key that its event has, or would have if it could be read.
    pub(crate) key: Option<&'a str>,
    /// Its event, or why there is none.
    pub(crate) event: Result<Draft<'a>, Refusal>,
}

/// A row under way to the store.
struct Pending {
    index: usize,
    admitted: Admitted,
}

impl Accept {
    /// Accepts rows in order, each an event of its own; `held` are keys of which an earlier row was refused.
    pub(crate) async fn rows(
        &self,
        rows: Vec<RowDraft<'_>>,
        admit_until: Fill,
        held: &HashSet<String>,
    ) -> Vec<RowResult> {
        let mut results = vec![RowResult::Behind; rows.len()];
        let mut held_now: HashSet<String> = HashSet::new();
        let mut pending = Vec::with_capacity(rows.len());
        for ((index, row), result) in rows.into_iter().enumerate().zip(&mut results) {
            let waits = |key: &str| held.contains(key) || held_now.contains(key);
            if row.key.is_some_and(waits) {
                continue;
            }
            let key = row.key.map(str::to_owned);
            let refusal = match row.event.and_then(|draft| self.read_row(draft)) {
                Ok(mut admitted) => match self.let_in(&mut admitted, admit_until).await {
                    Ok(()) => {
                        pending.push(Pending { index, admitted });
                        continue;
                    }
                    Err(refusal) => refusal,
                },
                Err(refusal) => refusal,
            };
            held_now.extend(key);
            *result = self.refused_row(refusal);
        }
        self.store_rows(pending, &mut results).await;
        results
    }

    fn read_row(&self, draft: Draft<'_>) -> Result<Admitted, Refusal> {
        let limits = self.limits();
        let (bytes_max, depth_max) = (limits.body_bytes, limits.json_depth);
        drop(limits);
        if draft.data.len() > bytes_max {
            return Err(Refusal::TooLarge {
                what: "the number of bytes of the payload",
                limit: bytes_max,
            });
        }
        if is_json(&draft.content_type) && !draft.data.is_empty() {
            json::check(json::text(&draft.data)?, depth_max)?;
        }
        self.admit_draft(draft)
    }

    /// Stores what was let in: all of it, or what is left without the rows that the store refuses.
    async fn store_rows(&self, mut pending: Vec<Pending>, results: &mut [RowResult]) {
        let mut set = |index: usize, result: RowResult| {
            if let Some(slot) = results.get_mut(index) {
                *slot = result;
            }
        };
        while !pending.is_empty() {
            let (indexes, admitted): (Vec<_>, Vec<_>) = pending
                .drain(..)
                .map(|one| (one.index, one.admitted))
                .unzip();
            match self.store_all(&admitted).await {
                Ok(_) => {
                    for index in indexes {
                        set(index, RowResult::Accepted);
                    }
                }
                Err(Refused {
                    index: Some(place),
                    refusal,
                }) => {
                    // The store took none. Once more without this one, and what must not overtake it.
                    let key = admitted
                        .get(place)
                        .and_then(|one| one.event.key().map(str::to_owned));
                    for (at, (index, admitted)) in indexes.into_iter().zip(admitted).enumerate() {
                        let is_later = at > place && key.is_some();
                        if at == place {
                            set(index, self.refused_row(refusal.clone()));
                        } else if !(is_later && admitted.event.key() == key.as_deref()) {
                            pending.push(Pending { index, admitted });
                        }
                    }
                }
                Err(Refused {
                    refusal: Refusal::Partly { accepted, cause },
                    ..
                }) => {
                    let cause = self.refused_row(*cause);
                    for (index, stored) in indexes.into_iter().zip(accepted) {
                        set(index, stored.map_or(cause.clone(), |_| RowResult::Accepted));
                    }
                }
                Err(Refused { refusal, .. }) => {
                    let result = self.refused_row(refusal);
                    for index in indexes {
                        set(index, result.clone());
                    }
                }
            }
        }
    }

    fn refused_row(&self, refusal: Refusal) -> RowResult {
        self.count_refused(&refusal);
        match refusal.is_temporary() {
            true => RowResult::Later(refusal),
            false => RowResult::Refused(refusal),
        }
    }
}
