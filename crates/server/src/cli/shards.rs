//! `wayhold shards`: over how many shards new events are spread, and how older generations drain.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Client, ServerArguments};
use super::exit::Failure;
use super::output::{Output, cell, items};

/// How often `--wait` looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Show generations of shards, and change over how many shards new events are spread.
#[derive(Debug, clap::Args)]
pub struct Shards {
    #[command(flatten)]
    server: ServerArguments,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List all generations of shards that have files, oldest first.
    List,
    /// Spread new events over so many shards, from now on. Older ones drain where they lie.
    Set {
        /// How many.
        count: u16,
        /// Why, for the audit trail.
        #[arg(long)]
        reason: Option<String>,
        /// Return once every older generation is drained.
        #[arg(long)]
        wait: bool,
    },
}

impl Shards {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers, or it refuses.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        let answer = match self.verb {
            Verb::List => client.get("/v1/shards").await?,
            Verb::Set {
                count,
                reason,
                wait,
            } => {
                let body = json!({ "count": count, "reason": reason });
                let mut answer = client.put("/v1/shards", &body).await?;
                while wait && items(&answer).iter().any(|one| is(one, "draining")) {
                    tokio::time::sleep(LOOK_EVERY).await;
                    answer = client.get("/v1/shards").await?;
                }
                answer
            }
        };
        list(&answer, output);
        Ok(())
    }
}

fn is(generation: &Value, state: &str) -> bool {
    generation.get("state").and_then(Value::as_str) == Some(state)
}

fn list(answer: &Value, output: &mut Output) {
    output.json(answer);
    let rows: Vec<_> = items(answer)
        .iter()
        .map(|row| {
            [
                "generation",
                "shards",
                "state",
                "pending",
                "drained_in_seconds",
                "since",
            ]
            .map(|field| cell(row, field))
        })
        .collect();
    let heading = [
        "GENERATION",
        "SHARDS",
        "STATE",
        "PENDING",
        "DRAINED IN S",
        "SINCE",
    ];
    output.table(heading, &rows);
}
