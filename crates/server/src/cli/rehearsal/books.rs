//! The server's own books, read from `/v1/status`: whether its accounting holds, and how many repeats it
//! says there can have been. The checker compares them with what it saw.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::super::client::Client;
use super::super::exit::{Exit, Failure};

/// How long counts may stay in motion although nothing arrives any more.
const QUIET_WITHIN: Duration = Duration::from_secs(10);

/// What the server stated over its runs.
#[derive(Debug, Default)]
pub struct Books {
    /// Whether its accounting identity held at the last reading.
    pub holds: Option<bool>,
    repeats: BTreeMap<String, u64>,
}

impl Books {
    /// Adds what the present run says; the next reading must be of another run, since its counts begin
    /// anew.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn read(&mut self, client: &mut Client) -> Result<(), Failure> {
        let status = client.get("/v1/status").await?;
        self.add(&status)
    }

    /// The same at a quiet moment: waits until no count is in motion.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn read_quiet(&mut self, client: &mut Client) -> Result<(), Failure> {
        let given_up = Instant::now() + QUIET_WITHIN;
        loop {
            let status = client.get("/v1/status").await?;
            let settled = status
                .pointer("/accounting/holds")
                .is_some_and(Value::is_boolean);
            if settled || Instant::now() > given_up {
                return self.add(&status);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// How many repeats a destination can have seen at most, by the server's own words.
    pub fn repeats_stated(&self, destination: &str) -> u64 {
        self.repeats.get(destination).copied().unwrap_or_default()
    }

    fn add(&mut self, status: &Value) -> Result<(), Failure> {
        let unclear = || Failure::new(Exit::Failed, "the server's status has another shape");
        self.holds = status.pointer("/accounting/holds").and_then(Value::as_bool);
        let destinations = status.get("destinations").and_then(Value::as_array);
        for destination in destinations.ok_or_else(unclear)? {
            let count = |field: &str| destination.get(field).and_then(Value::as_u64);
            let name = destination.get("name").and_then(Value::as_str);
            let name = name.ok_or_else(unclear)?.to_owned();
            let stated = count("repeats").zip(count("repeats_possible"));
            let (repeats, possible) = stated.ok_or_else(unclear)?;
            *self.repeats.entry(name).or_default() += repeats + possible;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn repeats_add_up_over_runs() {
        let mut books = Books::default();
        for (repeats, possible) in [(1, 0), (2, 8)] {
            let portal =
                json!({"name": "portal", "repeats": repeats, "repeats_possible": possible});
            let status = json!({"accounting": {"holds": true}, "destinations": [portal]});
            books.add(&status).unwrap();
        }
        assert_eq!(books.repeats_stated("portal"), 11);
        assert_eq!(books.repeats_stated("archive"), 0);
        assert_eq!(books.holds, Some(true));
        assert!(books.add(&json!({})).is_err());
    }
}
