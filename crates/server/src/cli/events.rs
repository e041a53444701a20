//! `wayhold events` and `wayhold where`: one event and where its deliveries stand.

use clap::Subcommand;
use serde_json::Value;
use wayhold_model::Position;

use super::client::{Client, ServerArguments, path, with_query};
use super::exit::Failure;
use super::output::{Output, cell};

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
    /// Show one event with its attributes and data.
    Show(Which),
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
        let Verb::Show(which) = self.verb;
        let event = Client::new(&self.server)?.get(&which.path()).await?;
        output.json(&event);
        output.fields(&event);
        Ok(())
    }
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
