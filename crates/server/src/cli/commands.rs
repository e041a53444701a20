//! `wayhold commands`: what is to be done outside, from proposal to outcome and undo.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::brake::Brake;
use super::client::{Client, ServerArguments, path, with_query};
use super::evidence;
use super::exit::{Exit, Failure};
use super::output::{Output, cell, items};
use super::paging::follow;

/// Propose commands and follow what becomes of them.
#[derive(Debug, clap::Args)]
pub struct Commands {
    #[command(flatten)]
    server: ServerArguments,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Propose a command. With --key, asking again gives the first answer and nothing new.
    Propose(Box<Proposal>),
    /// List commands, newest first.
    List(Which),
    /// Show one command with its attempts; with --wait once it has ended.
    Show {
        /// Its id.
        id: String,
        /// Longest to wait for its end, such as 30s.
        #[arg(long)]
        wait: Option<String>,
        /// On one page, from the ledger: what was asked and why, who allowed it, what was sent and what came back.
        #[arg(long, conflicts_with = "wait")]
        evidence: bool,
        /// The page as HTML.
        #[arg(long, requires = "evidence")]
        html: bool,
    },
    /// Say who looks after a command that was given up, or of which nobody knows what became of it.
    Assign {
        /// Its id.
        id: String,
        /// Who.
        #[arg(long, value_name = "NAME")]
        to: String,
        /// What they should know.
        #[arg(long)]
        comment: Option<String>,
    },
    /// Take a command back of which nothing has happened yet.
    Cancel(Act),
    /// Have what a command did made up for, and before it whatever rests on it.
    Undo(Act),
    /// Do a command again that has ended, as a new one with its own approval.
    Replay(Act),
    /// Ask targets whether they have what the ledger says: about one command, or all of late.
    Reconcile {
        /// Its id; all that came into their state --within where absent.
        id: Option<String>,
        /// What a person found out about it: succeeded or absent.
        #[arg(long = "as", value_name = "WHAT", requires = "id")]
        word: Option<String>,
        /// How far back, such as 24h.
        #[arg(long, default_value = "24h")]
        within: String,
        /// Only commands of this kind.
        #[arg(long)]
        kind: Option<String>,
    },
    #[command(flatten)]
    Brake(Brake),
}

#[derive(Debug, clap::Args)]
struct Proposal {
    /// Its kind, as configured.
    kind: String,
    /// Its arguments, as a JSON object.
    #[arg(default_value = "{}")]
    arguments: String,
    /// Idempotency-Key: the same key with the same command is one command.
    #[arg(long)]
    key: Option<String>,
    /// For whom it is proposed.
    #[arg(long, value_name = "NAME")]
    on_behalf_of: Option<String>,
    /// Why, in a few words.
    #[arg(long, value_name = "TEXT")]
    rationale: Option<String>,
    /// File with the text or transcript that it follows from.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Not sent for the first time after this (RFC 3339).
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// A command that must have succeeded before; may be given several times.
    #[arg(long = "depends-on", value_name = "ID")]
    depends_on: Vec<String>,
    /// Only say what would become of it.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// In this state; several with commas between.
    #[arg(long)]
    state: Option<String>,
    /// Of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// For this destination.
    #[arg(long)]
    destination: Option<String>,
    /// Proposed by.
    #[arg(long)]
    principal: Option<String>,
    /// At most so many.
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

#[derive(Debug, clap::Args)]
struct Act {
    /// Its id.
    id: String,
    /// Why, for the ledger.
    #[arg(long)]
    reason: Option<String>,
}

impl Commands {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers or it refuses.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        match self.verb {
            Verb::Brake(brake) => brake.run(&mut client, output).await,
            Verb::Propose(proposal) => propose(&mut client, *proposal, output).await,
            Verb::List(which) => list(&mut client, &which, output).await,
            Verb::Show {
                id,
                evidence: true,
                html,
                ..
            } => evidence::show(&mut client, &id, html, output).await,
            Verb::Show { id, wait, .. } => show(&mut client, &id, wait.as_deref(), output).await,
            Verb::Assign { id, to, comment } => {
                let body = json!({ "owner": to, "comment": comment });
                let path = path(["v1", "commands", &id, "assign"]);
                let command = client.post(&path, Some(&body)).await?;
                output.json(&command);
                told(&command, output);
                Ok(())
            }
            Verb::Cancel(act) => {
                let command = acted(&mut client, &act, "cancel").await?;
                output.json(&command);
                told(&command, output);
                Ok(())
            }
            Verb::Undo(act) => {
                let steps = acted(&mut client, &act, "undo").await?;
                output.json(&steps);
                for step in items(&steps) {
                    told(step, output);
                }
                Ok(())
            }
            Verb::Replay(act) => {
                let command = acted(&mut client, &act, "replay").await?;
                output.json(&command);
                told(&command, output);
                Ok(())
            }
            Verb::Reconcile {
                id: Some(id), word, ..
            } => {
                let body = json!({ "as": word });
                let path = path(["v1", "commands", &id, "reconcile"]);
                let found = client.post(&path, Some(&body)).await?;
                output.json(&found);
                output.fields(&found);
                judged(std::slice::from_ref(&found))
            }
            Verb::Reconcile {
                id: None,
                within,
                kind,
                ..
            } => {
                let body = json!({ "within": within, "kind": kind });
                let found = client.post("/v1/commands/reconcile", Some(&body)).await?;
                output.json(&found);
                let fields = ["id", "kind", "state", "result", "detail"];
                let rows: Vec<_> = items(&found)
                    .iter()
                    .map(|one| fields.map(|field| cell(one, field)))
                    .collect();
                output.table(["ID", "KIND", "STATE", "RESULT", "DETAIL"], &rows);
                judged(items(&found))
            }
        }
    }
}

async fn propose(
    client: &mut Client,
    proposal: Proposal,
    output: &mut Output,
) -> Result<(), Failure> {
    let arguments: Map<String, Value> = serde_json::from_str(&proposal.arguments)
        .map_err(|error| Failure::usage(format!("arguments: expected a JSON object: {error}")))?;
    let mut body = json!({ "kind": proposal.kind, "arguments": arguments });
    let input = match &proposal.input {
        None => None,
        Some(file) => Some(
            std::fs::read_to_string(file)
                .map_err(|error| Failure::usage(format!("--input {}: {error}", file.display())))?,
        ),
    };
    let optional = [
        ("on_behalf_of", json!(proposal.on_behalf_of)),
        ("rationale", json!(proposal.rationale)),
        ("input", json!(input)),
        ("expires_at", json!(proposal.expires_at)),
        ("depends_on", json!(proposal.depends_on)),
        ("dry_run", json!(proposal.dry_run)),
    ];
    if let Value::Object(fields) = &mut body {
        let said = optional.into_iter().filter(|(_, value)| !value.is_null());
        fields.extend(said.map(|(name, value)| (name.to_owned(), value)));
    }
    let answer = match &proposal.key {
        None => client.post("/v1/commands", Some(&body)).await?,
        Some(key) => client.post_keyed("/v1/commands", &body, key).await?,
    };
    output.json(&answer);
    if proposal.dry_run {
        output.fields(&answer);
    } else {
        told(&answer, output);
    }
    Ok(())
}

async fn list(client: &mut Client, which: &Which, output: &mut Output) -> Result<(), Failure> {
    let filters = [
        ("state", &which.state),
        ("kind", &which.kind),
        ("destination", &which.destination),
        ("principal", &which.principal),
    ];
    let filters: Vec<_> = filters
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_deref()?)))
        .collect();
    let found = follow(client, "/v1/commands", &filters, which.limit).await?;
    output.json(&json!({ "items": found.items, "next": found.next }));
    let fields = [
        "id",
        "kind",
        "state",
        "principal",
        "destination",
        "changed_at",
        "reason",
    ];
    let rows: Vec<_> = found
        .items
        .iter()
        .map(|command| fields.map(|field| cell(command, field)))
        .collect();
    output.table(
        [
            "ID",
            "KIND",
            "STATE",
            "BY",
            "DESTINATION",
            "SINCE",
            "REASON",
        ],
        &rows,
    );
    found.note_more(which.limit, output);
    Ok(())
}

async fn show(
    client: &mut Client,
    id: &str,
    wait: Option<&str>,
    output: &mut Output,
) -> Result<(), Failure> {
    let wait: Vec<_> = wait.iter().map(|wait| ("wait", *wait)).collect();
    let path = with_query(path(["v1", "commands", id]), &wait);
    let command = client.get(&path).await?;
    output.json(&command);
    output.fields(&command);
    Ok(())
}

async fn acted(client: &mut Client, act: &Act, action: &str) -> Result<Value, Failure> {
    let body = json!({ "reason": act.reason });
    let path = path(["v1", "commands", &act.id, action]);
    client.post(&path, Some(&body)).await
}

fn told(command: &Value, output: &mut Output) {
    output.line(format!(
        "command {} ({}) is {}",
        cell(command, "id"),
        cell(command, "kind"),
        cell(command, "state")
    ));
}

/// Whatever the target does not have as the ledger says is for a person to look at.
fn judged(found: &[Value]) -> Result<(), Failure> {
    let is_expected = |one: &&Value| one.get("as_expected") == Some(&Value::from(true));
    let differs = found.iter().filter(|one| !is_expected(one)).count();
    match differs {
        0 => Ok(()),
        count => Err(Failure::new(
            Exit::Failed,
            format!("{count} commands are not as the ledger says, or cannot be asked about"),
        )),
    }
}
