//! Approvals: what a command needs before it may leave, and the proof that it had it. Policies look at the facts of a
//! command and say what they require; a request collects the decisions of people; a [`Release`] is the only thing
//! that makes a command ready, and only this module makes one.
//!
//! Everything here is a pure function of what is handed in. Modules are listed in suggested reading order.

pub mod amount;
pub mod facts;

pub mod quorum;
pub mod requirement;

pub mod limit;
pub mod policy;
pub mod question;

pub mod record;
pub mod request;

#[cfg(test)]
mod histories;

pub use amount::Amount;
pub use facts::{DESTINATION_DIGEST, Facts};
pub use limit::{Beyond, Limit, Per, Used};
pub use policy::{Fault, Policies, Policy, Verdict};
pub use question::Question;
pub use quorum::{OnExpiry, Quorum, Seat};
pub use record::Record;
pub use request::{
    Approver, Binding, Elapsed, Grant, Opened, Progress, Refusal, Release, Request, State, Void,
};
pub use requirement::Requirement;

pub use crate::command::{Reversibility, Risk};

use std::fmt;

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Of 64 hexadecimal digits, as everything prints it; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = data_encoding::HEXLOWER_PERMISSIVE
            .decode(text.as_bytes())
            .ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// Of a JSON value in its canonical form.
    pub fn of_json(value: &serde_json::Value) -> Self {
        let canonical = crate::ledger::canonical::to_vec(value);
        // What has no canonical form, a number with a fraction, stands as it is written.
        Self::of(&canonical.unwrap_or_else(|_| value.to_string().into_bytes()))
    }

    /// Of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
