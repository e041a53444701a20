//! Exit codes, which scripts rely on, and the failure that carries one.

use std::process::{ExitCode, Termination};

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// What was asked for is done.
    Done = 0,
    /// A check or a promise failed.
    Failed = 1,
    /// The command line or the configuration cannot be carried out as written.
    Usage = 2,
    /// No server answered.
    Unreachable = 3,
    /// The thing that was asked for does not exist.
    NotFound = 4,
    /// The principal may not do this.
    NotAllowed = 5,
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}

/// Why a command did not do what it was asked to, in words for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What went wrong and, where there is something to do, what; lines are separated by newlines.
    pub message: String,
}

impl Failure {
    /// A failure that ends the process with `exit`.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
        }
    }

    /// The command line or configuration is at fault.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }
}
