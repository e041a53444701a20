//! `wayhold tokens`: who may do what. Works through the API, or on the data directory of a stopped
//! server (`--data`), which is how the first token of a server on a public address comes about.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::client::{Client, ServerArguments, path};
use super::exit::Failure;
use super::output::{Output, cell, items};

/// Create, list and revoke tokens.
#[derive(Debug, clap::Args)]
pub struct Tokens {
    #[command(flatten)]
    server: ServerArguments,
    /// Work on the data directory of a stopped server instead of asking a running one.
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a token and print it, this once.
    Create {
        /// Name of the principal it belongs to.
        name: String,
        /// What the principal is.
        #[arg(long = "type", value_enum, default_value_t = PrincipalType::Service)]
        kind: PrincipalType,
        /// What it may do: ingest, read, operate, propose, approve, audit, admin, or a free label.
        #[arg(long = "role", required = true)]
        roles: Vec<String>,
    },
    /// List tokens; their secrets are not stored.
    List,
    /// End a token at once.
    Revoke {
        /// Its public prefix, as listed.
        prefix: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PrincipalType {
    Person,
    Service,
    Model,
}

impl PrincipalType {
    fn name(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Service => "service",
            Self::Model => "model",
        }
    }
}

impl Tokens {
    /// Asks the server, or works on a stopped one's data directory.
    ///
    /// # Errors
    /// When no server answers, it refuses, or the data directory is in use.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        match self.verb {
            Verb::Create { name, kind, roles } => {
                let body = json!({ "name": name, "type": kind.name(), "roles": roles });
                let created = client.post("/v1/tokens", Some(&body)).await?;
                output.json(&created);
                output.line(cell(&created, "token"));
                output.note("keep it: it is not stored and cannot be shown again");
            }
            Verb::List => list(&client.get("/v1/tokens").await?, output),
            Verb::Revoke { prefix } => {
                let token = client
                    .post(&path(["v1", "tokens", &prefix, "revoke"]), None)
                    .await?;
                output.json(&token);
                output.line(format!("token {prefix} is revoked"));
            }
        }
        Ok(())
    }
}

fn list(answer: &Value, output: &mut Output) {
    output.json(answer);
    let rows: Vec<_> = items(answer)
        .iter()
        .map(|token| {
            [
                "prefix",
                "name",
                "type",
                "roles",
                "created_at",
                "created_by",
                "revoked_at",
            ]
            .map(|field| cell(token, field))
        })
        .collect();
    let heading = [
        "PREFIX", "NAME", "TYPE", "ROLES", "CREATED", "BY", "REVOKED",
    ];
    output.table(heading, &rows);
}
