//! `wayhold ledger show`: records of a running server.

use serde_json::{Value, json};

use crate::cli::client::{Client, ServerArguments};
use crate::cli::evidence;
use crate::cli::exit::Failure;
use crate::cli::output::{Output, cell};
use crate::cli::paging::follow;

/// Show records of a running server: the oldest first, those of one stream, or one with its payloads.
#[derive(Debug, clap::Args)]
pub(super) struct Show {
    #[command(flatten)]
    server: ServerArguments,
    /// The place of one record.
    #[arg(conflicts_with_all = ["stream", "command"])]
    idx: Option<u64>,
    /// Only records of this stream, such as dest:erp.
    #[arg(long, value_name = "STREAM")]
    stream: Option<String>,
    /// Only records of this command.
    #[arg(long, value_name = "ID", conflicts_with = "stream")]
    command: Option<String>,
    /// Show what is known of the command on one page: what was asked and why, who allowed it, what was sent and what
    /// came back.
    #[arg(long, requires = "command")]
    evidence: bool,
    /// The page as HTML.
    #[arg(long, requires = "evidence")]
    html: bool,
    /// At most this many.
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

impl Show {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers, or it refuses.
    pub(super) async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        if let (true, Some(command)) = (self.evidence, &self.command) {
            return evidence::show(&mut client, command, self.html, output).await;
        }
        if let Some(idx) = self.idx {
            let record = client.get(&format!("/v1/ledger/{idx}")).await?;
            output.json(&record);
            output.fields(&record);
            return Ok(());
        }
        let stream = self.stream.or(self.command.map(|id| format!("cmd:{id}")));
        let query: Vec<(&str, &str)> = stream
            .as_deref()
            .map(|stream| ("stream", stream))
            .into_iter()
            .collect();
        let records = follow(&mut client, "/v1/ledger", &query, self.limit).await?;
        output.json(&json!({ "items": records.items, "next": records.next }));
        let rows: Vec<_> = records.items.iter().map(row).collect();
        output.table(["IDX", "AT", "STREAM", "TYPE", "ACTOR"], &rows);
        records.note_more(self.limit, output);
        Ok(())
    }
}

fn row(record: &Value) -> [String; 5] {
    let actor = record.get("actor").unwrap_or(&Value::Null);
    let actor = format!("{} {}", cell(actor, "type"), cell(actor, "id"));
    let [idx, at, stream, kind] = ["idx", "ts", "stream", "type"].map(|field| cell(record, field));
    [idx, at, stream, kind, actor]
}
