//! A proxy on loopback that takes a destination away, as far as whoever sends can tell: it cuts, stalls,
//! drips, delays, corrupts, and loses answers whose requests had arrived. The fault is changed while
//! connections are open. Drills and tests put it before a receiver that is well. Modules in suggested
//! reading order.

pub mod fault;

pub mod exchange;

pub mod proxy;

pub use exchange::Protocol;
pub use fault::Fault;
pub use proxy::{Counts, FaultProxy};
