//! `wayhold replays`: old events, delivered anew.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::client::{Client, ServerArguments, path};
use super::events::Selection;
use super::exit::Failure;
use super::output::{Output, cell, items};

/// Deliver old events anew, to the same or another destination.
#[derive(Debug, clap::Args)]
pub struct Replays {
    #[command(flatten)]
    server: ServerArguments,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a replay of the events that are selected, or count them with --dry-run.
    Start(Box<Wanted>),
    /// List replays, newest first.
    List,
    /// Show one replay and how far it is.
    Show {
        /// Its number.
        id: u64,
    },
    /// Start no more attempts until it is resumed.
    Pause(Which),
    /// End a pause.
    Resume(Which),
    /// End a replay for good; what it did not deliver yet it never will.
    Cancel(Which),
}

#[derive(Debug, clap::Args)]
struct Wanted {
    #[command(flatten)]
    selection: Selection,
    /// One of these ids or positions.
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// Events that were to go to this destination; to it they go, unless --to names another.
    #[arg(long, value_name = "NAME", required_unless_present = "to")]
    destination: Option<String>,
    /// The destination that they go to.
    #[arg(long, value_name = "NAME")]
    to: Option<String>,
    /// Most attempts in a time, such as 50/s; that of the destination where absent.
    #[arg(long)]
    rate: Option<String>,
    /// Only count what is selected.
    #[arg(long)]
    dry_run: bool,
}

impl Wanted {
    fn body(&self) -> Value {
        let mut select: Map<String, Value> = Map::new();
        for (name, part) in self.selection.parts() {
            select.insert(name.to_owned(), json!(part));
        }
        if !self.ids.is_empty() {
            select.insert("ids".to_owned(), json!(self.ids));
        }
        json!({
            "select": select,
            "destination": self.destination,
            "to": self.to,
            "rate": self.rate,
            "dry_run": self.dry_run,
        })
    }
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Number of the replay.
    id: u64,
    /// Why, for the audit trail.
    #[arg(long)]
    reason: Option<String>,
}

impl Replays {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers or it refuses.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        match self.verb {
            Verb::Start(wanted) => start(&mut client, &wanted, output).await,
            Verb::List => list(&mut client, output).await,
            Verb::Show { id } => {
                let replay = client
                    .get(&path(["v1", "replays", &id.to_string()]))
                    .await?;
                output.json(&replay);
                output.fields(&replay);
                Ok(())
            }
            Verb::Pause(which) => act(&mut client, &which, "pause", output).await,
            Verb::Resume(which) => act(&mut client, &which, "resume", output).await,
            Verb::Cancel(which) => act(&mut client, &which, "cancel", output).await,
        }
    }
}

async fn start(client: &mut Client, wanted: &Wanted, output: &mut Output) -> Result<(), Failure> {
    let answer = client.post("/v1/replays", Some(&wanted.body())).await?;
    output.json(&answer);
    if !wanted.dry_run {
        output.line(format!(
            "replay {} delivers to {}; `wayhold replays show {}` says how far it is",
            cell(&answer, "id"),
            cell(&answer, "to"),
            cell(&answer, "id")
        ));
        return Ok(());
    }
    output.line(format!(
        "{} events of {} bytes, accepted between {} and {}",
        cell(&answer, "selected"),
        cell(&answer, "bytes"),
        cell(&answer, "oldest"),
        cell(&answer, "newest")
    ));
    if answer.get("complete") == Some(&Value::Bool(false)) {
        output.note("not everything that was accepted in that time is still held");
    }
    Ok(())
}

async fn list(client: &mut Client, output: &mut Output) -> Result<(), Failure> {
    let replays = client.get("/v1/replays").await?;
    output.json(&replays);
    let fields = [
        "id",
        "state",
        "to",
        "selected",
        "delivered",
        "dead",
        "remaining",
        "rate",
        "eta_seconds",
        "reason",
    ];
    let rows: Vec<_> = items(&replays)
        .iter()
        .map(|replay| fields.map(|field| cell(replay, field)))
        .collect();
    output.table(
        [
            "ID",
            "STATE",
            "TO",
            "SELECTED",
            "DELIVERED",
            "DEAD",
            "REMAINING",
            "RATE",
            "ETA S",
            "REASON",
        ],
        &rows,
    );
    Ok(())
}

async fn act(
    client: &mut Client,
    which: &Which,
    action: &str,
    output: &mut Output,
) -> Result<(), Failure> {
    let id = which.id.to_string();
    let body = json!({ "reason": which.reason });
    let replay = client
        .post(&path(["v1", "replays", &id, action]), Some(&body))
        .await?;
    output.json(&replay);
    output.line(format!("replay {id} is {}", cell(&replay, "state")));
    Ok(())
}
