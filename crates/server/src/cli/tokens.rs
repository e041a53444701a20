//! `wayhold tokens`: who may do what. Works through the API, or on the data directory of a stopped
//! server (`--data`), which is how the first token of a server on a public address comes about.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};
use wayhold_model::Clock;
use wayhold_store::{CatalogError, Store};

use super::client::{Client, ServerArguments, path};
use super::exit::{Exit, Failure};
use super::output::{Output, cell, items};
use crate::api::list::List;
use crate::api::tokens::{CreatedBody, NewTokenBody, TokenBody};
use crate::auth::{Auth, Openness};
use crate::clock::SystemClock;

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
        #[arg(
            long = "role",
            value_name = "ROLE",
            required = true,
            value_delimiter = ','
        )]
        roles: Vec<String>,
        /// From which fraction of a limit on the backlog on its events are refused, such as 0.8.
        #[arg(long, value_name = "FRACTION")]
        admit_until: Option<f64>,
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
        let answer = match &self.data {
            None => ask(&mut Client::new(&self.server)?, &self.verb).await?,
            Some(data) => act(data, &self.verb)?,
        };
        match self.verb {
            Verb::Create { .. } => {
                output.json(&answer);
                output.line(cell(&answer, "token"));
                output.note("keep it: only its hash is stored, so it cannot be shown again");
            }
            Verb::List => list(&answer, output),
            Verb::Revoke { prefix } => {
                output.json(&answer);
                output.line(format!("token {prefix} is revoked"));
            }
        }
        Ok(())
    }
}

impl Verb {
    /// The body that asks for a new token.
    fn wish(
        name: &str,
        kind: PrincipalType,
        roles: &[String],
        admit_until: Option<f64>,
    ) -> NewTokenBody {
        NewTokenBody {
            name: name.to_owned(),
            kind: kind.name().to_owned(),
            roles: roles.to_vec(),
            admit_until,
        }
    }
}

async fn ask(client: &mut Client, verb: &Verb) -> Result<Value, Failure> {
    match verb {
        Verb::Create {
            name,
            kind,
            roles,
            admit_until,
        } => {
            let wish = json!(Verb::wish(name, *kind, roles, *admit_until));
            client.post("/v1/tokens", Some(&wish)).await
        }
        Verb::List => client.get("/v1/tokens").await,
        Verb::Revoke { prefix } => {
            client
                .post(&path(["v1", "tokens", prefix, "revoke"]), None)
                .await
        }
    }
}

/// Does the same on the data directory of a stopped server, as the principal `local`.
fn act(data: &Path, verb: &Verb) -> Result<Value, Failure> {
    let clock = Arc::new(SystemClock);
    // No shard is touched: how they are kept is for the server's configuration to say.
    let alone = Store::catalog_alone(data, Arc::clone(&clock) as Arc<dyn Clock>)
        .map_err(|error| Failure::usage(error.to_string()))?;
    let catalog = Arc::clone(&alone.catalog);
    match verb {
        Verb::Create {
            name,
            kind,
            roles,
            admit_until,
        } => {
            let auth = Auth::new(catalog, Openness::Guarded, clock);
            Verb::wish(name, *kind, roles, *admit_until)
                .principal()
                .map_err(Failure::usage)
                .and_then(|principal| {
                    let created = auth
                        .create(&principal, LOCAL)
                        .map_err(|error| failed(&error))?;
                    Ok(json!(CreatedBody {
                        token: created.token,
                        record: created.record.into()
                    }))
                })
        }
        Verb::List => {
            let tokens = catalog.tokens().into_iter().map(TokenBody::from).collect();
            Ok(json!(List::whole(tokens)))
        }
        Verb::Revoke { prefix } => match catalog.revoke_token(prefix, LOCAL) {
            Ok(record) => Ok(json!(TokenBody::from(record))),
            Err(error @ CatalogError::NotFound { .. }) => {
                Err(Failure::new(Exit::NotFound, error.to_string()))
            }
            Err(error) => Err(failed(&error)),
        },
    }
}

/// Who acts on a stopped server's data: whoever may write its files.
const LOCAL: &str = "local";

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, error.to_string())
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
                "admit_until",
                "created_at",
                "created_by",
                "revoked_at",
            ]
            .map(|field| cell(token, field))
        })
        .collect();
    let heading = [
        "PREFIX", "NAME", "TYPE", "ROLES", "UNTIL", "CREATED", "BY", "REVOKED",
    ];
    output.table(heading, &rows);
}
