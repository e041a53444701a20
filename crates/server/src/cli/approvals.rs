//! `wayhold approvals`: what waits for a person, and what they decide.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::client::{Client, ServerArguments, path};
use super::exit::{Exit, Failure};
use super::many_approvals::Many;
use super::output::{Output, cell, items};
use super::paging::follow;

/// Look at commands that wait for a person, and decide on them.
#[derive(Debug, clap::Args)]
pub struct Approvals {
    #[command(flatten)]
    server: ServerArguments,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List requests, newest first.
    List {
        /// In this state; "any" for all.
        #[arg(long, default_value = "pending")]
        state: String,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show what a request is about: what would be sent, what was changed, and its digest.
    Show {
        /// Its id.
        id: String,
    },
    /// Say yes to a command whose digest you saw, or to many of one policy.
    Approve(Decision),
    /// Say no to it or them, and why.
    Reject(Decision),
    /// Say what the policies of a file would have asked of the commands on record.
    Simulate {
        /// A configuration file, or one that holds only [[approvals]].
        file: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Decision {
    /// Id of the request.
    #[arg(required_unless_present = "all_of", conflicts_with_all = ["all_of", "kind", "destination", "expect", "seen"])]
    id: Option<String>,
    /// The digest that `approvals show` gave.
    #[arg(
        long,
        value_name = "SHA256",
        conflicts_with = "all_of",
        required_unless_present = "all_of"
    )]
    digest: Option<String>,
    #[command(flatten)]
    many: Many,
    /// What you say to it; needed to reject.
    #[arg(long)]
    comment: Option<String>,
}

impl Approvals {
    /// Asks the server.
    ///
    /// # Errors
    /// When no server answers or it refuses.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        match self.verb {
            Verb::List { state, limit } => list(&mut client, &state, limit, output).await,
            Verb::Show { id } => {
                let request = client.get(&path(["v1", "approvals", &id])).await?;
                output.json(&request);
                output.fields(&request);
                if cell(&request, "state") == "pending" && !output.is_json() {
                    output.note(format!(
                        "wayhold approvals approve {} --digest {}",
                        cell(&request, "id"),
                        cell(&request, "digest")
                    ));
                }
                Ok(())
            }
            Verb::Approve(decision) => decide(&mut client, &decision, "approve", output).await,
            Verb::Reject(decision) => decide(&mut client, &decision, "reject", output).await,
            Verb::Simulate { file } => simulate(&mut client, file, output).await,
        }
    }
}

async fn list(
    client: &mut Client,
    state: &str,
    limit: usize,
    output: &mut Output,
) -> Result<(), Failure> {
    let few = follow(client, "/v1/approvals", &[("state", state)], limit).await?;
    output.json(&json!({ "items": few.items, "next": few.next }));
    let rows: Vec<_> = few
        .items
        .iter()
        .map(|request| {
            [
                cell(request, "id"),
                cell(request, "state"),
                cell(request, "kind"),
                cell(request, "amount"),
                cell(request, "destination"),
                cell(request, "policy"),
                cell(request, "approved"),
                cell(request, "due_at"),
            ]
        })
        .collect();
    let heading = [
        "ID",
        "STATE",
        "KIND",
        "AMOUNT",
        "DESTINATION",
        "POLICY",
        "APPROVED",
        "DUE",
    ];
    output.table(heading, &rows);
    few.note_more(limit, output);
    Ok(())
}

async fn decide(
    client: &mut Client,
    decision: &Decision,
    verb: &str,
    output: &mut Output,
) -> Result<(), Failure> {
    let Some(id) = &decision.id else {
        let comment = decision.comment.as_deref();
        return decision.many.decide(client, verb, comment, output).await;
    };
    let body = json!({ "digest": decision.digest, "comment": decision.comment });
    let path = path(["v1", "approvals", id, verb]);
    let request = client.post(&path, Some(&body)).await?;
    output.json(&request);
    let state = cell(&request, "state");
    output.line(match state.as_str() {
        "pending" => format!(
            "recorded; {} of those asked have approved",
            cell(&request, "approved")
        ),
        "consumed" => format!("command {} is ready to leave", cell(&request, "command")),
        _ => format!("request {id} is {state}"),
    });
    Ok(())
}

async fn simulate(client: &mut Client, file: PathBuf, output: &mut Output) -> Result<(), Failure> {
    let text = std::fs::read_to_string(&file)
        .map_err(|error| Failure::new(Exit::Usage, format!("{}: {error}", file.display())))?;
    let body = json!({ "policies": text });
    let found = client.post("/v1/approvals/simulate", Some(&body)).await?;
    output.json(&found);
    let rows: Vec<_> = items(&found)
        .iter()
        .map(|one| {
            [
                cell(one, "command"),
                cell(one, "kind"),
                cell(one, "amount"),
                cell(one, "principal"),
                cell(one, "direction"),
                cell(one, "then"),
                cell(one, "now"),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let heading = [
            "COMMAND",
            "KIND",
            "AMOUNT",
            "PRINCIPAL",
            "CHANGE",
            "THEN",
            "NOW",
        ];
        output.table(heading, &rows);
    }
    output.line(format!(
        "{} commands: {} stricter, {} easier, {} other; {} questions had no answer",
        cell(&found, "commands"),
        cell(&found, "stricter"),
        cell(&found, "easier"),
        cell(&found, "other"),
        cell(&found, "faults")
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        approvals: Approvals,
    }

    #[test]
    fn a_decision_names_what_was_seen() {
        assert!(Line::try_parse_from(["x", "approve", "a1"]).is_err());
        let read = Line::try_parse_from(["x", "approve", "a1", "--digest", "00"]).unwrap();
        assert!(matches!(read.approvals.verb, Verb::Approve(_)));
    }

    #[test]
    fn one_request_or_many_are_decided_on_and_never_both() {
        let read = |line: &str| Line::try_parse_from(line.split(' ')).is_ok();
        for (line, is_right) in [
            ("x approve --all-of big", true),
            (
                "x approve --all-of big --kind refund --expect 3 --seen 00",
                true,
            ),
            ("x reject --all-of big --comment no", true),
            ("x approve", false),
            ("x approve a1", false),
            ("x approve a1 --all-of big", false),
            ("x approve a1 --digest 00 --kind refund", false),
            ("x approve --all-of big --digest 00", false),
            ("x approve --kind refund", false),
            ("x approve --all-of big --expect 3", false),
            ("x approve --all-of big --seen 00", false),
        ] {
            assert_eq!(read(line), is_right, "{line}");
        }
    }
}
