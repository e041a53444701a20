//! `wayhold sources`: the tables that the server reads, and what they lack.

use clap::Subcommand;
use serde_json::Value;

use super::client::{Client, ServerArguments};
use super::exit::{Exit, Failure};
use super::output::{Output, cell, items};

/// Show the tables that the server reads, and what they lack.
#[derive(Debug, clap::Args)]
pub struct Sources {
    #[command(flatten)]
    server: ServerArguments,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List all of them with their state and what waits in each.
    List,
    /// Say what a source lacks in its database (columns, privileges, settings), with the SQL that mends it.
    Check {
        /// The source.
        name: String,
    },
}

impl Sources {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers, it refuses, or something is missing.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        match self.verb {
            Verb::List => {
                list(&client.get("/v1/sources").await?, output);
                Ok(())
            }
            Verb::Check { name } => {
                let path = format!("/v1/sources/{name}/check");
                let answer = client.post(&path, None).await?;
                check(&answer, output)
            }
        }
    }
}

fn list(answer: &Value, output: &mut Output) {
    output.json(answer);
    let fields = [
        "name",
        "table",
        "mode",
        "state",
        "accepted",
        "lag_rows",
        "counted_at",
        "refused",
        "reason",
    ];
    let rows: Vec<_> = items(answer)
        .iter()
        .map(|row| fields.map(|field| cell(row, field)))
        .collect();
    let heading = [
        "SOURCE", "TABLE", "MODE", "STATE", "ACCEPTED", "WAITING", "COUNTED", "REFUSED", "REASON",
    ];
    output.table(heading, &rows);
}

/// A finding a paragraph: what is missing as a comment, and below it what mends it, so that the whole can be
/// given to the database's client.
fn check(answer: &Value, output: &mut Output) -> Result<(), Failure> {
    output.json(answer);
    let findings = answer.get("findings").and_then(Value::as_array);
    for finding in findings.into_iter().flatten() {
        output.line(format!(
            "-- {}: {}",
            cell(finding, "kind"),
            cell(finding, "problem")
        ));
        if let Some(sql) = finding.get("sql").and_then(Value::as_str) {
            for line in sql.lines() {
                output.line(line);
            }
        }
    }
    if answer.get("ready") == Some(&Value::Bool(true)) {
        output.line("-- nothing is missing");
        return Ok(());
    }
    Err(Failure::new(
        Exit::Failed,
        "something is missing, without which the table is not read",
    ))
}
