//! `GET /v1/events` without an id: a list of the events that are held, and where their deliveries stand.
//!
//! A page costs a bounded amount of work, however few events a selection takes: one that found nothing may still
//! have a page after it.

use std::sync::Arc;

use axum::Json;
use serde::{Deserialize, Serialize};
use wayhold_model::{DestinationId, StoredEvent};
use wayhold_store::{DestinationRecord, ScanOrder, ScanPlace, Store};

use super::list::List;
use super::lookup::state_name;
use crate::app::App;
use crate::blocking::blocking;
use crate::http::{Problem, ProblemType};
use crate::redelivery::RedeliveryError;
use crate::redelivery::selection::{InvalidSelection, Selection, SelectionText};

/// Most events on one page.
const LISTED_MAX: usize = 100;

/// Most events that are looked at for one page: a few megabytes of them, or some tens of milliseconds.
const EXAMINED_MAX: usize = 10_000;

/// What is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Asks for the one event of this id and source, and for no list.
    id: Option<String>,
    from: Option<String>,
    until: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    source: Option<String>,
    key: Option<String>,
    filter: Option<String>,
    /// Only events that were to go to this destination when they were accepted.
    destination: Option<String>,
    /// `newest` (the default) or `oldest` first.
    #[serde(default)]
    order: Order,
    /// `next` of the page before.
    after: Option<String>,
    limit: Option<usize>,
}

impl Wanted {
    /// Id and source, where one event is asked for.
    ///
    /// # Errors
    /// When something else is asked for besides.
    pub(super) fn identity(&mut self) -> Result<Option<(String, Option<String>)>, Problem> {
        let Some(id) = self.id.take() else {
            return Ok(None);
        };
        let source = self.source.take();
        let others = [
            &self.from,
            &self.until,
            &self.kind,
            &self.key,
            &self.filter,
            &self.destination,
            &self.after,
        ];
        if others.into_iter().any(Option::is_some) || self.limit.is_some() {
            let detail = "id: expected beside source alone; a list has no id";
            return Err(Problem::new(ProblemType::InvalidRequest, detail).with("field", "id"));
        }
        Ok(Some((id, source)))
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    #[default]
    Newest,
    Oldest,
}

/// An event of a list.
#[derive(Debug, Serialize)]
pub(super) struct ListedBody {
    id: String,
    source: String,
    #[serde(rename = "type")]
    kind: String,
    subject: Option<String>,
    key: Option<String>,
    position: String,
    accepted_at: String,
    /// Bytes of its data.
    bytes: usize,
    deliveries: Vec<StandingBody>,
}

#[derive(Debug, Serialize)]
struct StandingBody {
    destination: String,
    /// As of `GET /v1/events/{position}`.
    state: &'static str,
}

/// A page of the events that are wanted.
pub(super) async fn page(app: &App, wanted: Wanted) -> Result<Json<List<ListedBody>>, Problem> {
    let names = app.store.catalog().destinations();
    let owed_to = match &wanted.destination {
        None => None,
        Some(name) => {
            let found = names.iter().find(|record| record.name == *name);
            Some(found.ok_or_else(|| super::destinations::unknown(name))?.id)
        }
    };
    let place = wanted
        .after
        .as_deref()
        .map(str::parse::<ScanPlace>)
        .transpose();
    let place = place
        .map_err(|error| Problem::new(ProblemType::InvalidRequest, format!("after: {error}")))?;
    let limit = wanted.limit.unwrap_or(LISTED_MAX).clamp(1, LISTED_MAX);
    let order = match wanted.order {
        Order::Newest => ScanOrder::NewestFirst,
        Order::Oldest => ScanOrder::OldestFirst,
    };
    let text = SelectionText {
        from: wanted.from,
        until: wanted.until,
        kind: wanted.kind,
        source: wanted.source,
        key: wanted.key,
        filter: wanted.filter,
        ids: Vec::new(),
    };
    let selection = Selection::read(&text, app.clock.now())
        .map_err(invalid)?
        .owed_to(owed_to);
    let store = app.store.clone();
    let read = move || read(&store, &names, &selection, order, place, limit);
    Ok(Json(blocking(read).await??))
}

/// A selection that is none, by its field.
pub(super) fn invalid(error: InvalidSelection) -> Problem {
    let field = error.field;
    Problem::new(ProblemType::InvalidRequest, error.to_string()).with("field", field)
}

fn read(
    store: &Store,
    names: &[DestinationRecord],
    selection: &Selection,
    order: ScanOrder,
    place: Option<ScanPlace>,
    limit: usize,
) -> Result<List<ListedBody>, Problem> {
    let mut scan = store.scan(order, selection.range(), place);
    let mut items = Vec::new();
    for _ in 0..EXAMINED_MAX {
        let Some(event) = scan.read()? else {
            return Ok(List::whole(items));
        };
        if selection.takes(&event) {
            items.push(listed(store, names, &event)?);
        }
        if items.len() == limit {
            break;
        }
    }
    let next = scan.place().map(ToString::to_string);
    Ok(List { items, next })
}

fn listed(
    store: &Store,
    names: &[DestinationRecord],
    stored: &Arc<StoredEvent>,
) -> Result<ListedBody, RedeliveryError> {
    let event = &stored.event;
    let subject = Some(event.subject()).filter(|subject| !subject.is_empty());
    let standing = |id: &DestinationId| {
        let record = names.iter().find(|record| record.id == *id);
        Ok(StandingBody {
            destination: record.map_or_else(|| id.0.to_string(), |record| record.name.clone()),
            state: state_name(&store.delivery_state(stored.position, *id)?),
        })
    };
    let deliveries = stored.destinations.ids().iter().map(standing);
    Ok(ListedBody {
        id: event.id().to_owned(),
        source: event.source().to_owned(),
        kind: event.kind().to_owned(),
        subject: subject.map(str::to_owned),
        key: event.key().map(str::to_owned),
        position: stored.position.to_string(),
        accepted_at: stored.accepted_at.to_string(),
        bytes: event.data().len(),
        deliveries: deliveries.collect::<Result<_, RedeliveryError>>()?,
    })
}
