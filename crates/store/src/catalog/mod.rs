//! The catalogue of one data directory (`catalog.db`): who this node is, which destinations exist and
//! whether they run, who may do what, what is replayed and redriven, and what operators did.
//!
//! Small, rarely written, and synced before a change returns, so that everything may refer to it. A
//! crash leaves a change whole or absent. Modules in suggested reading order.

mod record;

mod anew;
mod audit;
mod destinations;
mod examine;
mod file;
#[cfg(test)]
mod fixed;
mod generations;
mod rebuild;
mod redrives;
mod replays;
mod tokens;

pub(crate) use anew::{Anew, renew};
pub(crate) use examine::{Catalogued, examine};
pub use file::{Catalog, CatalogError};
pub(crate) use rebuild::Rebuilt;
pub use record::{
    AuditEntry, DestinationRecord, GenerationRecord, NewToken, PrincipalRecord, RunState,
    TokenRecord,
};
pub use redrives::{AuditWords, NewRedrive, RedriveRecord};
pub use replays::{
    NewReplay, REPLAY_UNRESOLVED_MAX, REPLAYS_KEPT_MAX, REPLAYS_OPEN_MAX, ReplayCounts,
    ReplayProgress, ReplayRecord, ReplayState, SelectedSize,
};
