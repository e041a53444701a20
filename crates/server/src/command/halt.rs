//! The brake: everything of a principal, a kind or a destination that has not left stays, until somebody lets it go
//! on. It is checked in the change that puts an attempt on record, so that nothing leaves after the answer to a halt.

use serde_json::json;
use wayhold_model::approval::Per;
use wayhold_model::ledger::Actor;
use wayhold_store::CommandsError;
use wayhold_store::commands::{Change, Halt};

use super::approvals::{ApprovalError, Approvals};
use super::records::append;

impl Approvals {
    /// Halts all commands of something; `false` where they were halted before.
    ///
    /// # Errors
    /// The file takes no change, and nothing is halted.
    pub async fn halt(
        &self,
        (scope, name): (Per, String),
        by: Actor,
        reason: String,
    ) -> Result<bool, ApprovalError> {
        let halted = self.change(move |change| {
            let is_new = change.halt(scope, &name, &by.id, &reason)?;
            if is_new {
                brake(change, "killswitch.set", (scope, &name), &by, &reason)?;
            }
            Ok::<_, ApprovalError>(is_new)
        });
        halted.await
    }

    /// Lets them go on; `false` where nothing was halted.
    ///
    /// # Errors
    /// The file takes no change, and they stay halted.
    pub async fn go_on(
        &self,
        (scope, name): (Per, String),
        by: Actor,
        reason: String,
    ) -> Result<bool, ApprovalError> {
        let ended = self.change(move |change| {
            let was_halted = change.end_halt(scope, &name)?;
            if was_halted {
                brake(change, "killswitch.cleared", (scope, &name), &by, &reason)?;
            }
            Ok::<_, ApprovalError>(was_halted)
        });
        ended.await
    }

    /// Everything that is halted.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn halts(&self) -> Result<Vec<Halt>, ApprovalError> {
        self.look(|view| view.halts()).await
    }
}

fn brake(
    change: &mut Change<'_>,
    kind: &'static str,
    (scope, name): (Per, &str),
    by: &Actor,
    reason: &str,
) -> Result<(), CommandsError> {
    let body = json!({ "scope": scope.name(), "name": name, "reason": reason });
    let stream = format!("killswitch:{}:{name}", scope.name());
    append(change, stream, kind, by, &body)
}
