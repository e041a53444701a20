//! Destinations in the ledger: what becomes of a command hangs on whether its destination may be reached, so whoever stops
//! one, or lets it go on, is on record there too. The audit trail, which is another file, has it first; it is followed
//! from there, each entry once.

use std::sync::Arc;

use serde_json::json;
use wayhold_model::ledger::{Actor, Draft, Trace};
use wayhold_store::catalog::AuditEntry;
use wayhold_store::commands::Change;

use super::ledger::{Ledger, LedgerError};
use crate::blocking::blocking;

/// Entries that are followed in one change.
const PAGE: usize = 256;

impl Ledger {
    /// Appends what the audit trail says of destinations since it was last looked at. A ledger that has just begun
    /// follows what comes from then on.
    ///
    /// # Errors
    /// One of the files cannot be read, or takes no change; it is followed later.
    pub async fn follow_destinations(&self) -> Result<(), LedgerError> {
        let Some(commands) = self.commands() else {
            return Ok(());
        };
        let (reader, catalog) = (commands.clone(), Arc::clone(self.store().catalog()));
        let found = blocking(move || -> Result<_, LedgerError> {
            let followed = reader.read(|view| view.audit_followed())?;
            let entries = match followed {
                Some(number) => catalog.audit_after(number, PAGE)?,
                None => catalog.audit_trail(None, 1)?,
            };
            Ok((followed, entries))
        });
        let (followed, entries) = found.await??;
        let newest = match (followed, entries.last()) {
            (_, Some(last)) => last.number,
            (None, None) => 0,
            (Some(_), None) => return Ok(()),
        };
        commands
            .change(move |change| {
                for entry in entries.iter().filter(|_| followed.is_some()) {
                    append(change, entry)?;
                }
                Ok(change.follow_audit(newest)?)
            })
            .await
    }
}

fn append(change: &mut Change<'_>, entry: &AuditEntry) -> Result<(), LedgerError> {
    let kind = match entry.action.as_str() {
        "destination.paused" => "destination.paused",
        "destination.running" => "destination.resumed",
        "destination.disabled" => "destination.disabled",
        _ => return Ok(()),
    };
    let body = json!({
        "audit": entry.number,
        "at": entry.at.to_string(),
        "by": entry.by,
        "reason": entry.reason,
    });
    let stream = format!("dest:{}", entry.subject);
    let (actor, trace) = (Actor::system("audit"), Trace::default());
    let draft = Draft::new(stream, kind, &actor, &trace, &body)?;
    change.append(&draft)?;
    Ok(())
}
