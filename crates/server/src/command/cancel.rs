//! Taking a command back before anything of it has happened.

use serde_json::Value;
use wayhold_model::approval::Void;
use wayhold_model::command::{CommandId, State};
use wayhold_model::ledger::Actor;
use wayhold_store::commands::{Command, Transition};

use super::desk::{CommandDesk, CommandError};
use super::gate::void;
use super::records::moved;

impl CommandDesk {
    /// Takes a command back; a command that was taken back before stays so.
    ///
    /// # Errors
    /// There is none of that id, or something of it may have happened.
    pub async fn cancel(
        &self,
        id: CommandId,
        by: Actor,
        reason: Option<String>,
    ) -> Result<Command, CommandError> {
        let done = self.commands()?.change(move |change| {
            let not_found = || CommandError::NotFound { id: id.to_string() };
            let command = change.command(id)?.ok_or_else(not_found)?;
            if command.state == State::Cancelled {
                return Ok(command);
            }
            if !command.state.is_cancellable() {
                return Err(CommandError::WrongState {
                    id,
                    state: command.state,
                    why: "so it cannot be taken back; what was executed is undone: commands undo",
                });
            }
            let step = Transition {
                from: command.state,
                to: State::Cancelled,
                reason: reason.as_deref(),
            };
            moved(change, id, step, &by)?;
            let reason = reason.clone().unwrap_or_default();
            void(change, id, &Void::Cancelled { by, reason })?;
            wayhold_store::failpoint!("commands.cancelled");
            change.command(id)?.ok_or_else(not_found)
        });
        done.await
    }
}

/// What was said of a command when it was proposed.
pub fn detail_of(command: &Command) -> Value {
    serde_json::from_str(&command.new.detail).unwrap_or_default()
}
