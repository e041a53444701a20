//! Configuration: from a TOML file, the environment and flags to one validated, closed `Config`. All
//! problems are reported at once, each with its place and what was expected. Modules in suggested
//! reading order.

mod problem;

pub mod environment;
mod failures;
mod tree;

pub mod quantity;
mod section;
mod setting;

pub mod approving;
pub mod commands;
pub mod destination;
pub mod ledger;
pub mod limits;
pub mod listen;
pub(crate) mod rules;
pub mod secret;
pub mod settings;
pub mod source;

pub mod difference;
pub mod example;
pub mod load;

#[cfg(test)]
mod tests;

pub use approving::ApprovingConfig;
pub(crate) use approving::policies_of;
pub use commands::CommandKind;
pub use destination::{
    DeliveryPolicy, DestinationConfig, DestinationName, OnDeadLetter, OnFailure, Recorded,
    SinkConfig,
};
pub use difference::{Change, Effect, changes};
pub use environment::Environment;
pub use ledger::{AnchorConfig, AnchorPlace, LedgerConfig, S3Place};
pub use limits::Limits;
pub use listen::ListenAddr;
pub use load::{ConfigPlace, Loaded, Overrides, load};
pub use problem::{Origin, Problem, Problems};
pub(crate) use quantity::show_duration;
pub use secret::Secret;
pub use section::ShownValue;
pub(crate) use section::{Section, TextOrSecret};
pub(crate) use setting::{Choice, Faults, Setting, text_of};
pub use settings::{
    Config, IngestConfig, LogConfig, LogFormat, NetworkConfig, ParseMode, Route, Unmatched,
};
pub use source::outbox_table::{Database, Mode};
pub use source::{OutboxTableConfig, SourceConfig, Sources};
pub(crate) use tree::Node;
