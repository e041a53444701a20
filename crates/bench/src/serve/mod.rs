//! The servers that are compared: the same listener, runtime and answers, and behind them nothing,
//! our front alone, the classic outbox, or Wayhold. Modules in suggested reading order.

pub mod args;

pub mod bare;
pub mod classic;
pub mod keepers;

pub use args::{Args, DESTINATION, main};
pub use classic::Outbox;
