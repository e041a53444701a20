//! The servers that are compared: the same listener, runtime and answers, and behind them nothing,
//! our front alone, the classic outbox, or Wayhold. Modules in suggested reading order.

pub mod args;

pub mod bare;

pub mod crowd;
pub mod settings;

pub mod classic;
pub mod front;
pub mod keepers;

pub mod wayhold;

pub use args::{Args, main};
pub use classic::Outbox;
pub use crowd::WELL;
pub use settings::DESTINATION;
