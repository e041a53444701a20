//! A command: a proposed effect on the outside world. What it is called, which states it goes through, and what
//! it may cost to be wrong about it. Modules in suggested reading order.

mod digest;
mod id;
mod risk;
mod state;

pub use digest::digest;
pub use id::{CommandId, InvalidCommandId};
pub use risk::{Reversibility, Risk};
pub use state::State;

/// The `source` of the event as which a command is handed to the outbox. Nobody else may send events of it.
pub const SOURCE: &str = "/commands";
