//! Arguments of a command as they are kept, whoever gives them, a proposal or an edit: held against the kind's schema,
//! canonical, bounded; and what the kind reads out of them.

use serde_json::Value;
use wayhold_model::approval::Amount;
use wayhold_model::ledger::canonical;

use super::desk::CommandError;
use super::kinds::Kind;
use super::proposal::{ARGUMENTS_BYTES_MAX, InvalidProposal};
use super::resolve;

/// Most faults of arguments that are told at once.
const FAULTS_MAX: usize = 20;

impl Kind {
    /// Arguments as canonical JSON. Those that may refer to results are held against the schema once these are known.
    ///
    /// # Errors
    /// They do not fit the kind, or are no canonical JSON of the size that is allowed.
    pub(super) fn canonical(
        &self,
        arguments: &Value,
        may_refer: bool,
    ) -> Result<String, CommandError> {
        if !may_refer {
            resolve::fits(&self.config, arguments, FAULTS_MAX)?;
        }
        let canonical = canonical::of_foreign(arguments)
            .map_err(|error| InvalidProposal::new("arguments", error.to_string()))?;
        if canonical.len() > ARGUMENTS_BYTES_MAX {
            let expected = format!("expected at most {ARGUMENTS_BYTES_MAX} bytes");
            return Err(InvalidProposal::new("arguments", expected).into());
        }
        // Canonical JSON is UTF-8.
        Ok(String::from_utf8(canonical).unwrap_or_default())
    }

    /// What the order of commands with these arguments is kept by.
    pub(super) fn order_key_of(&self, arguments: &str) -> Option<String> {
        let at = self.config.order_key.as_ref()?;
        at.text_in(arguments.as_bytes())
            .filter(|key| !key.is_empty())
    }

    /// What limits and policies call the amount.
    pub(super) fn amount_of(&self, arguments: &str) -> Option<Amount> {
        let raw = self.config.amount.as_ref()?.raw_in(arguments.as_bytes())?;
        Amount::of_json(&serde_json::from_str(raw).ok()?)
    }
}
