//! Dead letters as they are shown.

use serde::Serialize;
use serde_json::value::RawValue;
use wayhold_model::Fault;
use wayhold_store::{AttemptRecord, DeadLetter, EditedLetter, LetterEdit};

use crate::api::lookup::structured;
use crate::app::App;
use crate::http::Problem;
use crate::redelivery::letter_filter::fault_of;
use crate::redelivery::letters::Group;

/// A dead letter.
#[derive(Debug, Serialize)]
pub(super) struct LetterBody {
    id: u64,
    source: String,
    event_id: String,
    position: String,
    destination: String,
    class: String,
    /// What this failure has in common with others of one cause.
    fingerprint: String,
    /// Who has to do something about it: `receiver` or `ours`; absent where nobody said.
    fault: Option<&'static str>,
    /// What the receiver answered, where it answered with a number.
    status: Option<i32>,
    reason: String,
    attempts: Vec<AttemptBody>,
    at: String,
    redriving: bool,
    /// Whether it refers to its event, which stays in the store for it, and has no copy.
    by_reference: bool,
    /// The replay that gave it up; `null` for the event's own delivery.
    replay: Option<u64>,
    /// The event in CloudEvents' JSON format, where one letter is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<Box<RawValue>>,
    /// What an operator made of it, which is sent in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    edited: Option<EditBody>,
}

/// What an operator made of an event.
#[derive(Debug, Serialize)]
struct EditBody {
    at: String,
    by: String,
    reason: String,
    event: Box<RawValue>,
}

impl EditBody {
    fn new(edit: &LetterEdit) -> Result<Self, Problem> {
        Ok(Self {
            at: edit.at.to_string(),
            by: edit.by.clone(),
            reason: edit.reason.clone(),
            event: structured(&edit.event.event)?,
        })
    }
}

/// A letter that has ended after its event was edited.
#[derive(Debug, Serialize)]
pub(super) struct EndedBody {
    id: u64,
    source: String,
    event_id: String,
    position: String,
    destination: String,
    ended: bool,
    /// As it was accepted.
    event: Box<RawValue>,
    edited: EditBody,
}

impl EndedBody {
    pub(super) fn new(app: &App, letter: &EditedLetter) -> Result<Self, Problem> {
        let event = &letter.original.event;
        let destination = app.store.catalog().destination(letter.destination);
        Ok(Self {
            id: letter.letter,
            source: event.source().to_owned(),
            event_id: event.id().to_owned(),
            position: letter.original.position.to_string(),
            destination: destination.map(|record| record.name).unwrap_or_default(),
            ended: letter.ended,
            event: structured(event)?,
            edited: EditBody::new(&letter.edit)?,
        })
    }
}

#[derive(Debug, Serialize)]
pub(super) struct AttemptBody {
    number: u32,
    at: String,
    outcome: &'static str,
    class: &'static str,
    status: Option<i32>,
    reason: String,
    /// How the receiver's answer begins, where it gave one.
    answer: Option<Box<str>>,
    /// `null` where it was not sent, or recorded before this was.
    duration_seconds: Option<f64>,
}

impl From<&AttemptRecord> for AttemptBody {
    fn from(attempt: &AttemptRecord) -> Self {
        Self {
            number: attempt.number,
            at: attempt.at.to_string(),
            outcome: attempt.outcome.name(),
            class: attempt.class.name(),
            status: attempt.status,
            reason: attempt.reason.clone(),
            answer: attempt.answer.clone(),
            duration_seconds: attempt.duration.map(|took| took.as_secs_f64()),
        }
    }
}

impl LetterBody {
    pub(super) fn new(app: &App, letter: &DeadLetter) -> Self {
        let event = &letter.event.event;
        let destination = app.store.catalog().destination(letter.destination);
        Self {
            id: letter.id,
            source: event.source().to_owned(),
            event_id: event.id().to_owned(),
            position: letter.event.position.to_string(),
            destination: destination.map(|record| record.name).unwrap_or_default(),
            class: letter.class.clone(),
            fingerprint: letter.fingerprint.clone(),
            fault: fault_of(&letter.class).map(Fault::name),
            status: letter.status,
            reason: letter.reason.clone(),
            attempts: letter.attempts.iter().map(AttemptBody::from).collect(),
            at: letter.at.to_string(),
            redriving: letter.redriving,
            by_reference: letter.referred,
            replay: letter.replay,
            event: None,
            edited: None,
        }
    }

    /// The same with its event.
    pub(super) fn whole(app: &App, letter: &DeadLetter) -> Result<Self, Problem> {
        Ok(Self {
            event: Some(structured(&letter.event.event)?),
            edited: letter.edit.as_deref().map(EditBody::new).transpose()?,
            ..Self::new(app, letter)
        })
    }
}

/// Dead letters of one cause.
#[derive(Debug, Serialize)]
pub(super) struct GroupBody {
    destination: String,
    class: String,
    fault: Option<&'static str>,
    fingerprint: String,
    count: u64,
    /// When the first and the last of them were given up.
    oldest: Option<String>,
    newest: Option<String>,
    /// The last of them.
    example: Option<LetterBody>,
}

impl GroupBody {
    pub(super) fn new(app: &App, group: &Group) -> Self {
        let Group {
            group,
            oldest,
            newest,
        } = group;
        let destination = app.store.catalog().destination(group.destination);
        let at = |letter: &Option<DeadLetter>| letter.as_ref().map(|letter| letter.at.to_string());
        Self {
            destination: destination.map(|record| record.name).unwrap_or_default(),
            class: group.class.clone(),
            fault: fault_of(&group.class).map(Fault::name),
            fingerprint: group.fingerprint.clone(),
            count: group.count,
            oldest: at(oldest),
            newest: at(newest),
            example: newest.as_ref().map(|letter| LetterBody::new(app, letter)),
        }
    }
}
