//! `wayhold commands halt|continue|halts|edit`: the brake, and other arguments for what waits.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Client, path};
use super::exit::{Exit, Failure};
use super::output::{Output, cell, items};

/// What holds commands back, and what puts others in their place.
#[derive(Debug, Subcommand)]
pub enum Brake {
    /// Let no command of a principal, kind or destination leave until it goes on.
    Halt(What),
    /// Let them go on.
    Continue(What),
    /// List what is halted.
    Halts,
    /// Put other arguments in place of a command's that waits for approval.
    Edit {
        /// Id of the command.
        id: String,
        /// The digest that you saw.
        #[arg(long, value_name = "SHA256")]
        digest: String,
        /// File that holds the whole arguments, a JSON object.
        #[arg(long, value_name = "FILE")]
        arguments: PathBuf,
    },
}

/// What is halted, and why.
#[derive(Debug, clap::Args)]
pub struct What {
    #[command(flatten)]
    which: Which,
    /// Why, for the ledger.
    #[arg(long)]
    reason: String,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// All commands that it proposed.
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// All commands of this kind.
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// All commands to this destination.
    #[arg(long, value_name = "NAME")]
    destination: Option<String>,
}

impl What {
    fn body(&self) -> Value {
        json!({
            "principal": self.which.principal,
            "kind": self.which.kind,
            "destination": self.which.destination,
            "reason": self.reason,
        })
    }
}

impl Brake {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers or it refuses.
    pub async fn run(self, client: &mut Client, output: &mut Output) -> Result<(), Failure> {
        match self {
            Self::Halt(what) => act(client, "/v1/commands/halt", &what, output).await,
            Self::Continue(what) => act(client, "/v1/commands/continue", &what, output).await,
            Self::Halts => halts(client, output).await,
            Self::Edit {
                id,
                digest,
                arguments,
            } => edit(client, (&id, &digest), arguments, output).await,
        }
    }
}

async fn act(
    client: &mut Client,
    path: &str,
    what: &What,
    output: &mut Output,
) -> Result<(), Failure> {
    let answer = client.post(path, Some(&what.body())).await?;
    output.json(&answer);
    let is = |name| answer.get(name) == Some(&true.into());
    let halted = is("halted");
    let verb = if halted { "halted" } else { "not halted" };
    let before = if is("changed") { "" } else { " as before" };
    output.line(format!(
        "{} {} is {verb}{before}",
        cell(&answer, "scope"),
        cell(&answer, "name")
    ));
    Ok(())
}

async fn halts(client: &mut Client, output: &mut Output) -> Result<(), Failure> {
    let halts = client.get("/v1/commands/halts").await?;
    output.json(&halts);
    let rows: Vec<_> = items(&halts)
        .iter()
        .map(|halt| ["scope", "name", "by", "since", "reason"].map(|field| cell(halt, field)))
        .collect();
    output.table(["SCOPE", "NAME", "BY", "SINCE", "REASON"], &rows);
    Ok(())
}

async fn edit(
    client: &mut Client,
    (id, digest): (&str, &str),
    file: PathBuf,
    output: &mut Output,
) -> Result<(), Failure> {
    let unreadable =
        |error: String| Failure::new(Exit::Usage, format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(|error| unreadable(error.to_string()))?;
    let arguments: Value =
        serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
    let body = json!({ "digest": digest, "arguments": arguments });
    let path = path(["v1", "commands", id, "edit"]);
    let answer = client.post(&path, Some(&body)).await?;
    output.json(&answer);
    output.line(format!(
        "command {id} is {}, with the digest {}",
        cell(&answer, "state"),
        cell(&answer, "digest")
    ));
    Ok(())
}
