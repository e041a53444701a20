//! `wayhold dead-letters`: deliveries that were given up, and an operator's second thought on them.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::client::{Client, ServerArguments, path};
use super::exit::Failure;
use super::output::{Output, cell};
use super::paging::follow;

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
    /// Deliver one dead letter again, or all that refer to their events, before any later event of its key
    /// that was not sent yet.
    Redrive {
        #[command(flatten)]
        which: Which,
    },
    /// End one dead letter, or all that refer to their events, without delivering them.
    Discard {
        #[command(flatten)]
        which: Which,
        /// Why, for the audit trail.
        #[arg(long)]
        reason: String,
    },
}

/// One dead letter, or many.
#[derive(Debug, clap::Args)]
struct Which {
    /// Number of one.
    #[arg(
        required_unless_present = "destination",
        conflicts_with = "destination"
    )]
    id: Option<u64>,
    /// All of this destination that refer to their events: set aside at its limit, or retired.
    #[arg(long)]
    destination: Option<String>,
    /// Of those only the ones of this class, such as `backlog_limit` or `retired`.
    #[arg(long, requires = "destination")]
    class: Option<String>,
}

impl Which {
    /// Where an action is asked for, and its body.
    fn ask(&self, action: &str) -> (String, Map<String, Value>) {
        let mut body = Map::new();
        let Some(id) = self.id else {
            body.insert("destination".to_owned(), json!(self.destination));
            body.insert("class".to_owned(), json!(self.class));
            return (path(["v1", "dead-letters", action]), body);
        };
        (letter(id, Some(action)), body)
    }

    /// How many, in words, of an answer that counts them under `field`.
    fn told(&self, answer: &Value, field: &str) -> String {
        match self.id {
            Some(id) => format!("dead letter {id} is"),
            None => format!("{} dead letters are", cell(answer, field)),
        }
    }
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
            Verb::Redrive { which } => {
                let (path, body) = which.ask("redrive");
                let answer = client.post(&path, Some(&Value::Object(body))).await?;
                output.json(&answer);
                let told = which.told(&answer, "redriven");
                output.line(format!("{told} being delivered again"));
            }
            Verb::Discard { which, reason } => {
                let (path, mut body) = which.ask("discard");
                body.insert("reason".to_owned(), json!(reason));
                let answer = client.post(&path, Some(&Value::Object(body))).await?;
                output.json(&answer);
                let told = which.told(&answer, "discarded");
                output.line(format!("{told} discarded"));
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

async fn list(
    client: &mut Client,
    destination: Option<&str>,
    limit: usize,
    output: &mut Output,
) -> Result<(), Failure> {
    let of: Vec<_> = destination
        .map(|name| ("destination", name))
        .into_iter()
        .collect();
    let letters = follow(client, "/v1/dead-letters", &of, limit).await?;
    let rows: Vec<_> = letters
        .items
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
    output.json(&json!({ "items": letters.items, "next": letters.next }));
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
    letters.note_more(limit, output);
    Ok(())
}
