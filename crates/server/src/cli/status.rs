//! `wayhold status`: how the server is, in one screen.

use serde_json::Value;

use super::client::{Client, ServerArguments};
use super::exit::{Exit, Failure};
use super::output::{Output, cell};

/// Say how the server is: what it holds, what it delivers, what needs attention.
#[derive(Debug, clap::Args)]
pub struct Status {
    #[command(flatten)]
    server: ServerArguments,
}

impl Status {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers, it refuses, or a promise is broken.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let status = Client::new(&self.server)?.get("/v1/status").await?;
        output.json(&status);
        show(&status, output);
        match status.pointer("/accounting/holds") {
            Some(Value::Bool(false)) => Err(Failure::new(
                Exit::Failed,
                "the accounting identity does not hold: deliveries are missing or counted twice",
            )),
            _ => Ok(()),
        }
    }
}

fn show(status: &Value, output: &mut Output) {
    output.line(format!(
        "wayhold {}, up {}, {}",
        cell(status, "version"),
        age(status.get("uptime_seconds")),
        readiness(status),
    ));
    for finding in list(status, "/degraded") {
        output.line(format!(
            "  degraded: {}",
            finding.as_str().unwrap_or_default()
        ));
    }
    let at = |pointer: &str| plain(status.pointer(pointer));
    // Streams are not timed as a whole: with nothing else accepted there is no duration to tell.
    let p50 = status.pointer("/accepting/duration/p50_seconds");
    let within = p50
        .filter(|p50| !p50.is_null())
        .map_or_else(String::new, |p50| {
            let p99 = status.pointer("/accepting/duration/p99_seconds");
            format!(
                ", half within {}, 99 % within {}",
                millis(Some(p50)),
                millis(p99)
            )
        });
    output.line(format!(
        "accepted {} since the start ({} duplicates){within}",
        at("/accepting/accepted"),
        at("/accepting/duplicates"),
    ));
    let bytes = |pointer: &str| size(status.pointer(pointer));
    output.line(format!(
        "store    {} in segments, {} retained, {} free on the disk, {} ids remembered",
        bytes("/store/bytes/segments"),
        bytes("/store/bytes/retained"),
        bytes("/store/disk_free_bytes"),
        at("/store/idempotency/ids"),
    ));
    if let Some(ledger) = status.get("ledger").filter(|ledger| !ledger.is_null()) {
        let signed = match ledger.get("checkpoint").filter(|one| !one.is_null()) {
            Some(checkpoint) => format!(
                "{} of them signed at {}",
                cell(checkpoint, "size"),
                cell(checkpoint, "at")
            ),
            None => "none of them signed".to_owned(),
        };
        output.line(format!(
            "ledger   {} records, {signed}",
            cell(ledger, "records")
        ));
    }
    output.line("");
    let rows: Vec<_> = list(status, "/destinations").iter().map(row).collect();
    output.table(
        [
            "DESTINATION",
            "STATE",
            "ACCEPTED",
            "DELIVERED",
            "PENDING",
            "DEAD",
            "OLDEST",
            "IDENTITY",
        ],
        &rows,
    );
    for destination in list(status, "/destinations") {
        troubles(destination, output);
    }
}

fn row(destination: &Value) -> [String; 8] {
    let count = |name: &str| plain(destination.pointer(&format!("/accounting/{name}")));
    let identity = match destination
        .pointer("/accounting/holds")
        .and_then(Value::as_bool)
    {
        Some(true) => "holds".to_owned(),
        Some(false) => format!("BROKEN by {}", count("in_motion")),
        None => format!("in motion: {}", count("in_motion")),
    };
    [
        cell(destination, "name"),
        cell(destination, "state"),
        count("accepted"),
        count("delivered"),
        count("pending"),
        count("dead_lettered"),
        age(destination.get("oldest_pending_age_seconds")),
        identity,
    ]
}

/// What is wrong with a destination, and which event holds up which key.
fn troubles(destination: &Value, output: &mut Output) {
    let name = cell(destination, "name");
    if let Some(reason) = destination.get("reason").and_then(Value::as_str) {
        let (state, since) = (cell(destination, "state"), cell(destination, "since"));
        output.line(format!("{name}: {state} since {since}: {reason}"));
    }
    let error = destination.get("last_error").filter(|error| {
        error
            .get("failing_since")
            .is_some_and(|since| !since.is_null())
    });
    if let Some(error) = error {
        output.line(format!(
            "{name}: failing since {}: {}; next attempt {}",
            cell(error, "failing_since"),
            cell(error, "reason"),
            cell(destination, "next_attempt"),
        ));
    }
    for key in list(destination, "/blocked_keys/top") {
        output.line(format!(
            "{name}: key {} waits for event {} at {} ({} behind it)",
            cell(key, "key"),
            cell(key, "event_id"),
            cell(key, "position"),
            cell(key, "waiting"),
        ));
    }
}

fn readiness(status: &Value) -> String {
    if status.get("ready").and_then(Value::as_bool) == Some(true) {
        "ready".to_owned()
    } else {
        format!("NOT READY: {}", cell(status, "unready_because"))
    }
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn plain(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(value) => value.to_string(),
    }
}

fn millis(seconds: Option<&Value>) -> String {
    let seconds = seconds.and_then(Value::as_f64);
    seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{} ms", seconds * 1e3))
}

/// Seconds as the two largest units that say something.
fn age(seconds: Option<&Value>) -> String {
    let Some(seconds) = seconds.and_then(Value::as_f64) else {
        return "-".to_owned();
    };
    let whole = std::time::Duration::try_from_secs_f64(seconds)
        .unwrap_or_default()
        .as_secs();
    match whole {
        0..60 => format!("{whole} s"),
        60..3_600 => format!("{} min {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} min", whole / 3_600, whole / 60 % 60),
        _ => format!("{} d {} h", whole / 86_400, whole / 3_600 % 24),
    }
}

fn size(bytes: Option<&Value>) -> String {
    bytes.and_then(Value::as_u64).map_or_else(
        || "-".to_owned(),
        |bytes| indicatif::BinaryBytes(bytes).to_string(),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ages_are_told_in_two_units() {
        for (seconds, text) in [
            (json!(0.4), "0 s"),
            (json!(75), "1 min 15 s"),
            (json!(7_260), "2 h 1 min"),
            (json!(180_000), "2 d 2 h"),
            (json!(null), "-"),
        ] {
            assert_eq!(age(Some(&seconds)), text);
        }
    }

    #[test]
    fn a_row_says_whether_the_identity_holds() {
        let row_of = |holds: Value, in_motion: i64| {
            row(&json!({
                "name": "orders", "state": "running",
                "accounting": {"accepted": 3, "holds": holds, "in_motion": in_motion},
            }))
        };
        assert_eq!(row_of(json!(true), 0)[7], "holds");
        assert_eq!(row_of(json!(false), 2)[7], "BROKEN by 2");
        assert_eq!(row_of(json!(null), -1)[7], "in motion: -1");
    }
}
