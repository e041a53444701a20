//! The embedded durable store: events are committed to append-only segments before a receipt is given,
//! lanes read them back in order, and what became of each delivery is recorded until the segment can
//! be unlinked. Knows nothing of HTTP or sinks; SQLite types never leave this crate.
//!
//! ```text
//! <data>/LOCK  reserve  catalog.db  commands.db
//!        g1/s<n>/mark  state-<n>.db  <n>.db[-wal,-shm]  <n>.idx  (<n>.db.new while segments are compacted)
//! ```
//!
//! Modules in suggested reading order.

#[macro_use]
pub mod failpoint;

pub mod attempt_log;
pub mod backlog;
pub mod delivery;
pub mod error;
pub mod figures;
pub mod lane;
pub mod options;
pub mod scan;
pub mod sizing;
pub mod store;

mod append;
mod caretaker;
mod drain;
mod known;
mod leftovers;
mod opening;
mod queue;
pub mod reshard;
mod retire;
mod shard;
mod shards;
mod space;
mod spread;
mod window;

mod connection;
pub mod disk;
mod format;

pub mod backup;
pub mod catalog;
pub mod commands;
pub mod progress;

pub mod rescue;

#[cfg(any(test, feature = "prefill"))]
pub mod prefill;

pub use backlog::{BacklogMeter, Backlogs, Pending};
pub use catalog::{Catalog, CatalogError, DestinationRecord, RunState};
pub use commands::{Commands, CommandsError};
pub use delivery::{
    AttemptRecord, DeadLetter, Delivery, DeliveryState, EditedLetter, LaneTotals, LetterEdit,
    NewEvent, Receipt, Resolution, SetAside,
};
pub use error::{AppendError, OpenError, ReadError};
pub use figures::{Figures, Found, Health, Recovery};
pub use lane::{Lane, LaneHandle};
pub use options::Options;
pub use progress::{
    DeadLetters, EndedLetter, LetterAt, LetterError, LetterGroup, LetterPage, LetterQuery,
    LetterSelection, NotDurable,
};
pub use reshard::{GenerationFigures, GenerationState, ReshardError};
pub use retire::{PendingFate, RetireError, Retired};
pub use scan::{InvalidPlace, Scan, ScanOrder, ScanPlace, TimeRange};
pub use store::{CatalogAlone, Store};
