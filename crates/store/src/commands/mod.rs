//! Commands, approvals and their ledger (`commands.db`): one file, one thread that writes it, and one transaction
//! for a change of state and the record of it.
//!
//! The file is made when the first command needs it; a store that never had one has no such file. Changes that
//! wait while one group is synced make up the next group. One that is refused leaves nothing behind and takes nobody with
//! it: it runs in a savepoint of its own, or refuses before it writes. All are answered after the sync. Modules in suggested
//! reading order.

mod change;
mod error;
mod fresh;
mod handle;

mod approvals;
mod attempts;
mod bounds;
mod counts;
mod edits;
mod keys;
mod rows;

mod ledger;

mod file;
mod readers;
mod writer;

mod examine;

pub use approvals::{RequestRow, VerdictRow};
pub use attempts::{AttemptEnd, AttemptRow, AttemptStart};
pub use bounds::{Halt, Slot};
pub use change::{Change, View};
pub use counts::Counts;
pub use edits::{EditRow, Edited};
pub use error::CommandsError;
pub(crate) use examine::{Examined, examine};
pub(crate) use file::{FILE, MoveAfter, exists};
pub use fresh::Fresh;
pub use handle::Commands;
pub(crate) use handle::CommandsOptions;
pub use keys::KeyRow;
pub use ledger::{Erasing, KeyOfLedger, LedgerFile, Payload, RecordRow, Retained, random_salt};
pub use rows::{Command, CommandFilter, NewCommand, Transition};

#[cfg(test)]
mod tests;
