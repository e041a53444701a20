//! What an attempt at a command means: decided by pure functions from where the command stands and what is known of its
//! last attempt.

use wayhold_model::command::State;
use wayhold_model::{OutcomeKind, Timestamp};
use wayhold_store::commands::AttemptRow;

/// What is done when the lane has come to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is sent: an attempt is put on record first.
    Send,
    /// The target is asked whether it has it.
    Ask,
    /// The target has it: nothing is sent.
    Done,
    /// It is not wanted any more: nothing is sent, now or later.
    Withdrawn,
    /// Its time is over: it ends as expired.
    Expire,
    /// Nobody allowed it yet.
    NotYet,
    /// Nobody can tell whether it was executed, and the target cannot be asked: a person decides.
    Person,
}

/// What is known of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// It executes a repeated request once.
    pub idempotent: bool,
    /// It can be asked.
    pub can_be_asked: bool,
}

/// Decides what is done. `last` is the last attempt on record.
pub fn turn_of(
    state: State,
    expires_at: Option<Timestamp>,
    last: Option<&AttemptRow>,
    target: Target,
    now: Timestamp,
) -> Turn {
    let unclear = match target {
        _ if wayhold_store::planted!("unknown-sent-again") => Turn::Send,
        Target {
            idempotent: true, ..
        } => Turn::Send,
        Target {
            can_be_asked: true, ..
        } => Turn::Ask,
        Target { .. } => Turn::Person,
    };
    match state {
        State::Accepted | State::PendingApproval => Turn::NotYet,
        State::Denied | State::Rejected | State::Expired | State::Cancelled => Turn::Withdrawn,
        State::Ready | State::RetryWait => match expires_at {
            Some(at) if at <= now => Turn::Expire,
            _ => Turn::Send,
        },
        // An attempt that was cut off by a crash may have been executed.
        State::Sending | State::Unknown => unclear,
        State::Reconciling => match target.can_be_asked {
            true => Turn::Ask,
            false => unclear,
        },
        // Somebody has its delivery sent again.
        State::Dead => match was_executed_for_all_we_know(last) {
            true => unclear,
            false => Turn::Send,
        },
        State::Succeeded | State::Compensating | State::Compensated | State::CompensationFailed => {
            Turn::Done
        }
    }
}

/// Whether the last attempt may have been executed without our knowing.
fn was_executed_for_all_we_know(last: Option<&AttemptRow>) -> bool {
    last.is_some_and(|last| match &last.end {
        None => true,
        Some((_, end)) => end.outcome == OutcomeKind::Unknown,
    })
}

/// Where an attempt's outcome takes a command; whether its delivery is given up is the lane's to say.
pub fn state_after(outcome: OutcomeKind) -> State {
    match outcome {
        OutcomeKind::Delivered => State::Succeeded,
        OutcomeKind::Refused | OutcomeKind::NotExecuted => State::RetryWait,
        OutcomeKind::Unknown => State::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use wayhold_store::commands::AttemptEnd;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(10);

    fn ended(outcome: OutcomeKind) -> AttemptRow {
        let end = AttemptEnd {
            outcome,
            class: None,
            status: None,
            answer: String::new(),
        };
        AttemptRow {
            n: 1,
            started_at: NOW,
            request: String::new(),
            end: Some((NOW, end)),
        }
    }

    const BLIND: Target = Target {
        idempotent: false,
        can_be_asked: false,
    };
    const ASKED: Target = Target {
        can_be_asked: true,
        ..BLIND
    };
    const IDEMPOTENT: Target = Target {
        idempotent: true,
        can_be_asked: true,
    };

    #[test]
    fn what_may_have_been_executed_is_never_sent_again_without_asking_a_target_that_would_do_it_twice()
     {
        let unknown = ended(OutcomeKind::Unknown);
        for state in [State::Sending, State::Unknown, State::Dead] {
            for (target, expected) in [
                (BLIND, Turn::Person),
                (ASKED, Turn::Ask),
                (IDEMPOTENT, Turn::Send),
            ] {
                let turn = turn_of(state, None, Some(&unknown), target, NOW);
                assert_eq!(turn, expected, "{state:?} {target:?}");
            }
        }
        let mut cut = unknown;
        cut.end = None;
        assert_eq!(
            turn_of(State::Dead, None, Some(&cut), BLIND, NOW),
            Turn::Person
        );
        for target in [BLIND, ASKED] {
            let turn = turn_of(State::Reconciling, None, Some(&cut), target, NOW);
            assert_ne!(turn, Turn::Send, "{target:?}");
        }
    }

    #[test]
    fn only_what_is_ready_and_in_time_is_sent() {
        let refused = ended(OutcomeKind::Refused);
        for (state, expires_at, expected) in [
            (State::Ready, None, Turn::Send),
            (State::RetryWait, None, Turn::Send),
            (State::Dead, None, Turn::Send),
            (State::Ready, Some(NOW), Turn::Expire),
            (State::RetryWait, Some(NOW), Turn::Expire),
            (
                State::Ready,
                Some(NOW.after(std::time::Duration::from_secs(1))),
                Turn::Send,
            ),
            (State::Accepted, None, Turn::NotYet),
            (State::PendingApproval, None, Turn::NotYet),
            (State::Denied, None, Turn::Withdrawn),
            (State::Rejected, None, Turn::Withdrawn),
            (State::Expired, None, Turn::Withdrawn),
            (State::Cancelled, None, Turn::Withdrawn),
            (State::Succeeded, None, Turn::Done),
            (State::Compensating, None, Turn::Done),
            (State::Compensated, None, Turn::Done),
            (State::CompensationFailed, None, Turn::Done),
        ] {
            let turn = turn_of(state, expires_at, Some(&refused), BLIND, NOW);
            assert_eq!(turn, expected, "{state:?}");
        }
    }
}
