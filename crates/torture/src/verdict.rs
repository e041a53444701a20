//! How a run ended.

use std::process::ExitCode;

/// What a run says of the promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All that was tried held.
    Held,
    /// A promise broke; the sentence names it and ends with the line that runs it again.
    Broken(String),
    /// Nothing can be said: what is needed is not there, or too little of it happened.
    Invalid(String),
}

impl Verdict {
    /// 0, 1 and 2 in the order above.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Held => ExitCode::SUCCESS,
            Self::Broken(_) => ExitCode::from(1),
            Self::Invalid(_) => ExitCode::from(2),
        }
    }
}
