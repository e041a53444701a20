//! Each library against the real database: what commits is there with every column, what is rolled back
//! is not. PostgreSQL and MariaDB are those of `scripts/services`; without them their tests are skipped.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod contract;
mod mysql;
mod postgres;
mod sqlite;

use wayhold_outbox::{Event, Table};

/// The columns of a row as texts: id, aggregatetype, aggregateid, type, payload, traceparent.
type Row = (
    String,
    String,
    String,
    String,
    Option<String>,
    Option<String>,
);

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A table of the test's own, with a column for an attribute.
fn table(name: &str) -> Table {
    Table::new(name)
        .unwrap()
        .with_attribute("traceparent")
        .unwrap()
}

fn event(order: &str) -> Event {
    let event = Event::of_type("com.example.order.placed").aggregate("order", order);
    let event = event
        .data(&serde_json::json!({"total": 12}))
        .attribute("traceparent", TRACE);
    event.build().unwrap()
}

/// One without data and without the attribute.
fn bare(order: &str) -> Event {
    let event = Event::of_type("com.example.order.gone").aggregate("Bestellung für Köln", order);
    event.build().unwrap()
}

/// What is in the table when `committed` were, in this order.
fn rows(committed: &[&Event]) -> Vec<Row> {
    let row = |event: &&Event| {
        (
            event.id().to_string(),
            event.aggregate_type().to_owned(),
            event.aggregate_id().to_owned(),
            event.r#type().to_owned(),
            event.data().map(without_blanks),
            event.attributes().map(|(_, value)| value.to_owned()).next(),
        )
    };
    committed.iter().map(row).collect()
}

/// Databases that keep JSON as values write their own blanks.
fn without_blanks(json: &str) -> String {
    json.replace(' ', "")
}

/// The address of a service, or nothing where the suite is to be skipped.
fn service(variable: &str) -> Option<String> {
    let address = std::env::var(variable).ok();
    if address.is_none() {
        let required = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "{variable} is not set, and everything is required"
        );
        println!("skipped: inserts into a real database: {variable} is not set");
    }
    address
}
