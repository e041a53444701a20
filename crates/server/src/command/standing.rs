//! How the ledger stands at one moment, for status, health and metrics. In memory but for the file's size, so that asking
//! waits for nobody.

use std::sync::{Mutex, PoisonError};

use wayhold_model::Timestamp;

/// The newest checkpoint that was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signed {
    /// Records that it covers.
    pub size: u64,
    /// When it was signed.
    pub at: Timestamp,
}

/// How the ledger stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Records that were ever written.
    pub records: u64,
    /// Bytes on disk of commands, ledger and payloads together.
    pub bytes: u64,
    /// The newest checkpoint.
    pub signed: Option<Signed>,
}

/// What came of signing, since the start.
#[derive(Debug, Default)]
pub(super) struct Signing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    newest: Option<Signed>,
    failure: Option<String>,
}

impl Signing {
    /// A checkpoint is the newest.
    pub(super) fn signed(&self, signed: Signed) {
        self.with(|state| {
            state.newest = Some(signed);
            state.failure = None;
        });
    }

    /// One could not be signed or kept.
    pub(super) fn failed(&self, why: String) {
        self.with(|state| state.failure = Some(why));
    }

    pub(super) fn newest(&self) -> Option<Signed> {
        self.with(|state| state.newest)
    }

    /// Why the last try failed; `None` once one succeeded.
    pub(super) fn failure(&self) -> Option<String> {
        self.with(|state| state.failure.clone())
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
