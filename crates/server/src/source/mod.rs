//! Ways in that the server goes itself: it reads events where somebody else committed them. Modules in
//! suggested reading order.

pub mod outbox_table;

mod tables;

pub use tables::{SourceReport, Tables};
