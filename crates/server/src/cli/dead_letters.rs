//! `wayhold dead-letters`: deliveries that were given up, and an operator's second thought on them.

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Client, ServerArguments, path, with_query};
use super::exit::Failure;
use super::output::{Output, cell, items};

/// Letters asked for at once: as many as the server gives on one page.
const PAGE: &str = "100";

/// List, show, redrive and discard deliveries that were given up.
#[derive(Debug, clap::Args)]
pub struct DeadLetters {
    #[command(flatten)]
    server: ServerArguments,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List dead letters, oldest first.
    List {
        /// Only those of this destination.
        #[arg(long)]
        destination: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show one dead letter with all its attempts.
    Show {
        /// Its number.
        id: u64,
    },
    /// Deliver one dead letter again, before any later event of its key that was not sent yet.
    Redrive {
        /// Its number.
        id: u64,
    },
    /// End one dead letter without delivering it.
    Discard {
        /// Its number.
        id: u64,
        /// Why, for the audit trail.
        #[arg(long)]
        reason: String,
    },
}

impl DeadLetters {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers or it refuses.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        match self.verb {
            Verb::List { destination, limit } => {
                list(&mut client, destination.as_deref(), limit, output).await?;
            }
            Verb::Show { id } => {
                let letter = client.get(&letter(id, None)).await?;
                output.json(&letter);
                output.fields(&letter);
            }
            Verb::Redrive { id } => {
                let letter = client.post(&letter(id, Some("redrive")), None).await?;
                output.json(&letter);
                output.line(format!("dead letter {id} is being delivered again"));
            }
            Verb::Discard { id, reason } => {
                let body = json!({ "reason": reason });
                let letter = client
                    .post(&letter(id, Some("discard")), Some(&body))
                    .await?;
                output.json(&letter);
                output.line(format!("dead letter {id} is discarded"));
            }
        }
        Ok(())
    }
}

fn letter(id: u64, action: Option<&str>) -> String {
    let id = id.to_string();
    match action {
        None => path(["v1", "dead-letters", &id]),
        Some(action) => path(["v1", "dead-letters", &id, action]),
    }
}

/// Follows the cursor until `limit` letters are there.
async fn list(
    client: &mut Client,
    destination: Option<&str>,
    limit: usize,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut letters: Vec<Value> = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let mut query = vec![("limit", PAGE)];
        query.extend(destination.map(|name| ("destination", name)));
        query.extend(next.as_deref().map(|cursor| ("after", cursor)));
        let page = client
            .get(&with_query("/v1/dead-letters".to_owned(), &query))
            .await?;
        letters.extend_from_slice(items(&page));
        next = page.get("next").and_then(Value::as_str).map(str::to_owned);
        if letters.len() > limit || next.is_none() {
            break;
        }
    }
    let more = next.is_some() || letters.len() > limit;
    letters.truncate(limit);
    let rows: Vec<_> = letters
        .iter()
        .map(|row| {
            [
                "id",
                "destination",
                "class",
                "status",
                "at",
                "event_id",
                "reason",
            ]
            .map(|field| cell(row, field))
        })
        .collect();
    output.json(&json!({ "items": letters, "next": next }));
    output.table(
        [
            "ID",
            "DESTINATION",
            "CLASS",
            "STATUS",
            "AT",
            "EVENT",
            "REASON",
        ],
        &rows,
    );
    if more {
        output.note(format!("there are more than {limit}; --limit shows them"));
    }
    Ok(())
}
