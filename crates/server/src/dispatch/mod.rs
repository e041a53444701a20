//! Delivery: one lane per destination takes what the store holds for it to its sink, in order per key.
//! Lanes share no queue and no lock, so a bad destination delays no other. A replay is a lane of its own. Modules in suggested reading
//! order.

pub mod dispatcher;
mod expiry;
mod follow;
pub mod replay;
pub mod snapshot;

mod attempt;
mod lane;
mod on_record;
mod order;
mod pace;
mod steady;

pub use dispatcher::{DispatchError, Dispatcher, Service, Surroundings, Target};
pub use follow::Reconfiguration;
pub use snapshot::{BlockedKey, LaneSnapshot, LaneState, LastError};
