//! The states of a command and the only ways between them.
//!
//! ```text
//! accepted -> denied
//!          -> pending_approval -> rejected | expired | cancelled
//!          -> ready -> sending -> succeeded
//!                              -> retry_wait -> sending
//!                              -> unknown -> reconciling -> succeeded | retry_wait | dead
//!                              -> dead
//!             succeeded | dead -> compensating -> compensated | compensation_failed
//! ```
//!
//! `unknown` is a state of its own and never folded into a failure: bytes left, and no trustworthy answer came.

/// Where a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Durable, and not judged yet.
    Accepted,
    /// A policy forbids it.
    Denied,
    /// Somebody has to say yes.
    PendingApproval,
    /// Somebody said no.
    Rejected,
    /// Its time passed before it was sent.
    Expired,
    /// Taken back before it was sent.
    Cancelled,
    /// It may be sent, once what it depends on has succeeded and its undo window is over.
    Ready,
    /// An attempt is recorded and has not ended.
    Sending,
    /// The target confirmed it.
    Succeeded,
    /// The last attempt did certainly nothing; another follows.
    RetryWait,
    /// The last attempt may or may not have been executed.
    Unknown,
    /// The target is asked whether it was.
    Reconciling,
    /// Given up; a person decides what becomes of it.
    Dead,
    /// Another command is making up for it.
    Compensating,
    /// Another command made up for it.
    Compensated,
    /// The command that should have made up for it was given up or not allowed.
    CompensationFailed,
}

impl State {
    /// Every one, in the order of a command's life.
    pub const ALL: [Self; 16] = [
        Self::Accepted,
        Self::Denied,
        Self::PendingApproval,
        Self::Rejected,
        Self::Expired,
        Self::Cancelled,
        Self::Ready,
        Self::Sending,
        Self::Succeeded,
        Self::RetryWait,
        Self::Unknown,
        Self::Reconciling,
        Self::Dead,
        Self::Compensating,
        Self::Compensated,
        Self::CompensationFailed,
    ];

    /// Its name in JSON, records and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Denied => "denied",
            Self::PendingApproval => "pending_approval",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Ready => "ready",
            Self::Sending => "sending",
            Self::Succeeded => "succeeded",
            Self::RetryWait => "retry_wait",
            Self::Unknown => "unknown",
            Self::Reconciling => "reconciling",
            Self::Dead => "dead",
            Self::Compensating => "compensating",
            Self::Compensated => "compensated",
            Self::CompensationFailed => "compensation_failed",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Whether a command may go from here to there.
    pub fn may_become(self, next: Self) -> bool {
        use State::{
            Accepted, Cancelled, Compensated, Compensating, CompensationFailed, Dead, Denied,
            Expired, PendingApproval, Ready, Reconciling, Rejected, RetryWait, Sending, Succeeded,
            Unknown,
        };
        match self {
            Accepted => matches!(next, Denied | PendingApproval | Ready | Expired | Cancelled),
            PendingApproval => {
                matches!(next, Ready | Denied | Rejected | Expired | Cancelled)
            }
            // Back to pending where the facts changed before it left; dead where what it depends on never came.
            Ready => matches!(next, Sending | PendingApproval | Expired | Cancelled | Dead),
            Sending => matches!(next, Succeeded | RetryWait | Unknown | Dead),
            RetryWait => matches!(next, Sending | Expired | Cancelled | Dead),
            Unknown => matches!(next, Reconciling | Sending | Dead),
            Reconciling => matches!(next, Succeeded | RetryWait | Unknown | Dead),
            // A person has it sent again, found that it was done after all, or has it made up for.
            Dead => matches!(next, RetryWait | Succeeded | Reconciling | Compensating),
            Succeeded => matches!(next, Compensating),
            Compensating => matches!(next, Compensated | CompensationFailed),
            CompensationFailed => matches!(next, Compensating),
            Denied | Rejected | Expired | Cancelled | Compensated => false,
        }
    }

    /// Whether nothing more happens to it unless somebody asks for it.
    pub fn is_ended(self) -> bool {
        matches!(
            self,
            Self::Denied
                | Self::Rejected
                | Self::Expired
                | Self::Cancelled
                | Self::Succeeded
                | Self::Dead
                | Self::Compensated
                | Self::CompensationFailed
        )
    }

    /// Whether certainly nothing of it was done, and nothing will be.
    pub fn is_never_done(self) -> bool {
        matches!(
            self,
            Self::Denied | Self::Rejected | Self::Expired | Self::Cancelled
        )
    }

    /// Whether it can be taken back: certainly nothing of it has happened, and nothing is on its way.
    pub fn is_cancellable(self) -> bool {
        self.may_become(Self::Cancelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_contract_and_tell_states_apart() {
        for state in State::ALL {
            assert_eq!(State::named(state.name()), Some(state));
        }
        assert_eq!(State::named("Accepted"), None);
        assert_eq!(
            State::ALL.map(State::name).join(" "),
            "accepted denied pending_approval rejected expired cancelled \
            ready sending succeeded retry_wait unknown reconciling dead compensating compensated compensation_failed"
        );
    }

    #[test]
    fn every_state_is_reached_from_accepted_and_every_open_one_ends() {
        let mut reached = vec![State::Accepted];
        let mut next = 0;
        while let Some(from) = reached.get(next).copied() {
            let more = State::ALL.into_iter().filter(|to| from.may_become(*to));
            let more: Vec<_> = more.filter(|to| !reached.contains(to)).collect();
            reached.extend(more);
            next += 1;
        }
        assert_eq!(reached.len(), State::ALL.len());
        for state in State::ALL {
            let goes_on = State::ALL.into_iter().any(|to| state.may_become(to));
            assert!(state.is_ended() || goes_on, "{state:?} is stuck");
            assert!(!state.may_become(state), "{state:?}");
        }
    }

    #[test]
    fn nothing_that_may_have_been_executed_is_cancelled_expired_or_forgotten() {
        for state in [
            State::Sending,
            State::Unknown,
            State::Reconciling,
            State::Succeeded,
        ] {
            for end in [
                State::Cancelled,
                State::Expired,
                State::Rejected,
                State::Denied,
            ] {
                assert!(!state.may_become(end), "{state:?} -> {end:?}");
            }
        }
        // An unknown outcome is told apart from a failure for good.
        assert!(
            !State::RetryWait.may_become(State::Unknown)
                && !State::Unknown.may_become(State::RetryWait)
        );
    }
}
