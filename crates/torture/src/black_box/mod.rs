//! The shipped binary seen from outside: started, killed, cut off from power and asked over HTTP. What the
//! clients were told and what the destinations received is written down outside of the system and
//! judged once faults have stopped and everything is drained (`history`). A run that accepted or
//! delivered too little counts as invalid. Modules in suggested reading order.
//!
//! What breaks a promise is thrown where it is seen (`ending`), with what is needed to understand it; `episode`
//! turns that into a verdict, and a test fails by it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::panic,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

pub mod ending;
pub mod episode;
pub mod seed;

pub mod client;
pub mod server;

pub mod receiver;

pub mod history;
pub mod judge;

pub mod load;
pub mod operator;

pub mod native;
pub mod thin;
pub mod volume;

pub mod story;
