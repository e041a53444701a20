//! `wayhold ledger export`: the ledger of a data directory as files that anybody can check.

use std::path::PathBuf;

use serde_json::json;

use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::command::export::{ExportError, export};

/// Write the ledger as files that anybody can check, with a checkpoint signed now. Works on a stopped store, which it
/// leaves as it is, and beside a running server.
#[derive(Debug, clap::Args)]
pub(super) struct Export {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The directory to write; it must be empty or absent.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Export {
    /// Exports.
    ///
    /// # Errors
    /// Not found where there is no ledger; failed where it cannot be read, signed or written.
    pub(super) fn run(self, output: &mut Output) -> Result<(), Failure> {
        let exported = export(&self.data, &self.out).map_err(|error| {
            let exit = match error {
                ExportError::None => Exit::NotFound,
                _ => Exit::Failed,
            };
            Failure::new(exit, error.to_string())
        })?;
        output.json(&json!({
            "records": exported.records,
            "size": exported.size,
            "payloads": exported.payloads,
            "checkpoint": exported.checkpoint.to_string(),
        }));
        let out = self.out.display();
        output.line(format!(
            "{} records and {} payloads in {out}; check them with: wayhold ledger verify {out}",
            exported.records, exported.payloads
        ));
        Ok(())
    }
}
