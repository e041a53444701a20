//! Asking targets whether they have what the ledger says, on somebody's wish and for all that ended lately; and taking a
//! person's word for it where a target cannot be asked.

use std::sync::Arc;

use serde_json::{Value, json};
use wayhold_model::Timestamp;
use wayhold_model::command::{CommandId, State};
use wayhold_model::ledger::Actor;
use wayhold_store::CommandsError;
use wayhold_store::commands::{Change, CommandFilter, Transition};

use super::answer::Finding;
use super::desk::{CommandDesk, CommandError};
use super::emit::event_of;
use super::records::{moved, write};
use super::sendable::{Sendable, stored};

/// Most commands that one wish asks targets about, the newest.
pub const ASKED_MAX: u32 = 1_000;

/// How a person's word is told from what a target said.
const REPORT: &str = "report";

/// What a target has that the ledger does not say.
pub(super) const UNEXPECTED: &str = "unexpected";

/// What is found out about a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconciled {
    /// The command.
    pub id: CommandId,
    /// Its kind.
    pub kind: String,
    /// Where it stands now.
    pub state: State,
    /// `confirmed`, `absent`, `different`, `unreachable` or `unexpected`: the target has what the ledger does not say.
    pub result: &'static str,
    /// Whether that is as the ledger says.
    pub as_expected: bool,
    /// What to know besides.
    pub detail: Option<String>,
}

/// The target has what it cannot have from us, or what was taken back before it was done: with no attempt on record
/// nothing of it ever left.
fn is_unexpected(finding: &Finding, state: State, was_sent: bool) -> bool {
    let was_executed = matches!(finding, Finding::Confirmed | Finding::Different(_));
    was_executed && (state.is_never_done() || !was_sent)
}

/// Whether the target has it as the ledger says. What was never done, or is yet to be, or was made up for may be absent.
fn is_as_expected(result: &str, state: State, was_sent: bool) -> bool {
    let may_be_absent = state.is_never_done() || state == State::Compensated || !was_sent;
    result == Finding::Confirmed.name() || result == Finding::Absent.name() && may_be_absent
}

/// What a person found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It was executed.
    Succeeded,
    /// It was not.
    Absent,
}

impl CommandDesk {
    /// Asks the target about one command, or takes a person's word; what was unknown is known then.
    ///
    /// # Errors
    /// There is no such command, it was never sent, or its target cannot be asked and nobody gave their word.
    pub async fn reconcile(
        &self,
        id: CommandId,
        word: Option<Word>,
        by: Actor,
    ) -> Result<Reconciled, CommandError> {
        let command = self.look(move |view| view.command(id)).await?;
        let command = command.ok_or_else(|| CommandError::NotFound { id: id.to_string() })?;
        let state = command.state;
        let wrong = |why| CommandError::WrongState { id, state, why };
        if let Some(word) = word {
            if !matches!(state, State::Unknown | State::Dead | State::Reconciling) {
                return Err(wrong("so nobody's word is needed"));
            }
            let finding = match word {
                Word::Succeeded => Finding::Confirmed,
                Word::Absent => Finding::Absent,
            };
            return self.note(id, finding, (REPORT, Value::Null), by).await;
        }
        if matches!(state, State::Sending | State::Reconciling) {
            return Err(wrong("so its answer is on the way"));
        }
        let kind = self.kinds().get(&command.new.kind).cloned();
        let Some(kind) = kind.filter(|kind| kind.asks.is_some()) else {
            return Err(wrong(
                "and its target cannot be asked; find out and say so: --as succeeded|absent",
            ));
        };
        let arguments = command.new.arguments.clone();
        let event = event_of(&command, &arguments).map_err(|error| CommandsError::Unfit {
            reason: error.to_string(),
        })?;
        let timeout = kind.timeout;
        let sendable = Sendable {
            event: Arc::new(stored(event)),
            kind,
            n: 0,
            command,
            arguments,
        };
        let (finding, answer) = self.ask_target(&sendable, timeout).await;
        let said = serde_json::from_slice(&answer.bytes).unwrap_or_default();
        self.note(id, finding, ("query", said), by).await
    }

    /// Asks targets about whatever came into its state since a time, the newest first; also about what never left, which
    /// somebody else may have had executed. What cannot be asked about is left out.
    ///
    /// # Errors
    /// Commands cannot be read, or what was found out cannot be put on record.
    pub async fn reconcile_all(
        &self,
        since: Timestamp,
        kind: Option<String>,
        by: &Actor,
    ) -> Result<Vec<Reconciled>, CommandError> {
        let filter = CommandFilter {
            states: vec![
                State::Denied,
                State::PendingApproval,
                State::Rejected,
                State::Expired,
                State::Cancelled,
                State::Ready,
                State::Succeeded,
                State::Unknown,
                State::Dead,
                State::Compensated,
                State::CompensationFailed,
            ],
            kind,
            ..CommandFilter::default()
        };
        let found = self
            .look(move |view| view.commands(&filter, None, ASKED_MAX))
            .await?;
        let kinds = self.kinds();
        let mut all = Vec::new();
        for command in found.into_iter().filter(|one| one.changed_at >= since) {
            let asks = kinds
                .get(&command.new.kind)
                .is_some_and(|kind| kind.asks.is_some());
            if asks {
                all.push(self.reconcile(command.new.id, None, by.clone()).await?);
            }
        }
        Ok(all)
    }

    /// Puts on record what was found out, and takes a command there whose outcome was not known.
    pub(super) async fn note(
        &self,
        id: CommandId,
        finding: Finding,
        (method, said): (&'static str, Value),
        by: Actor,
    ) -> Result<Reconciled, CommandError> {
        // Of a person nobody asks what they cannot have from us: they did it by hand, perhaps.
        let is_question = method != REPORT;
        let done = self.commands()?.change(move |change| {
            let not_found = || CommandError::NotFound { id: id.to_string() };
            let command = change.command(id)?.ok_or_else(not_found)?;
            let state = follow(change, id, command.state, &finding, &by)?;
            if state == State::Succeeded && command.state != State::Succeeded {
                change.keep_result(id, &said.to_string())?;
            }
            let was_sent = !change.attempts(id, 1)?.is_empty();
            let result = match is_question && is_unexpected(&finding, command.state, was_sent) {
                true => UNEXPECTED,
                false => finding.name(),
            };
            let detail = match &finding {
                Finding::Different(names) => Some(format!("other values: {}", names.join(", "))),
                Finding::Unreachable(reason) => Some(reason.clone()),
                Finding::Confirmed | Finding::Absent => None,
            };
            let body = json!({ "method": method, "result": result, "by": by.id, "detail": detail });
            write(change, id, "reconcile.result", &by, &body)?;
            Ok::<_, CommandError>(Reconciled {
                id,
                kind: command.new.kind,
                state,
                result,
                as_expected: is_as_expected(result, command.state, was_sent),
                detail,
            })
        });
        let found: Reconciled = done.await?;
        self.0.answers.count(&found.kind, found.result);
        Ok(found)
    }
}

/// Where a command goes once it is known what became of it; one that was known stays where it is.
fn follow(
    change: &mut Change<'_>,
    id: CommandId,
    from: State,
    finding: &Finding,
    by: &Actor,
) -> Result<State, CommandsError> {
    let to = match (from, finding) {
        (State::Dead, Finding::Confirmed) => State::Succeeded,
        // Its delivery is a dead letter, which somebody may have sent again now.
        (State::Dead, Finding::Absent) => State::RetryWait,
        (State::Unknown | State::Reconciling, Finding::Confirmed) => State::Succeeded,
        (State::Unknown | State::Reconciling, Finding::Absent) => State::RetryWait,
        (State::Unknown | State::Reconciling, Finding::Different(_)) => State::Dead,
        _ => return Ok(from),
    };
    let reason = format!("it was found out: {}", finding.name());
    let mut from = from;
    if from == State::Unknown {
        moved(change, id, step(from, State::Reconciling, &reason), by)?;
        from = State::Reconciling;
    }
    // A dead command that was not executed stays dead until its letter is redriven; its last attempt is known now.
    if from == State::Dead && to == State::RetryWait {
        change.settle_last_attempt(id)?;
        return Ok(from);
    }
    moved(change, id, step(from, to, &reason), by)?;
    Ok(to)
}

fn step(from: State, to: State, reason: &str) -> Transition<'_> {
    Transition {
        from,
        to,
        reason: Some(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_target_has_that_never_left_is_unexpected() {
        let different = Finding::Different(vec!["/amount".to_owned()]);
        for state in State::ALL {
            for finding in [&Finding::Confirmed, &different] {
                assert!(is_unexpected(finding, state, false), "{state:?}");
                let never = state.is_never_done();
                assert_eq!(is_unexpected(finding, state, true), never, "{state:?}");
            }
            for finding in [Finding::Absent, Finding::Unreachable(String::new())] {
                assert!(!is_unexpected(&finding, state, false), "{state:?}");
            }
        }
    }

    #[test]
    fn what_was_sent_and_counts_as_done_may_not_be_absent() {
        for (state, was_sent, expected) in [
            (State::Succeeded, true, false),
            (State::Unknown, true, false),
            (State::Dead, true, false),
            (State::CompensationFailed, true, false),
            (State::Compensated, true, true),
            (State::Cancelled, true, true),
            (State::Denied, false, true),
            (State::PendingApproval, false, true),
            (State::Ready, false, true),
        ] {
            assert_eq!(
                is_as_expected("absent", state, was_sent),
                expected,
                "{state:?}"
            );
            assert!(is_as_expected("confirmed", state, was_sent));
            for result in ["different", "unreachable", UNEXPECTED] {
                assert!(
                    !is_as_expected(result, state, was_sent),
                    "{state:?} {result}"
                );
            }
        }
    }
}
