//! Configuration: from a TOML file, the environment and flags to one validated, closed `Config`. All
//! problems are reported at once, each with its place and what was expected. Modules in suggested
//! reading order.

pub mod destination;
pub mod limits;
pub mod listen;
pub mod secret;
pub mod settings;

pub use destination::{
    DeliveryPolicy, DestinationConfig, DestinationName, OnDeadLetter, OnFailure, SinkConfig,
};
pub use limits::Limits;
pub use listen::ListenAddr;
pub use secret::Secret;
pub use settings::{
    Config, IngestConfig, LogConfig, LogFormat, NetworkConfig, ParseMode, StoreConfig, Unmatched,
};
