//! `wayhold dead-letters`: deliveries that were given up, and an operator's second thought on them.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::client::{Client, ServerArguments, path, with_query};
use super::exit::Failure;
use super::output::{Output, cell, items};
use super::paging::follow;

/// List, group, show, redrive and discard deliveries that were given up.
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
        #[command(flatten)]
        those: Those,
        /// At most this many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show how many there are of each cause, the most first.
    Groups {
        /// Only those of this destination.
        #[arg(long)]
        destination: Option<String>,
    },
    /// Show one dead letter with all its attempts.
    Show {
        /// Its number.
        id: u64,
    },
    /// Deliver one dead letter again, or many, before any later event of its key that was not sent yet.
    Redrive {
        #[command(flatten)]
        which: Which,
        /// Begin at most so many in a time, such as `10/s`.
        #[arg(long, conflicts_with = "id")]
        rate: Option<String>,
        /// Replace attributes and data of its event by those of this JSON file, as `edit` prints them; `null` takes
        /// one away. The letter's own event is kept.
        #[arg(long, value_name = "FILE", requires_all = ["id", "reason"])]
        edit: Option<PathBuf>,
        /// Why it is edited, for the audit trail.
        #[arg(long, requires = "edit")]
        reason: Option<String>,
    },
    /// Print what may be edited of a dead letter's event, for `redrive --edit`.
    Edit {
        /// Its number.
        id: u64,
    },
    /// Show where many dead letters are being redriven, and how far that is.
    Redrives {
        /// Redrive no more of this destination's; those under way go on.
        #[arg(long, value_name = "DESTINATION")]
        stop: Option<String>,
    },
    /// End one dead letter, or many, without delivering them.
    Discard {
        #[command(flatten)]
        which: Which,
        /// Why, for the audit trail.
        #[arg(long)]
        reason: String,
    },
}

/// Which dead letters; all of them where nothing is said.
#[derive(Debug, clap::Args)]
struct Those {
    /// Only those of this destination.
    #[arg(long)]
    destination: Option<String>,
    /// Only those of this class of failure, such as `invalid` or `backlog_limit`.
    #[arg(long)]
    class: Option<String>,
    /// Only those of this cause, as `groups` shows it.
    #[arg(long)]
    fingerprint: Option<String>,
    /// Only those for which this CEL expression holds, such as `data.total > 100 && age > 86400`.
    #[arg(long, value_name = "CEL")]
    filter: Option<String>,
}

impl Those {
    /// What was said, by the names of the API.
    fn fields(&self) -> Vec<(&'static str, &str)> {
        let fields = [
            ("destination", self.destination.as_deref()),
            ("class", self.class.as_deref()),
            ("fingerprint", self.fingerprint.as_deref()),
            ("filter", self.filter.as_deref()),
        ];
        let given = fields.into_iter();
        given
            .filter_map(|(name, value)| value.map(|value| (name, value)))
            .collect()
    }
}

/// One dead letter, or many.
#[derive(Debug, clap::Args)]
struct Which {
    /// Number of one.
    #[arg(conflicts_with_all = ["destination", "class", "fingerprint", "filter", "expect", "dry_run"])]
    id: Option<u64>,
    #[command(flatten)]
    those: Those,
    /// How many of them you expect; with any other number nothing is done. Without it they are only counted.
    #[arg(long, value_name = "NUMBER")]
    expect: Option<u64>,
    /// Count them and do nothing.
    #[arg(long, conflicts_with = "expect")]
    dry_run: bool,
}

impl Which {
    /// Where an action is asked for, and its body.
    fn ask(&self, action: &str) -> (String, Map<String, Value>) {
        let mut body = Map::new();
        if let Some(id) = self.id {
            return (letter(id, Some(action)), body);
        }
        for (name, value) in self.those.fields() {
            body.insert(name.to_owned(), json!(value));
        }
        match self.expect {
            Some(expect) => body.insert("expect".to_owned(), json!(expect)),
            None => body.insert("dry_run".to_owned(), json!(true)),
        };
        (path(["v1", "dead-letters", action]), body)
    }

    /// Tells what was done, or how many there are. To have asked for something and only counted is no success.
    fn tell(&self, answer: &Value, done: &str, output: &mut Output) -> Result<(), Failure> {
        output.json(answer);
        let selected = cell(answer, "selected");
        match (self.id, self.expect) {
            (Some(id), _) => output.line(format!("dead letter {id} is {done}")),
            (None, Some(_)) => output.line(format!("{selected} dead letters are {done}")),
            (None, None) => {
                for (word, field) in [("oldest", "oldest"), ("newest", "newest")] {
                    let Some(letter) = answer.get(field) else {
                        continue;
                    };
                    let [id, at, reason] = ["id", "at", "reason"].map(|field| cell(letter, field));
                    output.line(format!("{word}: {id}, given up at {at}: {reason}"));
                }
                output.line(format!("{selected} dead letters are meant"));
                if !self.dry_run {
                    let message = format!(
                        "nothing was done yet; if that is right, repeat it with --expect {selected}"
                    );
                    return Err(Failure::usage(message));
                }
            }
        }
        Ok(())
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
            Verb::List { those, limit } => {
                list(&mut client, &those.fields(), limit, output).await?;
            }
            Verb::Groups { destination } => {
                groups(&mut client, destination.as_deref(), output).await?;
            }
            Verb::Show { id } => {
                let letter = client.get(&letter(id, None)).await?;
                output.json(&letter);
                output.fields(&letter);
            }
            Verb::Redrive {
                which,
                rate,
                edit,
                reason,
            } => {
                let (path, mut body) = which.ask("redrive");
                body.extend(rate.map(|rate| ("rate".to_owned(), json!(rate))));
                body.extend(reason.map(|reason| ("reason".to_owned(), json!(reason))));
                if let Some(file) = edit {
                    body.insert("edit".to_owned(), read_edit(&file)?);
                }
                let answer = client.post(&path, Some(&Value::Object(body))).await?;
                which.tell(&answer, "being delivered again", output)?;
            }
            Verb::Edit { id } => {
                let shown = client.get(&letter(id, None)).await?;
                let edited = shown.pointer("/edited/event").or(shown.get("event"));
                let mut event = edited.cloned().unwrap_or_default();
                if let Some(members) = event.as_object_mut() {
                    for fixed in ["id", "source", "specversion", "partitionkey"] {
                        members.remove(fixed);
                    }
                }
                output.json(&event);
                output.line(format!("{event:#}"));
            }
            Verb::Redrives { stop } => redrives(&mut client, stop.as_deref(), output).await?,
            Verb::Discard { which, reason } => {
                let (path, mut body) = which.ask("discard");
                body.insert("reason".to_owned(), json!(reason));
                let answer = client.post(&path, Some(&Value::Object(body))).await?;
                which.tell(&answer, "discarded", output)?;
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

/// The JSON object of a file.
fn read_edit(file: &Path) -> Result<Value, Failure> {
    let unreadable =
        |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", file.display()));
    let text = std::fs::read(file).map_err(|error| unreadable(&error))?;
    let edit: Value = serde_json::from_slice(&text).map_err(|error| unreadable(&error))?;
    match edit.is_object() {
        true => Ok(edit),
        false => Err(unreadable(&"expected a JSON object")),
    }
}

async fn list(
    client: &mut Client,
    those: &[(&str, &str)],
    limit: usize,
    output: &mut Output,
) -> Result<(), Failure> {
    let letters = follow(client, "/v1/dead-letters", those, limit).await?;
    let fields = [
        "id",
        "destination",
        "class",
        "status",
        "fingerprint",
        "at",
        "event_id",
        "reason",
    ];
    let rows = letters.items.iter();
    let rows: Vec<_> = rows
        .map(|row| fields.map(|field| cell(row, field)))
        .collect();
    output.json(&json!({ "items": letters.items, "next": letters.next }));
    output.table(
        [
            "ID",
            "DESTINATION",
            "CLASS",
            "STATUS",
            "FINGERPRINT",
            "AT",
            "EVENT",
            "REASON",
        ],
        &rows,
    );
    letters.note_more(limit, output);
    Ok(())
}

async fn groups(
    client: &mut Client,
    destination: Option<&str>,
    output: &mut Output,
) -> Result<(), Failure> {
    let of: Vec<_> = destination
        .map(|name| ("destination", name))
        .into_iter()
        .collect();
    let path = with_query("/v1/dead-letters/groups".to_owned(), &of);
    let answer = client.get(&path).await?;
    let groups = items(&answer);
    let fields = [
        "count",
        "destination",
        "class",
        "fingerprint",
        "oldest",
        "newest",
    ];
    let row = |group: &Value| {
        let example = group.get("example").unwrap_or(&Value::Null);
        let [count, destination, class, fingerprint, oldest, newest] =
            fields.map(|field| cell(group, field));
        let [id, reason] = ["id", "reason"].map(|field| cell(example, field));
        [
            count,
            destination,
            class,
            fingerprint,
            oldest,
            newest,
            id,
            reason,
        ]
    };
    let rows: Vec<_> = groups.iter().map(row).collect();
    output.json(&answer);
    output.table(
        [
            "COUNT",
            "DESTINATION",
            "CLASS",
            "FINGERPRINT",
            "OLDEST",
            "NEWEST",
            "EXAMPLE",
            "REASON",
        ],
        &rows,
    );
    if answer.get("groups") != Some(&json!(groups.len())) {
        let all = cell(&answer, "groups");
        output.note(format!("the largest of {all} groups"));
    }
    Ok(())
}

async fn redrives(
    client: &mut Client,
    stop: Option<&str>,
    output: &mut Output,
) -> Result<(), Failure> {
    if let Some(name) = stop {
        let path = path(["v1", "dead-letters", "redrives", name, "stop"]);
        let answer = client.post(&path, None).await?;
        output.json(&answer);
        let [redriven, selected] = ["redriven", "selected"].map(|field| cell(&answer, field));
        output.line(format!(
            "stopped; {redriven} of {selected} dead letters were redriven"
        ));
        return Ok(());
    }
    let answer = client.get("/v1/dead-letters/redrives").await?;
    let fields = ["destination", "redriven", "selected", "rate", "by", "since"];
    let rows = items(&answer).iter();
    let rows: Vec<_> = rows
        .map(|row| fields.map(|field| cell(row, field)))
        .collect();
    output.json(&answer);
    output.table(
        ["DESTINATION", "REDRIVEN", "SELECTED", "RATE", "BY", "SINCE"],
        &rows,
    );
    Ok(())
}
