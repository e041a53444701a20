//! What is wrong, and what follows from it for the next bytes. Decisions only.

use std::num::NonZeroU64;
use std::time::Duration;

/// What is wrong between a sender and its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: all passes as it is.
    None,
    /// Connections are reset, new ones as soon as they come.
    Cut,
    /// Connections stay open and are made, and nothing passes either way.
    Stall,
    /// One byte passes at a time, after this wait.
    Drip(Duration),
    /// Whatever was read at once passes after this wait.
    Delay(Duration),
    /// In whatever is read at once of an answer the first byte is another. Requests stay as they are: over
    /// plain TCP a receiver has nothing to notice it by.
    Corrupt,
    /// The destination gets the whole request and answers; of so many answers the last one is lost, since
    /// the connection is reset before its first byte.
    LoseAnswers {
        /// 1 loses every answer.
        one_in: NonZeroU64,
    },
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward {
    /// Requests.
    Destination,
    /// Answers.
    Sender,
}

/// What happens to bytes that wait to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until the fault is another one.
    Hold,
    /// The first of them pass.
    Pass {
        /// How many.
        bytes: usize,
        /// How long they wait before.
        after: Duration,
        /// Whether the first is made another.
        altered: bool,
    },
}

impl Fault {
    /// What happens to `waiting` bytes, of which there is at least one.
    pub fn step(self, toward: Toward, waiting: usize) -> Step {
        let pass = |bytes, after, altered| Step::Pass {
            bytes,
            after,
            altered,
        };
        match self {
            // A connection that is cut is gone before this matters.
            Self::Stall | Self::Cut => Step::Hold,
            Self::Drip(every) => pass(1, every, false),
            Self::Delay(wait) => pass(waiting, wait, false),
            Self::Corrupt => pass(waiting, Duration::ZERO, toward == Toward::Sender),
            Self::None | Self::LoseAnswers { .. } => pass(waiting, Duration::ZERO, false),
        }
    }

    /// Whether the answer of this number, counted from 1 over all connections, is lost.
    pub fn loses(self, answer: u64) -> bool {
        match self {
            Self::LoseAnswers { one_in } => answer.is_multiple_of(one_in.get()),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_does_what_its_name_says() {
        let wait = Duration::from_millis(5);
        let lose = Fault::LoseAnswers {
            one_in: NonZeroU64::MIN,
        };
        let pass = |bytes, after, altered| Step::Pass {
            bytes,
            after,
            altered,
        };
        let all = pass(9, Duration::ZERO, false);
        for (fault, request, answer) in [
            (Fault::None, all, all),
            (Fault::Cut, Step::Hold, Step::Hold),
            (Fault::Stall, Step::Hold, Step::Hold),
            (
                Fault::Drip(wait),
                pass(1, wait, false),
                pass(1, wait, false),
            ),
            (
                Fault::Delay(wait),
                pass(9, wait, false),
                pass(9, wait, false),
            ),
            (Fault::Corrupt, all, pass(9, Duration::ZERO, true)),
            (lose, all, all),
        ] {
            assert_eq!(fault.step(Toward::Destination, 9), request, "{fault:?}");
            assert_eq!(fault.step(Toward::Sender, 9), answer, "{fault:?}");
        }
    }

    #[test]
    fn of_so_many_answers_one_is_lost() {
        let lost = |fault: Fault| (1..=12).filter(|n| fault.loses(*n)).collect::<Vec<_>>();
        let one_in = |n| Fault::LoseAnswers {
            one_in: NonZeroU64::new(n).unwrap(),
        };
        assert_eq!(lost(one_in(5)), [5, 10]);
        assert_eq!(lost(one_in(1)).len(), 12);
        assert_eq!(lost(Fault::None), [0; 0]);
    }
}
