//! What the model says, in the store's values.

use std::sync::Arc;

use bytes::Bytes;
use wayhold_model::{DestinationSet, Event, EventParts, OutcomeKind, StoredEvent, Timestamp};
use wayhold_store::{AttemptRecord, NewEvent, Resolution};

use super::reference::State;
use super::steps::Ending;

/// Events come from here.
const SOURCE: &str = "/model";

pub(super) fn event(number: u64, key: u64, data: &str, owed: &Arc<DestinationSet>) -> NewEvent {
    let id = number.to_string();
    let key = match key {
        0 => String::new(),
        key => format!("k{key}"),
    };
    let parts = EventParts {
        id: &id,
        source: SOURCE,
        kind: "com.example.model",
        key: &key,
        content_type: "text/plain",
        data: Bytes::copy_from_slice(data.as_bytes()),
        ..EventParts::default()
    };
    NewEvent {
        event: Arc::new(Event::new(&parts).expect("the parts are small and well formed")),
        destinations: Arc::clone(owed),
        identified: true,
        set_aside: None,
    }
}

pub(super) fn number_of(event: &StoredEvent) -> Result<u64, String> {
    let id = event.event.id();
    id.parse()
        .map_err(|_| format!("event {id:?} was never sent"))
}

pub(super) fn resolution(how: Ending) -> Resolution {
    match how {
        Ending::Delivered => Resolution::Delivered,
        Ending::Expired => Resolution::Expired,
        Ending::DeadLettered => Resolution::DeadLettered(attempt(1)),
    }
}

pub(super) fn ended_as(how: Ending) -> State {
    match how {
        Ending::Delivered => State::Delivered,
        Ending::Expired => State::Expired,
        Ending::DeadLettered => State::Dead,
    }
}

pub(super) fn attempt(number: u32) -> AttemptRecord {
    AttemptRecord {
        answer: None,
        duration: None,
        number,
        at: Timestamp::from_micros(1),
        outcome: OutcomeKind::Refused,
        class: wayhold_model::FailureClass::Invalid,
        status: Some(400),
        reason: "refused by the model".to_owned(),
    }
}
