//! Requests for approval as rows, and what policies found of each command: the facts that they saw, so that a request
//! can be judged anew when policies change, and a new policy be tried on the past.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};
use wayhold_model::Timestamp;
use wayhold_model::approval::{Digest, Grant, OnExpiry, Quorum, Request, Requirement, Seat, State};
use wayhold_model::command::CommandId;

use super::change::{Change, View};
use super::error::CommandsError;

pub(super) const SCHEMA: &str = "
CREATE TABLE approvals(
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, command BLOB NOT NULL, state TEXT NOT NULL,
    bound BLOB NOT NULL, presented BLOB NOT NULL, policies BLOB NOT NULL, policy TEXT, requirement TEXT NOT NULL,
    excluded TEXT NOT NULL, grants TEXT NOT NULL, requested_at INTEGER NOT NULL, due_at INTEGER NOT NULL,
    escalated INTEGER NOT NULL, announced INTEGER NOT NULL
) STRICT;
CREATE INDEX approvals_of_command ON approvals(command);
CREATE INDEX approvals_due ON approvals(due_at) WHERE state = 'pending';
CREATE INDEX approvals_to_announce ON approvals(number) WHERE announced = 0;
CREATE TABLE verdicts(
    number INTEGER PRIMARY KEY, policy TEXT, requirement TEXT NOT NULL, facts TEXT NOT NULL
) STRICT;
CREATE TABLE published(
    what TEXT PRIMARY KEY, version INTEGER NOT NULL, digest BLOB NOT NULL
) STRICT, WITHOUT ROWID;
";

/// A request as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRow {
    /// Its place in lists: later ones have higher numbers.
    pub number: u64,
    /// The request.
    pub request: Request,
    /// Digest of the policies that asked.
    pub policies: Digest,
}

/// What policies found of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictRow {
    /// The command.
    pub command: CommandId,
    /// The policy that decided; `None` for the default of the risk.
    pub policy: Option<String>,
    /// What was required.
    pub requirement: Requirement,
    /// The facts that were seen beside the arguments, as JSON.
    pub facts: String,
}

const COLUMNS: &str = "number, id, command, state, bound, presented, policies, policy, requirement, excluded, grants, \
    requested_at, due_at, escalated";

impl View<'_> {
    /// A request by its id.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn request(&self, id: &str) -> Result<Option<RequestRow>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(&format!("SELECT {COLUMNS} FROM approvals WHERE id = ?1"))?
                .query_row([id], request)
                .optional()
        })
    }

    /// The requests of a command, the newest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn requests_of(&self, command: CommandId) -> Result<Vec<RequestRow>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM approvals WHERE command = ?1 ORDER BY number DESC"
                ))?
                .query_map([command.to_bytes()], request)?
                .collect()
        })
    }

    /// At most so many requests, the newest first, older than `before` where given, in one state where given.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn requests(
        &self,
        state: Option<State>,
        before: Option<u64>,
        max: u32,
    ) -> Result<Vec<RequestRow>, CommandsError> {
        let before = before.map_or(i64::MAX, |n| i64::try_from(n).unwrap_or(i64::MAX));
        self.run(|connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM approvals WHERE number < ?1 AND (?2 IS NULL OR state = ?2)
                     ORDER BY number DESC LIMIT ?3"
                ))?
                .query_map(params![before, state.map(State::name), max], request)?
                .collect()
        })
    }

    /// Pending requests whose time is over.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn requests_due(&self, now: Timestamp, max: u32) -> Result<Vec<String>, CommandsError> {
        self.texts(
            "SELECT id FROM approvals WHERE state = 'pending' AND due_at <= ?1 ORDER BY due_at LIMIT ?2",
            params![now.as_micros().cast_signed(), max],
        )
    }

    /// Pending requests that were asked by other policies than these, or show other facts: all pending ones after a
    /// number, in order.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn requests_pending(&self, after: u64, max: u32) -> Result<Vec<RequestRow>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM approvals WHERE state = 'pending' AND number > ?1
                     ORDER BY number LIMIT ?2"
                ))?
                .query_map(params![after.cast_signed(), max], request)?
                .collect()
        })
    }

    /// Requests that nobody was told of yet, in order.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn requests_to_announce(&self, max: u32) -> Result<Vec<RequestRow>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM approvals WHERE announced = 0 ORDER BY number LIMIT ?1"
                ))?
                .query_map([max], request)?
                .collect()
        })
    }

    /// What policies found of a command.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn verdict(&self, command: CommandId) -> Result<Option<VerdictRow>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT id, policy, requirement, facts FROM verdicts JOIN commands USING (number)
                     WHERE id = ?1",
                )?
                .query_row([command.to_bytes()], verdict)
                .optional()
        })
    }

    /// What policies found of the commands after one, in the order of time, with the numbers of those.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn verdicts(&self, after: u64, max: u32) -> Result<Vec<(u64, VerdictRow)>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT id, policy, requirement, facts, number FROM verdicts JOIN commands USING (number)
                     WHERE number > ?1 ORDER BY number LIMIT ?2",
                )?
                .query_map(params![after.cast_signed(), max], |row| {
                    Ok((row.get::<_, i64>(4)?.cast_unsigned(), verdict(row)?))
                })?
                .collect()
        })
    }

    /// Which version of something is published, and its digest.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn published(&self, what: &str) -> Result<Option<(u64, Digest)>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("SELECT version, digest FROM published WHERE what = ?1")?
                .query_row([what], |row| {
                    Ok((row.get::<_, i64>(0)?.cast_unsigned(), Digest(row.get(1)?)))
                })
                .optional()
        })
    }

    fn texts(
        &self,
        query: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<String>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(query)?
                .query_map(values, |row| row.get(0))?
                .collect()
        })
    }
}

impl Change<'_> {
    /// Keeps a new request. `announce` where somebody is to be told of it.
    ///
    /// # Errors
    /// There is one of that id, or the file takes no change.
    pub fn add_request(
        &mut self,
        request: &Request,
        policies: &Digest,
        announce: bool,
    ) -> Result<(), CommandsError> {
        let command = command_of(request)?;
        self.run(|connection| {
            connection
                .prepare_cached(
                    "INSERT INTO approvals(id, command, state, bound, presented, policies, policy, requirement,
                         excluded, grants, requested_at, due_at, escalated, announced)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
                )?
                .execute(params![
                    request.id,
                    command.to_bytes(),
                    request.state.name(),
                    request.bound.0,
                    request.presented.0,
                    policies.0,
                    request.policy,
                    written(&RequirementOnDisk::of(&request.requirement)),
                    written(&request.excluded),
                    grants_of(request),
                    request.requested_at.as_micros().cast_signed(),
                    request.due_at.as_micros().cast_signed(),
                    request.escalated,
                    !announce,
                ])
        })?;
        Ok(())
    }

    /// Keeps what became of a request.
    ///
    /// # Errors
    /// There is no such request, or the file takes no change.
    pub fn keep_request(&mut self, request: &Request) -> Result<(), CommandsError> {
        let changed = self.run(|connection| {
            connection
                .prepare_cached(
                    "UPDATE approvals SET state = ?2, grants = ?3, due_at = ?4, escalated = ?5 WHERE id = ?1",
                )?
                .execute(params![
                    request.id,
                    request.state.name(),
                    grants_of(request),
                    request.due_at.as_micros().cast_signed(),
                    request.escalated,
                ])
        })?;
        match changed {
            1 => Ok(()),
            _ => Err(CommandsError::Unfit {
                reason: format!("no request is called {}", request.id),
            }),
        }
    }

    /// Has a request announced again, such as after it was escalated.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn announce_request(&mut self, id: &str, announced: bool) -> Result<(), CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("UPDATE approvals SET announced = ?2 WHERE id = ?1")?
                .execute(params![id, announced])
        })?;
        Ok(())
    }

    /// Keeps what policies found of a command, in place of what they found before.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn keep_verdict(&mut self, row: &VerdictRow) -> Result<(), CommandsError> {
        let number = self.number_of(row.command)?;
        self.run(|connection| {
            connection
                .prepare_cached("INSERT OR REPLACE INTO verdicts VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![
                    number,
                    row.policy,
                    written(&RequirementOnDisk::of(&row.requirement)),
                    row.facts,
                ])
        })?;
        Ok(())
    }

    /// Keeps which version of something is published.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn publish(
        &mut self,
        what: &str,
        version: u64,
        digest: &Digest,
    ) -> Result<(), CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("INSERT OR REPLACE INTO published VALUES (?1, ?2, ?3)")?
                .execute(params![what, version.cast_signed(), digest.0])
        })?;
        Ok(())
    }
}

fn command_of(request: &Request) -> Result<CommandId, CommandsError> {
    request.command.parse().map_err(|_| CommandsError::Unfit {
        reason: format!("{} is the id of no command", request.command),
    })
}

/// A requirement on the disk.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum RequirementOnDisk {
    Auto,
    Delayed {
        micros: u64,
    },
    Approvers {
        seats: Vec<Vec<String>>,
        micros: u64,
        escalate_to: Option<String>,
        escalate_micros: u64,
    },
    Deny {
        reason: String,
    },
}

#[derive(Deserialize, Serialize)]
struct GrantOnDisk {
    who: String,
    labels: Vec<String>,
    at: u64,
    comment: String,
}

impl RequirementOnDisk {
    fn of(requirement: &Requirement) -> Self {
        match requirement {
            Requirement::Auto => Self::Auto,
            Requirement::Delayed { window } => Self::Delayed {
                micros: micros(*window),
            },
            Requirement::Deny { reason } => Self::Deny {
                reason: reason.clone(),
            },
            Requirement::Approvers(quorum) => {
                let (escalate_to, wait) = match quorum.on_expiry() {
                    OnExpiry::Deny => (None, Duration::ZERO),
                    OnExpiry::Escalate { to, wait } => (Some(to.clone()), *wait),
                };
                Self::Approvers {
                    seats: quorum.seats().iter().map(|s| s.labels().to_vec()).collect(),
                    micros: micros(quorum.expires()),
                    escalate_to,
                    escalate_micros: micros(wait),
                }
            }
        }
    }

    fn requirement(self) -> Option<Requirement> {
        Some(match self {
            Self::Auto => Requirement::Auto,
            Self::Delayed { micros } => Requirement::Delayed {
                window: Duration::from_micros(micros),
            },
            Self::Deny { reason } => Requirement::Deny { reason },
            Self::Approvers {
                seats,
                micros,
                escalate_to,
                escalate_micros,
            } => {
                let seats = seats.into_iter().map(Seat::of).collect();
                let on_expiry = match escalate_to {
                    Some(to) => OnExpiry::Escalate {
                        to,
                        wait: Duration::from_micros(escalate_micros),
                    },
                    None => OnExpiry::Deny,
                };
                let expires = Duration::from_micros(micros);
                Requirement::Approvers(Quorum::of_seats(seats, expires, on_expiry)?)
            }
        })
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn grants_of(request: &Request) -> String {
    let grants: Vec<_> = request
        .grants
        .iter()
        .map(|grant| GrantOnDisk {
            who: grant.who.clone(),
            labels: grant.labels.clone(),
            at: grant.at.as_micros(),
            comment: grant.comment.clone(),
        })
        .collect();
    written(&grants)
}

/// Texts, numbers and lists of them: nothing of it has no JSON.
fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn read_json<T: for<'de> Deserialize<'de>>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    let text: String = row.get(at)?;
    serde_json::from_str(&text).map_err(|error| unreadable(at, error))
}

fn unreadable(
    at: usize,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, error.into())
}

fn requirement_in(row: &Row<'_>, at: usize) -> rusqlite::Result<Requirement> {
    let disk: RequirementOnDisk = read_json(row, at)?;
    disk.requirement()
        .ok_or_else(|| unreadable(at, "a quorum of nobody"))
}

fn time(row: &Row<'_>, at: usize) -> rusqlite::Result<Timestamp> {
    Ok(Timestamp::from_micros(
        row.get::<_, i64>(at)?.cast_unsigned(),
    ))
}

fn verdict(row: &Row<'_>) -> rusqlite::Result<VerdictRow> {
    Ok(VerdictRow {
        command: CommandId::from_bytes(row.get(0)?),
        policy: row.get(1)?,
        requirement: requirement_in(row, 2)?,
        facts: row.get(3)?,
    })
}

fn request(row: &Row<'_>) -> rusqlite::Result<RequestRow> {
    let state: String = row.get(3)?;
    let grants: Vec<GrantOnDisk> = read_json(row, 10)?;
    let excluded: BTreeSet<String> = read_json(row, 9)?;
    Ok(RequestRow {
        number: row.get::<_, i64>(0)?.cast_unsigned(),
        policies: Digest(row.get(6)?),
        request: Request {
            id: row.get(1)?,
            command: CommandId::from_bytes(row.get(2)?).to_string(),
            state: State::from_name(&state).ok_or_else(|| unreadable(3, state))?,
            bound: Digest(row.get(4)?),
            presented: Digest(row.get(5)?),
            policy: row.get(7)?,
            requirement: requirement_in(row, 8)?,
            excluded,
            grants: grants
                .into_iter()
                .map(|grant| Grant {
                    who: grant.who,
                    labels: grant.labels,
                    at: Timestamp::from_micros(grant.at),
                    comment: grant.comment,
                })
                .collect(),
            requested_at: time(row, 11)?,
            due_at: time(row, 12)?,
            escalated: row.get(13)?,
        },
    })
}
