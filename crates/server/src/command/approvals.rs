//! Requests for approval at work: decided by people, ended by time, judged anew when what they rest on changes, and
//! announced to whoever is to decide. The rules are pure functions (`model::approval`); here each is applied to rows
//! that were just read, in the change that acts upon it, with its record.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};
use thiserror::Error;
use wayhold_model::approval::{
    Approver, Digest, Elapsed, Facts, Progress, Refusal, State as RequestState, Void,
};
use wayhold_model::command::{CommandId, State};
use wayhold_model::ledger::Actor;
use wayhold_model::{Clock, Timestamp};
use wayhold_store::commands::{Change, Command, Edited, Payload, RequestRow, View, random_salt};
use wayhold_store::{Commands, CommandsError, Store};

use super::counted::{Decisions, DecisionsReport, Ending};
use super::gate::{Gate, Subject, make_ready, refresh, step, void};
use super::records::{append, record, write};

/// Requests that are ended by time or judged anew together: others wait for the same writer.
const BATCH: u32 = 64;

/// Decisions and waiting requests; a cheap handle.
#[derive(Clone)]
pub struct Approvals {
    pub(super) store: Store,
    pub(super) gate: Gate,
    clock: Arc<dyn Clock>,
    counted: Arc<Decisions>,
}

/// A yes or a no.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Whether it is a yes.
    pub yes: bool,
    /// Who decides.
    pub by: Approver,
    /// Digest of the command that they saw.
    pub seen: Digest,
    /// What they say; a no says why.
    pub comment: String,
}

/// A command with other arguments.
#[derive(Clone, Debug)]
pub struct Edit {
    /// Who edits; from then on a requester.
    pub by: Actor,
    /// Digest of the command that they saw.
    pub seen: Digest,
    /// The facts with the new arguments and amount; who proposed it, and for whom, stays.
    pub facts: Facts,
    /// The new arguments, as canonical JSON.
    pub arguments: String,
    /// Digest of the command with them.
    pub digest: Digest,
    /// What its order is kept by now.
    pub order_key: Option<String>,
}

/// Why nothing was decided; each says what to do next.
#[derive(Debug, Error)]
pub enum ApprovalError {
    /// No request or command has that id.
    #[error("no {what} is called {id:?}")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// The id as it was given.
        id: String,
    },
    /// The decision has no effect, which is on record. Look at the request again.
    #[error("{}", told(.refusal, .request))]
    Refused {
        /// Why.
        refusal: Refusal,
        /// The request as it stands.
        request: Box<RequestRow>,
    },
    /// The command is another one than was seen, or does not wait for approval. Look at it again.
    #[error("command {id} is {}, with the digest {digest}", .state.name())]
    Other {
        /// The command.
        id: CommandId,
        /// Where it stands.
        state: State,
        /// Its digest.
        digest: Digest,
    },
    /// A batch names a request of another policy. Decide on it apart.
    #[error("request {id} was asked for by another policy")]
    OtherPolicy {
        /// The request.
        id: String,
    },
    /// The change was not recorded.
    #[error(transparent)]
    Store(#[from] CommandsError),
    /// Commands cannot be opened.
    #[error("commands cannot be opened: {0}")]
    Closed(String),
}

fn told(refusal: &Refusal, row: &RequestRow) -> String {
    let request = &row.request;
    match refusal {
        Refusal::NotPending(state) => format!("the request is {} already", state.name()),
        Refusal::Late => "the time to decide is over".to_owned(),
        Refusal::OtherDigest => format!(
            "another command was seen than is asked for now, whose digest is {}",
            request.bound
        ),
        Refusal::NotAPerson => "only a person decides".to_owned(),
        Refusal::Requester => {
            "whoever proposed or edited a command, or is whom it is for, does not decide on it"
                .to_owned()
        }
        Refusal::NobodyAsked => {
            "time is asked for, not people: it can be rejected until it leaves".to_owned()
        }
        Refusal::AlreadyGranted => "you approved it already; others are asked too".to_owned(),
        Refusal::NoSeat => match request.quorum() {
            Some(quorum) => format!(
                "none of your labels is asked for any more: {}",
                quorum.to_json()
            ),
            None => "nobody is asked".to_owned(),
        },
    }
}

impl Approvals {
    /// Over the commands of a store.
    pub fn new(store: Store, gate: Gate, clock: Arc<dyn Clock>) -> Self {
        let counted = Arc::default();
        Self {
            store,
            gate,
            clock,
            counted,
        }
    }

    /// How requests ended since the process began, and how long people took.
    pub fn counted(&self) -> DecisionsReport {
        self.counted.report()
    }

    /// Counts a decision of a person, where it ended its request.
    fn count(&self, row: &RequestRow) {
        if let Some(decided) = Ending::by_a_person(row.request.state) {
            let after = self.clock.now().since(row.request.requested_at);
            self.counted.count(decided, after);
        }
    }

    /// The gate whose requests these are.
    pub const fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(super) fn commands(&self) -> Result<Commands, ApprovalError> {
        let commands = self.store.commands();
        commands.map_err(|error| ApprovalError::Closed(error.to_string()))
    }

    pub(super) async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Change<'_>) -> Result<T, ApprovalError> + Send + 'static,
    ) -> Result<T, ApprovalError> {
        self.commands()?.change(work).await
    }

    /// Looks at what is kept, away from the threads that serve everybody. Where there never were commands there is
    /// nothing, and nothing is made.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn look<T: Default + Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> Result<T, CommandsError> + Send + 'static,
    ) -> Result<T, ApprovalError> {
        if !self.store.has_commands() {
            return Ok(T::default());
        }
        let commands = self.commands()?;
        let looked = crate::blocking::blocking(move || commands.read(look)).await;
        Ok(looked.map_err(|_interrupted| CommandsError::Stopping)??)
    }

    /// Decides on a request.
    ///
    /// # Errors
    /// A refusal is on record; with any other error nothing is.
    pub async fn decide(
        &self,
        id: String,
        decision: Decision,
    ) -> Result<RequestRow, ApprovalError> {
        if !self.store.has_commands() {
            return Err(ApprovalError::NotFound {
                what: "request",
                id,
            });
        }
        let gate = self.gate.clone();
        let decided = self.change(move |change| {
            // A refusal is recorded, so it is no error of the change.
            decide(&gate, change, &id, &decision)
        });
        let decided = refused(decided.await?)?;
        self.count(&decided);
        Ok(decided)
    }

    /// Decides on requests together: all of one policy, each with the digest that was seen. What has no effect is
    /// told for each, and on record.
    ///
    /// # Errors
    /// Nothing was decided: a request is not there, or of another policy.
    pub async fn decide_all(
        &self,
        seen: Vec<(String, Digest)>,
        policy: Option<String>,
        decision: Decision,
    ) -> Result<Vec<Result<RequestRow, ApprovalError>>, ApprovalError> {
        let gate = self.gate.clone();
        let decided = self.change(move |change| {
            for (id, _) in &seen {
                let row = row_of(change, id)?;
                if row.request.policy != policy {
                    return Err(ApprovalError::OtherPolicy { id: id.clone() });
                }
            }
            let each = seen.into_iter().map(|(id, seen)| {
                let decision = Decision {
                    seen,
                    ..decision.clone()
                };
                decide(&gate, change, &id, &decision)
            });
            each.collect::<Result<Vec<_>, ApprovalError>>()
        });
        let decided: Vec<_> = decided.await?.into_iter().map(refused).collect();
        for row in decided.iter().flatten() {
            self.count(row);
        }
        Ok(decided)
    }

    /// Puts other arguments in place of a command's that waits for approval. What was approved counts no more, the
    /// policies are asked again, and the editor is a requester from now on.
    ///
    /// # Errors
    /// The command is not there, does not wait, or is another one than was seen: nothing was changed.
    pub async fn edit(&self, id: CommandId, edit: Edit) -> Result<State, ApprovalError> {
        let gate = self.gate.clone();
        let arguments = edit.arguments.clone().into_bytes();
        let salt = random_salt().map_err(|error| CommandsError::Unfit {
            reason: format!("no salt can be drawn: {error}"),
        })?;
        let payload = Payload::new(salt, arguments);
        let edited = self.change(move |change| {
            let command = command_of(change, id)?;
            let other = |digest| ApprovalError::Other {
                id,
                state: command.state,
                digest,
            };
            let digest = Digest(command.new.digest);
            if command.state != State::PendingApproval || digest != edit.seen {
                return Err(other(digest));
            }
            let requests = change.requests_of(id)?;
            let mut editors = requests
                .into_iter()
                .next()
                .map(|row| row.request.excluded)
                .unwrap_or_default();
            editors.insert(edit.by.id.clone());
            let why = Void::Edited {
                by: edit.by.clone(),
                new: edit.digest,
            };
            void(change, id, &why)?;
            let with = Edited {
                arguments: &edit.arguments,
                digest: &edit.digest,
                order_key: edit.order_key.as_deref(),
            };
            if !change.edit_command(id, &edit.by.id, with)? {
                return Err(other(digest));
            }
            let body = json!({
                "old_sha256": digest.to_string(),
                "new_sha256": edit.digest.to_string(),
                "args": payload.reference(),
            });
            let edited = record(id, "command.edited", &edit.by, &body)?;
            change.append_with(&edited, &[payload])?;
            let subject = Subject {
                command: id,
                digest: edit.digest,
                editors,
            };
            change.give_back(id)?;
            let asked = gate.ask(edit.facts, subject, change.now())?;
            Ok(asked.settle_from(change, State::PendingApproval)?)
        });
        edited.await
    }

    /// Ends what is due: undo windows, waits, escalations. Says how many there were.
    ///
    /// # Errors
    /// The file cannot be read; what is due stays due.
    pub async fn elapse_due(&self) -> Result<usize, ApprovalError> {
        let now = self.clock.now();
        let due = self.look(move |view| view.requests_due(now, BATCH)).await?;
        let each = due.into_iter().map(|id| {
            let gate = self.gate.clone();
            async move {
                let ended = self
                    .change(move |change| elapse(&gate, change, &id))
                    .await?;
                if let Some((decided, requested_at)) = ended {
                    self.counted.count(decided, now.since(requested_at));
                }
                Ok(true)
            }
        });
        Ok(count(join_all(each).await))
    }

    /// Judges every waiting request anew, after the gate follows another rulebook. Says how many were asked again.
    ///
    /// # Errors
    /// The file cannot be read; decisions judge their request anew before they count.
    pub async fn reconsider_all(&self) -> Result<usize, ApprovalError> {
        let (mut after, mut again) = (0, 0);
        loop {
            let rows = self
                .look(move |view| view.requests_pending(after, BATCH))
                .await?;
            let Some(last) = rows.last() else {
                return Ok(again);
            };
            after = last.number;
            let each = rows.into_iter().map(|row| {
                let gate = self.gate.clone();
                self.change(move |change| {
                    let row = row_of(change, &row.request.id)?;
                    let command = command_of(change, id_of(&row.request.command)?)?;
                    let waits = row.request.state == RequestState::Pending;
                    Ok(waits && refresh(&gate, change, &row, &command)?)
                })
            });
            again += count(join_all(each).await);
        }
    }

    /// Puts the policies in force on record where they are others than before.
    ///
    /// # Errors
    /// The file takes no change.
    pub async fn publish(&self) -> Result<Option<u64>, ApprovalError> {
        let book = self.gate.book();
        let published = self.change(move |change| {
            let before = change.published("approvals")?;
            if before.is_some_and(|(_, digest)| digest == book.policies_digest) {
                return Ok::<_, ApprovalError>(None);
            }
            let version = before.map_or(1, |(version, _)| version + 1);
            change.publish("approvals", version, &book.policies_digest)?;
            let body = json!({
                "policy": {
                    "id": "approvals",
                    "version": version,
                    "sha256": book.policies_digest.to_string(),
                },
                "previous_sha256": before.map(|(_, digest)| digest.to_string()),
                "policies": book.policies.to_json(),
            });
            let stream = "policy:approvals".to_owned();
            append(
                change,
                stream,
                "policy.published",
                &Actor::system("policy"),
                &body,
            )?;
            Ok(Some(version))
        });
        published.await
    }
}

/// How many had an effect. One that fails is told and keeps no other from its turn.
fn count(done: Vec<Result<bool, ApprovalError>>) -> usize {
    let had_effect = |done: Result<bool, ApprovalError>| {
        done.unwrap_or_else(|error| {
            tracing::error!(%error, "a request for approval does not follow; it is tried again");
            false
        })
    };
    done.into_iter()
        .filter_map(|done| had_effect(done).then_some(()))
        .count()
}

/// What a decision came to: a row, or why it has no effect.
type Decided = Result<RequestRow, (Refusal, Box<RequestRow>)>;

fn refused(decided: Decided) -> Result<RequestRow, ApprovalError> {
    decided.map_err(|(refusal, request)| ApprovalError::Refused { refusal, request })
}

fn decide(
    gate: &Gate,
    change: &mut Change<'_>,
    id: &str,
    decision: &Decision,
) -> Result<Decided, ApprovalError> {
    let before = row_of(change, id)?;
    let command = command_of(change, id_of(&before.request.command)?)?;
    let row = match refresh(gate, change, &before, &command)? {
        true => row_of(change, id)?,
        false => before,
    };
    let now = change.now();
    let Decision {
        yes,
        by,
        seen,
        comment,
    } = decision;
    let result = match yes {
        true => row.request.approve(by, seen, comment, now),
        false => row.request.reject(by, seen, comment, now),
    };
    match result {
        Ok(progress) => {
            let request = progress.request.clone();
            take(change, command.new.id, progress, comment)?;
            Ok(Ok(RequestRow { request, ..row }))
        }
        Err(refusal) => {
            let what = if *yes { "approve" } else { "reject" };
            let one = row.request.refused(what, by, seen, refusal);
            write(change, command.new.id, one.kind, &one.actor, &one.body)?;
            Ok(Err((refusal, Box::new(row))))
        }
    }
}

/// Does what is due with a request; how it ended and when it was made, where it has ended.
fn elapse(
    gate: &Gate,
    change: &mut Change<'_>,
    id: &str,
) -> Result<Option<(Ending, Timestamp)>, ApprovalError> {
    let row = row_of(change, id)?;
    let command = command_of(change, id_of(&row.request.command)?)?;
    if refresh(gate, change, &row, &command)? {
        return Ok(None);
    }
    let requested_at = row.request.requested_at;
    match row.request.elapse(change.now()) {
        Elapsed::Nothing => {}
        Elapsed::Released(progress) => {
            take(change, command.new.id, progress, "")?;
            return Ok(Some((Ending::Elapsed, requested_at)));
        }
        Elapsed::Expired(progress) => {
            take(change, command.new.id, progress, "nobody decided in time")?;
            return Ok(Some((Ending::Expired, requested_at)));
        }
        Elapsed::Escalated(progress) => {
            take(change, command.new.id, progress, "")?;
            let announces = gate.book().announces;
            change.announce_request(id, !announces)?;
        }
    }
    Ok(None)
}

/// Keeps what became of a request, and takes its command where that leads.
fn take(
    change: &mut Change<'_>,
    command: CommandId,
    progress: Progress,
    reason: &str,
) -> Result<(), CommandsError> {
    change.keep_request(&progress.request)?;
    for one in &progress.records {
        write(change, command, one.kind, &one.actor, &one.body)?;
    }
    let from = State::PendingApproval;
    let ended = match progress.request.state {
        RequestState::Rejected => State::Rejected,
        RequestState::Expired => State::Expired,
        RequestState::Consumed => {
            let release = progress.release.ok_or_else(|| CommandsError::Unfit {
                reason: format!("request {} is used up", progress.request.id),
            })?;
            return make_ready(change, command, from, &release);
        }
        RequestState::Pending | RequestState::Cancelled | RequestState::Invalidated => {
            return Ok(());
        }
    };
    step(change, command, (from, ended), Some(reason))
}

fn row_of(view: &View<'_>, id: &str) -> Result<RequestRow, ApprovalError> {
    view.request(id)?.ok_or_else(|| ApprovalError::NotFound {
        what: "request",
        id: id.to_owned(),
    })
}

fn command_of(view: &View<'_>, id: CommandId) -> Result<Command, ApprovalError> {
    view.command(id)?.ok_or_else(|| ApprovalError::NotFound {
        what: "command",
        id: id.to_string(),
    })
}

fn id_of(text: &str) -> Result<CommandId, ApprovalError> {
    text.parse().map_err(|_| ApprovalError::NotFound {
        what: "command",
        id: text.to_owned(),
    })
}

/// What differs between two sets of arguments, by JSON pointer: for whoever decides on an edited command.
pub fn differences(from: &Value, to: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    differ(String::new(), from, to, &mut found);
    found
}

fn differ(path: String, from: &Value, to: &Value, found: &mut Vec<Value>) {
    if from == to {
        return;
    }
    if let (Value::Object(old), Value::Object(new)) = (from, to) {
        let names: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
        for name in names {
            let escaped = name.replace('~', "~0").replace('/', "~1");
            let side = |fields: &serde_json::Map<String, Value>| {
                fields.get(name).cloned().unwrap_or(Value::Null)
            };
            differ(format!("{path}/{escaped}"), &side(old), &side(new), found);
        }
        return;
    }
    found.push(json!({ "path": path, "from": from, "to": to }));
}

#[cfg(test)]
mod tests;
