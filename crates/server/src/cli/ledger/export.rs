//! `wayhold ledger export`: the ledger of a data directory as files that anybody can check.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::client::{Client, ServerArguments};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::command::export::{ExportError, export};
use crate::command::ledger_key;

/// Write the ledger as files that anybody can check, with a checkpoint signed now. Works beside a running server, which
/// puts it on record first, and on a stopped store, which it leaves as it is.
#[derive(Debug, clap::Args)]
pub(super) struct Export {
    #[command(flatten)]
    server: ServerArguments,
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
    pub(super) async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let recorded = self.record().await;
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
            "recorded": recorded.as_ref().ok(),
            "not_recorded": recorded.as_ref().err(),
            "checkpoint": exported.checkpoint.to_string(),
        }));
        let out = self.out.display();
        output.line(format!(
            "{} records and {} payloads in {out}; check them with: wayhold ledger verify {out}",
            exported.records, exported.payloads
        ));
        output.line(match recorded {
            Ok(idx) => format!("record {idx} says that it was made, and by whom"),
            Err(why) => format!("no record says that it was made: {why}"),
        });
        Ok(())
    }

    /// Has the running server of the data directory put it on record; the record's place, or why there is none.
    async fn record(&self) -> Result<u64, String> {
        let key = ledger_key::load(&self.data).map_err(|error| error.to_string())?;
        let key = key.ok_or("nothing ever signed")?.public().to_string();
        let words = |failure: Failure| failure.message;
        let mut client = Client::new(&self.server).map_err(words)?;
        let body = json!({ "key": key });
        let answer = client.post("/v1/ledger/exports", Some(&body)).await;
        let idx = answer.map_err(words)?.get("idx").and_then(Value::as_u64);
        idx.ok_or_else(|| "the server does not say which".to_owned())
    }
}
