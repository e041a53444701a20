//! `wayhold audit`: who did what, to what, when and why.

use clap::Subcommand;
use serde_json::json;

use super::client::{Client, ServerArguments};
use super::exit::Failure;
use super::output::{Output, cell};
use super::paging::{Few, follow};

/// Show what operators did.
#[derive(Debug, clap::Args)]
pub struct Audit {
    #[command(flatten)]
    server: ServerArguments,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List entries of the audit trail, newest first.
    List {
        /// At most this many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
}

impl Audit {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers or it refuses.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let Verb::List { limit } = self.verb;
        let mut client = Client::new(&self.server)?;
        let entries = follow(&mut client, "/v1/audit", &[], limit).await?;
        list(&entries, output);
        entries.note_more(limit, output);
        Ok(())
    }
}

fn list(entries: &Few, output: &mut Output) {
    output.json(&json!({ "items": entries.items, "next": entries.next }));
    let rows: Vec<_> = entries
        .items
        .iter()
        .map(|row| {
            ["number", "at", "by", "action", "subject", "reason"].map(|field| cell(row, field))
        })
        .collect();
    output.table(["NUMBER", "AT", "BY", "ACTION", "SUBJECT", "REASON"], &rows);
}
