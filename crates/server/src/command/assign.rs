//! Whose a command is that was given up: nothing follows from it but that everybody can see who looks after it.

use serde_json::json;
use wayhold_model::command::{CommandId, State};
use wayhold_model::ledger::Actor;
use wayhold_store::commands::Command;

use super::desk::{CommandDesk, CommandError};
use super::records::write;

/// Longest name of whoever looks after it, in bytes.
pub const OWNER_BYTES_MAX: usize = 255;

impl CommandDesk {
    /// Puts on record who looks after a command that was given up, or of which nobody knows what became of it.
    ///
    /// # Errors
    /// There is none of that id, or nobody need look after it.
    pub async fn assign(
        &self,
        id: CommandId,
        by: Actor,
        owner: String,
        comment: Option<String>,
    ) -> Result<Command, CommandError> {
        let done = self.commands()?.change(move |change| {
            let not_found = || CommandError::NotFound { id: id.to_string() };
            let command = change.command(id)?.ok_or_else(not_found)?;
            if !matches!(command.state, State::Dead | State::Unknown) {
                return Err(CommandError::WrongState {
                    id,
                    state: command.state,
                    why: "so nobody need look after it",
                });
            }
            let body = json!({ "owner": owner, "comment": comment });
            write(change, id, "dlq.assigned", &by, &body)?;
            Ok(command)
        });
        done.await
    }
}
