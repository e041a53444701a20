//! Requests for approval as events: whoever is to decide hears of them through the outbox, with all its promises. A
//! request that is escalated is announced again, under another id.

use std::sync::Arc;

use serde_json::json;
use wayhold_model::{DestinationSet, Event, EventParts};
use wayhold_store::NewEvent;
use wayhold_store::commands::RequestRow;

use super::approvals::{ApprovalError, Approvals};
use super::records::{append, ourselves};

/// The source of these events.
pub const SOURCE: &str = "/approvals";

/// Their type.
pub const TYPE: &str = "wayhold.approval.requested";

/// Requests that are announced together.
const BATCH: u32 = 64;

impl Approvals {
    /// Announces what nobody was told of yet to a destination; says how many there were. After a crash a request may
    /// be handed over again, which stores nothing new.
    ///
    /// # Errors
    /// The outbox or the file takes no change; they are announced later.
    pub async fn announce(&self, destination: &str) -> Result<usize, ApprovalError> {
        let waiting = self.look(|view| {
            let rows = view.requests_to_announce(BATCH)?;
            let mut waiting = Vec::new();
            for row in rows {
                let command = row.request.command.parse().ok();
                let command = command.map(|id| view.command(id)).transpose()?.flatten();
                let kind = command.map(|command| (command.new.kind, command.new.destination));
                waiting.push((row, kind));
            }
            Ok(waiting)
        });
        let waiting = waiting.await?;
        if waiting.is_empty() {
            return Ok(0);
        }
        let records = self.store.catalog().destinations();
        let found = records.iter().find(|record| record.name == destination);
        let Some(record) = found else {
            return Ok(0);
        };
        let to = Arc::new(DestinationSet::new([record.id]));
        let mut events = Vec::new();
        let mut told = Vec::new();
        for (row, command) in &waiting {
            let (id, command_id) = (row.request.id.clone(), row.request.command.clone());
            let shown = json!({
                "approval_id": id,
                "channel": "event",
                "destination": destination,
                "escalated": row.request.escalated,
                "presented_sha256": row.request.presented.to_string(),
            });
            told.push((id, command_id, shown));
            let event = event_of(row, command.as_ref());
            match event {
                Ok(event) => events.push(NewEvent {
                    event: Arc::new(event),
                    destinations: Arc::clone(&to),
                    identified: true,
                    set_aside: None,
                }),
                Err(error) => {
                    tracing::error!(id = row.request.id, %error, "a request cannot be announced");
                }
            }
        }
        let appended = self.store.append(events).await;
        appended.map_err(|error| ApprovalError::Closed(error.to_string()))?;
        let announced = told.len();
        let done = self.change(move |change| {
            for (id, command, shown) in told {
                change.announce_request(&id, true)?;
                let stream = format!("cmd:{command}");
                append(change, stream, "approval.presented", &ourselves(), &shown)?;
            }
            Ok::<_, ApprovalError>(announced)
        });
        done.await
    }
}

/// A request as an event. It holds what a person needs to find it, and no arguments: they are looked at where it is
/// decided.
fn event_of(
    row: &RequestRow,
    command: Option<&(String, String)>,
) -> Result<Event, wayhold_model::InvalidEvent> {
    let request = &row.request;
    let id = match request.escalated {
        false => request.id.clone(),
        true => format!("{}.escalated", request.id),
    };
    let data = json!({
        "id": request.id,
        "command": request.command,
        "kind": command.map(|(kind, _)| kind),
        "destination": command.map(|(_, destination)| destination),
        "digest": request.bound.to_string(),
        "policy": request.policy,
        "requirement": request.requirement.to_json(),
        "due_at": request.due_at.to_string(),
        "escalated": request.escalated,
    });
    let time = request.requested_at.to_string();
    Event::new(&EventParts {
        id: &id,
        source: SOURCE,
        kind: TYPE,
        subject: &request.id,
        time: &time,
        content_type: "application/json",
        key: &request.id,
        data: data.to_string().into(),
        ..EventParts::default()
    })
}
