//! A command on the point of being sent: what is known of it, and the event that its request is made of.

use std::sync::Arc;

use serde_json::Value;
use wayhold_model::command::CommandId;
use wayhold_model::ledger::canonical;
use wayhold_model::{
    DestinationSet, Event, Generation, Position, Sequence, ShardId, StoredEvent, Timestamp,
};
use wayhold_store::CommandsError;
use wayhold_store::commands::{AttemptRow, Command, View};

use super::desk::CommandError;
use super::emit::event_of;
use super::kinds::Kind;
use super::outcome::Target;
use super::resolve;
use crate::sink::Attempt;

/// A command as it is sent.
pub(super) struct Sendable {
    /// The event that the request is made of, with every reference resolved.
    pub(super) event: Arc<StoredEvent>,
    pub(super) kind: Arc<Kind>,
    /// Number of the attempt on record.
    pub(super) n: u32,
    pub(super) command: Command,
    /// Its arguments as they are sent.
    pub(super) arguments: String,
}

/// What is known of a command before it is sent.
pub(super) struct Known {
    pub(super) command: Command,
    pub(super) last: Option<AttemptRow>,
    results: Vec<(CommandId, Option<Value>)>,
}

/// Reads what is known of a command.
pub(super) fn known(view: &View<'_>, id: CommandId) -> Result<Option<Known>, CommandsError> {
    let Some(command) = view.command(id)? else {
        return Ok(None);
    };
    let last = view.attempts(id, 1)?.pop();
    let mut results = Vec::new();
    for (needs, _) in view.needs(id)? {
        let result = view.command(needs)?.and_then(|command| command.result);
        let result = result.and_then(|text| serde_json::from_str(&text).ok());
        results.push((needs, result));
    }
    Ok(Some(Known {
        command,
        last,
        results,
    }))
}

/// What is known of a kind's target.
pub(super) fn target_of(kind: &Kind) -> Target {
    Target {
        idempotent: kind.config.target_idempotent,
        can_be_asked: kind.asks.is_some(),
    }
}

/// Makes a command ready to be sent or asked about: its arguments resolved, its event made anew. What is sent is
/// the stored command, whatever became of its event.
pub(super) fn prepare(
    known: Known,
    kind: Arc<Kind>,
    attempt: &Attempt,
) -> Result<Sendable, String> {
    let Known {
        command,
        last,
        results,
    } = known;
    let mut arguments = command.new.arguments.clone();
    if !results.is_empty() {
        let text = &command.new.arguments;
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let result_of = |id| results.iter().find(|(of, _)| *of == id)?.1.clone();
        let whole = resolve::resolved(&value, &result_of)?;
        resolve::fits(&kind.config, &whole, 1).map_err(|error| match error {
            CommandError::Arguments { kind, faults } => {
                let fault = faults
                    .into_iter()
                    .next()
                    .map(|(at, what)| format!("{at}: {what}"));
                format!(
                    "arguments do not fit the schema of {kind}: {}",
                    fault.unwrap_or_default()
                )
            }
            error => error.to_string(),
        })?;
        let canonical = canonical::of_foreign(&whole).map_err(|error| error.to_string())?;
        arguments = String::from_utf8(canonical).unwrap_or_default();
    }
    let event = event_of(&command, &arguments).map_err(|error| error.to_string())?;
    let event = StoredEvent {
        event: Arc::new(event),
        ..(*attempt.event).clone()
    };
    Ok(Sendable {
        event: Arc::new(event),
        kind,
        n: last.map_or(0, |last| last.n),
        command,
        arguments,
    })
}

/// An event as a question needs it: it lies nowhere.
pub(super) fn stored(event: Event) -> StoredEvent {
    StoredEvent {
        position: Position {
            generation: Generation(0),
            shard: ShardId(0),
            sequence: Sequence(0),
        },
        accepted_at: Timestamp::EPOCH,
        destinations: Arc::new(DestinationSet::new([])),
        key_hash: None,
        event: Arc::new(event),
    }
}
