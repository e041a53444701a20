//! The record of attempts at commands: begun before anything is sent, finished before the lane hears of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tracing::{info, warn};
use wayhold_model::approval::Digest;
use wayhold_model::command::{CommandId, State, digest};
use wayhold_model::{Failure, FailureClass, Outcome, OutcomeKind};
use wayhold_store::CommandsError;
use wayhold_store::commands::{AttemptEnd, AttemptStart, Change, Payload, Transition, random_salt};

use super::answer::Finding;
use super::desk::{CommandDesk, CommandError};
use super::gate::may_leave;
use super::leave::{ask_about, not_now};
use super::outcome::{Turn, state_after, turn_of};
use super::records::{moved, ourselves, record, write};
use super::sendable::{Known, Sendable, known, prepare, target_of};
use crate::sink::{Answer, Attempt, Sink};

/// Most of an answer that is kept as a command's result, in bytes: what later commands may refer to.
const RESULT_BYTES_MAX: usize = 16 * 1024;

/// How long a change that found no room, too long a queue or a closed file is left alone before it is tried again.
const RECORD_AGAIN: Duration = Duration::from_millis(250);

/// How often an outcome is tried to be put on record: longer, and the attempt counts as cut off.
const RECORD_TRIES: u32 = 40;

/// What is done with a command now.
pub(super) enum Begun {
    /// Its attempt is on record; it is sent.
    Send(Sendable),
    /// That its target is asked is on record.
    Ask(Sendable),
    /// Nothing is sent now; this is what the lane hears.
    Ended(Outcome),
    /// Nothing is sent, now or later.
    Withdrawn,
}

impl CommandDesk {
    /// Looks at a command whose turn has come, and puts on record what is done.
    pub(super) async fn begin(&self, id: CommandId, inner: &dyn Sink, attempt: &Attempt) -> Begun {
        match self.try_begin(id, inner, attempt).await {
            Ok(begun) => begun,
            Err(error) => {
                warn!(%id, %error, "a command waits: its attempt cannot be put on record");
                Begun::Ended(not_now("the attempt cannot be put on record"))
            }
        }
    }

    async fn try_begin(
        &self,
        id: CommandId,
        inner: &dyn Sink,
        attempt: &Attempt,
    ) -> Result<Begun, CommandError> {
        let Some(known) = self.look(move |view| known(view, id)).await? else {
            let failure = Failure::new(FailureClass::Invalid, "no command has this id");
            return Ok(Begun::Ended(Outcome::Refused(failure)));
        };
        let Some(kind) = self.kinds().get(&known.command.new.kind).cloned() else {
            return Ok(Begun::Ended(not_now("its kind is not configured any more")));
        };
        let target = target_of(&kind);
        let now = self.0.clock.now();
        let command = &known.command;
        let turn = turn_of(
            command.state,
            command.new.expires_at,
            known.last.as_ref(),
            target,
            now,
        );
        match turn {
            Turn::Done => Ok(Begun::Ended(Outcome::Delivered)),
            Turn::Withdrawn => Ok(Begun::Withdrawn),
            Turn::NotYet => Ok(Begun::Ended(not_now("nobody has allowed it yet"))),
            Turn::Expire => {
                let from = command.state;
                self.step(id, (from, State::Expired), "its time passed")
                    .await?;
                Ok(Begun::Withdrawn)
            }
            Turn::Person => self.hand_to_a_person(known).await,
            Turn::Ask => {
                let sendable = match prepare(known, kind, attempt) {
                    Ok(sendable) => sendable,
                    Err(reason) => return Ok(Begun::Ended(not_now(&reason))),
                };
                let last = sendable.n;
                let commands = self.commands()?;
                let asked = commands.change(move |change| begin_asking(change, id, last));
                match asked.await? {
                    true => Ok(Begun::Ask(sendable)),
                    false => Ok(Begun::Ended(not_now("it changed meanwhile"))),
                }
            }
            Turn::Send => match prepare(known, kind, attempt) {
                Ok(sendable) => self.record_start(id, sendable, inner, attempt).await,
                Err(reason) => {
                    // Whoever looks at the dead letter finds the reason, and the command beside it.
                    self.fail_unsent(id, &reason).await?;
                    let failure = Failure::new(FailureClass::Mapping, reason);
                    Ok(Begun::Ended(Outcome::Refused(failure)))
                }
            },
        }
    }

    /// Puts an attempt on record, where the command still stands as it was read.
    async fn record_start(
        &self,
        id: CommandId,
        mut sendable: Sendable,
        inner: &dyn Sink,
        attempt: &Attempt,
    ) -> Result<Begun, CommandError> {
        let preview = match inner.preview(&sendable.event.event) {
            Some(Err(failure)) => {
                self.fail_unsent(id, &failure.reason).await?;
                return Ok(Begun::Ended(Outcome::Refused(failure)));
            }
            Some(Ok(preview)) => Some(preview),
            None => None,
        };
        let request = preview.as_ref().map_or(Value::Null, |preview| {
            json!({ "method": preview.method, "url": preview.url, "body_bytes": preview.body.len() })
        });
        let whole = preview.map(|preview| {
            json!({
                "method": preview.method, "url": preview.url, "headers": preview.headers,
                "body": String::from_utf8_lossy(&preview.body),
            })
        });
        let held = whole
            .map(|whole| held(&whole.to_string().into_bytes()))
            .transpose()?;
        let before = sendable.command.clone();
        let kind = Arc::clone(&sendable.kind);
        let sent = digest(
            &before.new.kind,
            &before.new.kind_version,
            &before.new.destination,
            &sendable.arguments,
        );
        let timeout_ms = u64::try_from(attempt.timeout.as_millis()).unwrap_or(u64::MAX);
        let done = self.commands()?.change(move |change| {
            let meanwhile = || Err("it changed meanwhile".to_owned());
            let Some(now) = known(change, id)? else {
                return Ok(meanwhile());
            };
            let turn = turn_of(
                now.command.state,
                now.command.new.expires_at,
                now.last.as_ref(),
                target_of(&kind),
                change.now(),
            );
            if let Some(halted) = may_leave(change, &now.command)? {
                return Ok(Err(halted));
            }
            // What was cancelled or edited since is looked at anew.
            if turn != Turn::Send || now.command.new.digest != before.new.digest {
                return Ok(meanwhile());
            }
            let mut from = close_cut_attempt(change, &now)?;
            if from == State::Dead {
                let step = step(from, State::RetryWait, "its delivery was redriven");
                moved(change, id, step, &ourselves())?;
                from = State::RetryWait;
            }
            // Its target could be asked before, and cannot now; the same key does no harm there.
            if from == State::Reconciling {
                let step = step(from, State::Unknown, "its target cannot be asked any more");
                moved(change, id, step, &ourselves())?;
                from = State::Unknown;
            }
            let reason = None;
            let to = State::Sending;
            moved(change, id, Transition { from, to, reason }, &ourselves())?;
            let n = change.start_attempt(
                id,
                &AttemptStart {
                    request: request.to_string(),
                },
            )?;
            let mut body = json!({
                "n": n,
                "destination": before.new.destination,
                "idempotency_key": id.to_string(),
                "command_sha256": Digest(sent).to_string(),
                "timeout_ms": timeout_ms,
            });
            if let (Some(held), Value::Object(body)) = (&held, &mut body) {
                body.insert("request".to_owned(), held.reference());
            }
            let started = record(id, "attempt.started", &ourselves(), &body)?;
            change.append_with(&started, held.as_slice())?;
            Ok::<_, CommandsError>(Ok(n))
        });
        match done.await? {
            Ok(n) => {
                sendable.n = n;
                Ok(Begun::Send(sendable))
            }
            Err(reason) => Ok(Begun::Ended(not_now(&reason))),
        }
    }

    /// Puts an outcome on record. Without that nobody may hear of it.
    pub(super) async fn finish(
        &self,
        id: CommandId,
        sendable: &Sendable,
        outcome: &Outcome,
        answer: &Answer,
    ) -> Result<(), Failure> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_finish(id, sendable, outcome, answer).await {
                Ok(()) => return Ok(()),
                Err(CommandError::Store(
                    CommandsError::NoSpace | CommandsError::Busy | CommandsError::Closed { .. },
                )) if tries < RECORD_TRIES => {
                    tokio::time::sleep(RECORD_AGAIN).await;
                }
                Err(error) => {
                    warn!(%id, %error, "an outcome cannot be put on record; it counts as unknown");
                    return Err(Failure::new(
                        FailureClass::Interrupted,
                        "the outcome could not be put on record",
                    )
                    .of_part());
                }
            }
        }
    }

    async fn try_finish(
        &self,
        id: CommandId,
        sendable: &Sendable,
        outcome: &Outcome,
        answer: &Answer,
    ) -> Result<(), CommandError> {
        let failure = outcome.failure();
        let kind = outcome.kind();
        let result = (kind == OutcomeKind::Delivered).then(|| result_of(answer));
        let shown = match answer.bytes.is_empty() {
            true => Value::Null,
            false => json!({ "bytes": answer.bytes.len(), "cut": answer.cut }),
        };
        let end = AttemptEnd {
            outcome: kind,
            class: failure.map(|failure| failure.class.name().to_owned()),
            status: failure.and_then(|failure| failure.status),
            answer: shown.to_string(),
        };
        let held = (!answer.bytes.is_empty())
            .then(|| held(&answer.bytes))
            .transpose()?;
        let reason = failure.map(|failure| failure.reason.clone());
        let cut = answer.cut;
        let n = sendable.n;
        let done = self.commands()?.change(move |change| {
            if !change.finish_attempt((id, n), &end)? {
                return Ok(());
            }
            let mut body = json!({ "n": n, "outcome": kind.name() });
            if let Value::Object(body) = &mut body {
                let mut say = |name: &str, value: Value| body.insert(name.to_owned(), value);
                if let Some(class) = &end.class {
                    say("class", class.as_str().into());
                }
                if let Some(status) = end.status {
                    say("http_status", status.into());
                }
                if let Some(held) = &held {
                    let mut response = held.reference();
                    if let Value::Object(response) = &mut response {
                        response.insert("truncated".to_owned(), cut.into());
                    }
                    say("response", response);
                }
            }
            let finished = record(id, "attempt.finished", &ourselves(), &body)?;
            change.append_with(&finished, held.as_slice())?;
            let step = Transition {
                from: State::Sending,
                to: state_after(kind),
                reason: reason.as_deref(),
            };
            moved(change, id, step, &ourselves())?;
            if let Some(result) = &result {
                change.keep_result(id, result)?;
            }
            Ok::<_, CommandsError>(())
        });
        Ok(done.await?)
    }

    /// Asks the target whether a command whose turn has come was executed. `None` where it was not: it may be
    /// sent; otherwise what the lane hears.
    pub(super) async fn reconcile_on_the_way(
        &self,
        id: CommandId,
        sendable: &Sendable,
        attempt: &Attempt,
    ) -> Option<Outcome> {
        let (finding, answer) = self.ask_target(sendable, attempt.timeout).await;
        let recorded = self.record_finding(id, finding.clone(), &answer).await;
        if let Err(error) = recorded {
            warn!(%id, %error, "what the target said cannot be put on record");
            return Some(not_now("what the target said cannot be put on record"));
        }
        match finding {
            Finding::Confirmed => Some(Outcome::Delivered),
            Finding::Absent => None,
            Finding::Different(names) => {
                let reason = format!("the target has it with other values: {}", names.join(", "));
                let failure = Failure::new(FailureClass::Invalid, reason);
                Some(Outcome::Refused(failure))
            }
            Finding::Unreachable(reason) => {
                let reason = format!("nobody knows whether it was executed: {reason}");
                let failure = Failure::new(FailureClass::Unavailable, reason);
                Some(Outcome::Unknown(failure))
            }
        }
    }

    /// Asks a target about one command.
    pub(super) async fn ask_target(
        &self,
        sendable: &Sendable,
        timeout: Duration,
    ) -> (Finding, Answer) {
        let config = sendable.kind.config.reconcile.as_ref();
        let Some((config, asks)) = config.zip(sendable.kind.asks.as_ref()) else {
            let finding = Finding::Unreachable("it cannot be asked".to_owned());
            return (finding, Answer::default());
        };
        // Before that the target may not show what it did.
        if !config.delay.is_zero() {
            let since = self.0.clock.now().since(sendable.command.changed_at);
            tokio::time::sleep(config.delay.saturating_sub(since)).await;
        }
        let (outcome, answer) = ask_about(asks.as_ref(), &sendable.event, timeout).await;
        let finding = Finding::of(config, &outcome, &answer.bytes, &sendable.arguments);
        (finding, answer)
    }

    /// Puts on record what a target said of a command that it was asked about, and takes the command there.
    pub(super) async fn record_finding(
        &self,
        id: CommandId,
        finding: Finding,
        answer: &Answer,
    ) -> Result<(), CommandError> {
        let held = (!answer.bytes.is_empty())
            .then(|| held(&answer.bytes))
            .transpose()?;
        let result = result_of(answer);
        let done = self.commands()?.change(move |change| {
            let mut body = json!({ "method": "query", "result": finding.name() });
            if let (Some(held), Value::Object(body)) = (&held, &mut body) {
                body.insert("evidence".to_owned(), held.reference());
            }
            let said = record(id, "reconcile.result", &ourselves(), &body)?;
            change.append_with(&said, held.as_slice())?;
            let to = match &finding {
                Finding::Confirmed => State::Succeeded,
                Finding::Absent => State::RetryWait,
                Finding::Different(_) => State::Dead,
                Finding::Unreachable(_) => State::Unknown,
            };
            let reason = format!("the target was asked: {}", finding.name());
            let was = moved(
                change,
                id,
                step(State::Reconciling, to, &reason),
                &ourselves(),
            )?;
            if was && to == State::Succeeded {
                change.keep_result(id, &result)?;
            }
            Ok::<_, CommandsError>(())
        });
        Ok(done.await?)
    }

    /// The lane has given a delivery up.
    pub(super) async fn given_up(&self, id: CommandId, reason: String) {
        let Ok(commands) = self.commands() else {
            return;
        };
        let done = commands.change(move |change| dead(change, id, &reason));
        if let Err(error) = done.await {
            // The care that looks after commands finds it again.
            info!(%id, %error, "that a command is dead is put on record later");
        }
    }

    async fn fail_unsent(&self, id: CommandId, reason: &str) -> Result<(), CommandError> {
        let reason = reason.to_owned();
        let done = self
            .commands()?
            .change(move |change| dead(change, id, &reason));
        Ok(done.await?)
    }

    async fn step(
        &self,
        id: CommandId,
        (from, to): (State, State),
        reason: &'static str,
    ) -> Result<bool, CommandError> {
        let step = step(from, to, reason);
        let done = self
            .commands()?
            .change(move |change| moved(change, id, step, &ourselves()));
        Ok(done.await?)
    }

    async fn hand_to_a_person(&self, known: Known) -> Result<Begun, CommandError> {
        const REASON: &str = "nobody knows whether it was executed, and its target cannot be asked; find out, and \
                              say so: commands reconcile ID --as succeeded|absent";
        let id = known.command.new.id;
        let done = self.commands()?.change(move |change| {
            let from = close_cut_attempt(change, &known)?;
            if from.may_become(State::Dead) {
                moved(change, id, step(from, State::Dead, REASON), &ourselves())?;
            }
            Ok::<_, CommandsError>(())
        });
        done.await?;
        let failure = Failure::new(FailureClass::Interrupted, REASON);
        Ok(Begun::Ended(Outcome::Refused(failure)))
    }
}

fn step<'a>(from: State, to: State, reason: &'a str) -> Transition<'a> {
    Transition {
        from,
        to,
        reason: Some(reason),
    }
}

/// An attempt that has no end was cut off by a crash: its outcome is unknown, and so is the command now. Where
/// the command stands then.
fn close_cut_attempt(change: &mut Change<'_>, known: &Known) -> Result<State, CommandsError> {
    let id = known.command.new.id;
    if let Some(last) = known.last.as_ref().filter(|last| last.end.is_none()) {
        let end = AttemptEnd {
            outcome: OutcomeKind::Unknown,
            class: Some(FailureClass::Interrupted.name().to_owned()),
            status: None,
            answer: Value::Null.to_string(),
        };
        change.finish_attempt((id, last.n), &end)?;
        let body = json!({ "n": last.n, "outcome": "unknown", "class": "interrupted" });
        write(change, id, "attempt.finished", &ourselves(), &body)?;
    }
    if known.command.state != State::Sending {
        return Ok(known.command.state);
    }
    let step = step(
        State::Sending,
        State::Unknown,
        "the server stopped before an answer came",
    );
    moved(change, id, step, &ourselves())?;
    Ok(State::Unknown)
}

/// Puts on record that a target is asked.
fn begin_asking(change: &mut Change<'_>, id: CommandId, last: u32) -> Result<bool, CommandsError> {
    let Some(now) = known(change, id)? else {
        return Ok(false);
    };
    if now.last.as_ref().map_or(0, |one| one.n) != last {
        return Ok(false);
    }
    match close_cut_attempt(change, &now)? {
        State::Reconciling => Ok(true),
        from @ (State::Unknown | State::Dead) => {
            let step = step(from, State::Reconciling, "its outcome is unknown");
            moved(change, id, step, &ourselves())
        }
        _ => Ok(false),
    }
}

/// A command is given up, where it may be.
pub(super) fn dead(
    change: &mut Change<'_>,
    id: CommandId,
    reason: &str,
) -> Result<(), CommandsError> {
    let Some(known) = known(change, id)? else {
        return Ok(());
    };
    let from = close_cut_attempt(change, &known)?;
    if !from.may_become(State::Dead) {
        return Ok(());
    }
    moved(change, id, step(from, State::Dead, reason), &ourselves()).map(drop)
}

/// What later commands may refer to: the answer as JSON, or as a text.
fn result_of(answer: &Answer) -> String {
    let bytes = answer
        .bytes
        .get(..RESULT_BYTES_MAX)
        .unwrap_or(&answer.bytes);
    match serde_json::from_slice::<Value>(bytes) {
        Ok(value) => value.to_string(),
        Err(_) if bytes.is_empty() => Value::Null.to_string(),
        Err(_) => Value::String(String::from_utf8_lossy(bytes).into_owned()).to_string(),
    }
}

/// Bytes that are kept beside the tree.
fn held(bytes: &[u8]) -> Result<Payload, CommandsError> {
    let salt = random_salt().map_err(|error| CommandsError::Unfit {
        reason: format!("no salt can be drawn: {error}"),
    })?;
    Ok(Payload::new(salt, bytes.to_vec()))
}
