//! `wayhold events` and `wayhold where`: the events that are held, and where their deliveries stand.

use clap::Subcommand;
use serde_json::{Value, json};
use wayhold_model::Position;

use super::client::{Client, ServerArguments, path, with_query};
use super::exit::Failure;
use super::output::{Output, cell, items};
use super::paging::follow;

/// Look at events.
#[derive(Debug, clap::Args)]
pub struct Events {
    #[command(flatten)]
    server: ServerArguments,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List events that are held, newest first.
    List(Box<Wanted>),
    /// Show one event with its attributes and data.
    Show(Which),
    /// Show what is on record of the attempts to deliver an event, as `record` and `retention.attempts` keep it.
    Attempts {
        /// Its position, as `where` and receipts tell it.
        position: Position,
    },
}

/// Which events to list.
#[derive(Clone, Debug, clap::Args)]
struct Wanted {
    #[command(flatten)]
    selection: Selection,
    /// Only events that were to go to this destination when they were accepted.
    #[arg(long, value_name = "NAME")]
    destination: Option<String>,
    /// Oldest first.
    #[arg(long)]
    oldest: bool,
    /// At most this many.
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

/// Which of the held events are meant; without any of these, all.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Selection {
    /// Accepted at this time or later: an RFC 3339 time, or how long ago, such as 2h.
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Accepted before this time.
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Of exactly this type.
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// Of exactly this source.
    #[arg(long)]
    pub source: Option<String>,
    /// Of exactly this ordering key.
    #[arg(long)]
    pub key: Option<String>,
    /// For which this condition in CEL holds, such as 'type.startsWith("order.")'.
    #[arg(long, value_name = "CONDITION")]
    pub filter: Option<String>,
}

impl Selection {
    /// The parts that are given, by the API's names.
    pub fn parts(&self) -> Vec<(&'static str, &str)> {
        [
            ("from", &self.from),
            ("until", &self.until),
            ("type", &self.kind),
            ("source", &self.source),
            ("key", &self.key),
            ("filter", &self.filter),
        ]
        .into_iter()
        .filter_map(|(name, part)| Some((name, part.as_deref()?)))
        .collect()
    }
}

/// Say where an event is: stored when, and to whom delivered or why not yet.
#[derive(Debug, clap::Args)]
pub struct Where {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    which: Which,
}

/// One event, by what a receipt shows.
#[derive(Clone, Debug, clap::Args)]
pub struct Which {
    /// The event's id, or its position as a receipt shows it.
    id: String,
    /// The event's source; the configured one of plain JSON where absent.
    #[arg(long)]
    source: Option<String>,
}

impl Which {
    fn path(&self) -> String {
        let position = self.source.is_none() && self.id.parse::<Position>().is_ok();
        if position {
            return path(["v1", "events", &self.id]);
        }
        let mut query = vec![("id", self.id.as_str())];
        query.extend(self.source.as_deref().map(|source| ("source", source)));
        with_query("/v1/events".to_owned(), &query)
    }
}

impl Events {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers, or it does not know the event.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        match self.verb {
            Verb::List(wanted) => list(&mut client, &wanted, output).await,
            Verb::Show(which) => {
                let event = client.get(&which.path()).await?;
                output.json(&event);
                output.fields(&event);
                Ok(())
            }
            Verb::Attempts { position } => attempts(&mut client, position, output).await,
        }
    }
}

async fn attempts(
    client: &mut Client,
    position: Position,
    output: &mut Output,
) -> Result<(), Failure> {
    let path = path(["v1", "events", &position.to_string(), "attempts"]);
    let answer = client.get(&path).await?;
    let fields = [
        "destination",
        "number",
        "at",
        "duration_seconds",
        "outcome",
        "class",
        "status",
        "location",
        "partition",
        "offset",
        "replay",
    ];
    let rows = items(&answer).iter();
    let rows: Vec<_> = rows
        .map(|row| fields.map(|field| cell(row, field)))
        .collect();
    output.json(&answer);
    output.table(
        [
            "DESTINATION",
            "NUMBER",
            "AT",
            "SECONDS",
            "OUTCOME",
            "CLASS",
            "STATUS",
            "LOCATION",
            "PARTITION",
            "OFFSET",
            "REPLAY",
        ],
        &rows,
    );
    Ok(())
}

async fn list(client: &mut Client, wanted: &Wanted, output: &mut Output) -> Result<(), Failure> {
    let mut query = wanted.selection.parts();
    query.extend(
        wanted
            .destination
            .as_deref()
            .map(|name| ("destination", name)),
    );
    query.extend(wanted.oldest.then_some(("order", "oldest")));
    let events = follow(client, "/v1/events", &query, wanted.limit).await?;
    let rows: Vec<_> = events.items.iter().map(row).collect();
    output.json(&json!({ "items": events.items, "next": events.next }));
    output.table(
        [
            "POSITION",
            "ACCEPTED",
            "TYPE",
            "SOURCE",
            "ID",
            "KEY",
            "BYTES",
            "DELIVERIES",
        ],
        &rows,
    );
    events.note_more(wanted.limit, output);
    Ok(())
}

fn row(event: &Value) -> [String; 8] {
    let deliveries = event.get("deliveries").and_then(Value::as_array);
    let deliveries = deliveries.into_iter().flatten();
    let standings: Vec<_> = deliveries
        .map(|one| format!("{}:{}", cell(one, "destination"), cell(one, "state")))
        .collect();
    let [position, accepted_at, kind, source, id, key, bytes] = [
        "position",
        "accepted_at",
        "type",
        "source",
        "id",
        "key",
        "bytes",
    ]
    .map(|field| cell(event, field));
    [
        position,
        accepted_at,
        kind,
        source,
        id,
        key,
        bytes,
        standings.join(" "),
    ]
}

impl Where {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers, or it does not know the event.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let event = Client::new(&self.server)?.get(&self.which.path()).await?;
        output.json(&event);
        output.line(format!(
            "{} of {} stored at {} as {}",
            cell(&event, "id"),
            cell(&event, "source"),
            cell(&event, "accepted_at"),
            cell(&event, "position"),
        ));
        let deliveries = event.get("deliveries").and_then(Value::as_array);
        for delivery in deliveries.map_or(&[][..], Vec::as_slice) {
            output.line(format!("  {}", standing(delivery)));
        }
        Ok(())
    }
}

/// One delivery in a sentence.
fn standing(delivery: &Value) -> String {
    let mut words = format!(
        "{}: {}",
        cell(delivery, "destination"),
        cell(delivery, "state")
    );
    for (field, before) in [
        ("behind", "behind "),
        ("attempts", "after attempts: "),
        ("retry_at", "again at "),
        ("reason", "because "),
        ("dead_letter", "as dead letter "),
    ] {
        if delivery.get(field).is_some_and(|value| !value.is_null()) {
            words.push_str(", ");
            words.push_str(before);
            words.push_str(&cell(delivery, field));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_asked_for_by_position_or_by_identity() {
        let which = |id: &str, source: Option<&str>| Which {
            id: id.to_owned(),
            source: source.map(str::to_owned),
        };
        for (which, path) in [
            (which("g1.s0.12", None), "/v1/events/g1.s0.12"),
            (
                which("g1.s0.12", Some("/a")),
                "/v1/events?id=g1.s0.12&source=%2Fa",
            ),
            (which("order 7", None), "/v1/events?id=order%207"),
        ] {
            assert_eq!(which.path(), path);
        }
    }

    #[test]
    fn a_delivery_reads_as_a_sentence() {
        let retrying = json!({
            "destination": "wms", "state": "retrying", "attempts": 3, "behind": null,
            "retry_at": "2026-01-01T00:00:00Z", "reason": "503",
        });
        assert_eq!(
            standing(&retrying),
            "wms: retrying, after attempts: 3, again at 2026-01-01T00:00:00Z, because 503"
        );
    }
}
