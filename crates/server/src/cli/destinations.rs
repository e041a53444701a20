//! `wayhold destinations`: what is configured, how it is doing, and whether it runs.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Client, ServerArguments, path, with_query};
use super::exit::{Exit, Failure};
use super::output::{Output, cell, items};

/// Show, test, explain, pause, disable, resume and retire destinations.
#[derive(Debug, clap::Args)]
pub struct Destinations {
    #[command(flatten)]
    server: ServerArguments,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List all destinations.
    List,
    /// Show one destination.
    Show {
        /// Its name.
        name: String,
    },
    /// Check that a destination can be reached; with an event, show the request that would be sent for it.
    Test {
        /// Its name.
        name: String,
        /// File with one event as JSON (CloudEvents), or - for standard input.
        #[arg(long, value_name = "FILE")]
        event: Option<PathBuf>,
        /// Send the request, once: the receiver gets the event.
        #[arg(long, requires = "event")]
        send: bool,
    },
    /// Say what would happen to a delivery that failed so, and when. Without status and class, of every class.
    Explain {
        /// The destination's name.
        name: String,
        /// What the receiver answers with: an HTTP status, or a Kafka error code.
        #[arg(long, allow_negative_numbers = true)]
        status: Option<i32>,
        /// Class of the failure, such as timeout.
        #[arg(long)]
        class: Option<String>,
        /// Which attempt failed.
        #[arg(long, default_value_t = 1)]
        attempt: u32,
        /// Seconds for which the receiver asks to be left alone.
        #[arg(long)]
        retry_after: Option<u64>,
    },
    /// Start no more deliveries until resumed; those in flight finish.
    Pause {
        /// Its name.
        name: String,
        /// Why, for the audit trail and whoever looks next.
        #[arg(long)]
        reason: Option<String>,
    },
    /// The same for a destination that is not to be served for longer; what it is owed is held.
    Disable {
        /// Its name.
        name: String,
        /// Why, for the audit trail and whoever looks next.
        #[arg(long)]
        reason: Option<String>,
    },
    /// End what a destination that left the configuration is still owed. Safe to repeat.
    Retire {
        /// Its name.
        name: String,
        /// What becomes of its pending deliveries: dead letters, which can be redriven once it is back, or
        /// nothing any more.
        #[arg(long, value_enum)]
        pending: Pending,
    },
    /// Deliver again what was paused or disabled.
    Resume {
        /// Its name.
        name: String,
        /// Why, for the audit trail.
        #[arg(long)]
        reason: Option<String>,
    },
}

/// What becomes of pending deliveries.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Pending {
    DeadLetter,
    Discard,
}

impl Pending {
    fn name(self) -> &'static str {
        match self {
            Self::DeadLetter => "dead-letter",
            Self::Discard => "discard",
        }
    }
}

impl Destinations {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers, it refuses, or a tested destination cannot be reached.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        match self.verb {
            Verb::List => list(&client.get("/v1/destinations").await?, output),
            Verb::Show { name } => {
                let destination = client.get(&path(["v1", "destinations", &name])).await?;
                output.json(&destination);
                output.fields(&destination);
            }
            Verb::Test { name, event, send } => {
                let path = path(["v1", "destinations", &name, "test"]);
                let Some(file) = event else {
                    let result = client.post(&path, None).await?;
                    return tested(&name, &result, output);
                };
                let send = if send { "true" } else { "false" };
                let path = with_query(path, &[("send", send)]);
                let result = client.post_text(&path, read_event(&file)?).await?;
                return tried(&name, &result, output);
            }
            Verb::Explain {
                name,
                status,
                class,
                attempt,
                retry_after,
            } => {
                let mut question = format!("attempt={attempt}");
                let given = [
                    ("status", status.map(|status| status.to_string())),
                    ("class", class),
                    (
                        "retry_after",
                        retry_after.map(|seconds| seconds.to_string()),
                    ),
                ];
                for (field, value) in given {
                    let value = value.map(|value| {
                        url::form_urlencoded::byte_serialize(value.as_bytes()).collect::<String>()
                    });
                    question.extend(value.map(|value| format!("&{field}={value}")));
                }
                let place = path(["v1", "destinations", &name, "explain"]);
                let answer = client.get(&format!("{place}?{question}")).await?;
                explained(&answer, output);
            }
            Verb::Pause { name, reason } => {
                act(&mut client, &name, "pause", reason, output).await?;
            }
            Verb::Disable { name, reason } => {
                act(&mut client, &name, "disable", reason, output).await?;
            }
            Verb::Retire { name, pending } => {
                let body = json!({ "pending": pending.name() });
                let after = client
                    .post(&path(["v1", "destinations", &name, "retire"]), Some(&body))
                    .await?;
                output.json(&after);
                output.line(format!(
                    "{name} is retired; {} pending deliveries ended ({})",
                    cell(&after, "ended"),
                    pending.name()
                ));
            }
            Verb::Resume { name, reason } => {
                act(&mut client, &name, "resume", reason, output).await?;
            }
        }
        Ok(())
    }
}

fn list(answer: &Value, output: &mut Output) {
    output.json(answer);
    let rows: Vec<_> = items(answer)
        .iter()
        .map(|row| {
            [
                "name",
                "kind",
                "state",
                "pending",
                "dead_letters",
                "since",
                "reason",
            ]
            .map(|field| cell(row, field))
        })
        .collect();
    let heading = [
        "NAME", "KIND", "STATE", "PENDING", "DEAD", "SINCE", "REASON",
    ];
    output.table(heading, &rows);
}

/// One failure as its fields, several as a table.
fn explained(answer: &Value, output: &mut Output) {
    output.json(answer);
    if let [only] = items(answer) {
        output.fields(only);
        return;
    }
    let rows: Vec<_> = items(answer)
        .iter()
        .map(|row| {
            [
                "class",
                "fault",
                "outcome",
                "then",
                "wait_least",
                "wait_most",
                "attempts_max",
                "pauses_after",
                "rule",
            ]
            .map(|field| cell(row, field))
        })
        .collect();
    let heading = [
        "CLASS",
        "WHOSE",
        "OUTCOME",
        "THEN",
        "FROM",
        "TO",
        "ATTEMPTS",
        "PAUSES AFTER",
        "RULE",
    ];
    output.table(heading, &rows);
}

fn tested(name: &str, result: &Value, output: &mut Output) -> Result<(), Failure> {
    output.json(result);
    let words = cell(result, "detail");
    if result.get("reachable") == Some(&Value::Bool(true)) {
        output.line(format!("{name}: {words}"));
        Ok(())
    } else {
        Err(Failure::new(Exit::Failed, format!("{name}: {words}")))
    }
}

/// The event's text, which the server reads.
fn read_event(file: &Path) -> Result<Vec<u8>, Failure> {
    let read = if file == Path::new("-") {
        let mut text = Vec::new();
        std::io::stdin().lock().read_to_end(&mut text).map(|_| text)
    } else {
        std::fs::read(file)
    };
    let text = read.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    if text.is_empty() {
        let message = format!("{}: expected an event as JSON", file.display());
        return Err(Failure::usage(message));
    }
    Ok(text)
}

/// Shows the request as HTTP would write it, then what came of it.
fn tried(name: &str, result: &Value, output: &mut Output) -> Result<(), Failure> {
    output.json(result);
    if let Some(request) = result.get("request").filter(|request| request.is_object()) {
        output.line(format!(
            "{} {}",
            cell(request, "method"),
            cell(request, "url")
        ));
        let headers = request.get("headers").and_then(Value::as_object);
        for (header, value) in headers.into_iter().flatten() {
            output.line(format!("{header}: {}", value.as_str().unwrap_or_default()));
        }
        output.line("");
        let text = request.get("body").and_then(Value::as_str);
        match (text, request.get("body_base64").and_then(Value::as_str)) {
            (Some(text), _) => text.lines().for_each(|line| output.line(line)),
            (None, encoded) => {
                let encoded = encoded.unwrap_or_default();
                output.line(format!("(not text; as base64) {encoded}"));
            }
        }
        output.line("");
    }
    let detail = cell(result, "detail");
    match result.get("outcome").and_then(Value::as_str) {
        None => output.line(format!("{name}: {detail}; --send sends it")),
        Some("delivered") => output.line(format!("{name}: {detail}")),
        Some(outcome) => {
            let message = format!("{name}: {outcome}: {detail}");
            return Err(Failure::new(Exit::Failed, message));
        }
    }
    Ok(())
}

async fn act(
    client: &mut Client,
    name: &str,
    action: &str,
    reason: Option<String>,
    output: &mut Output,
) -> Result<(), Failure> {
    let body = json!({ "reason": reason });
    let after = client
        .post(&path(["v1", "destinations", name, action]), Some(&body))
        .await?;
    output.json(&after);
    output.line(format!("{name} is {}", cell(&after, "state")));
    Ok(())
}
