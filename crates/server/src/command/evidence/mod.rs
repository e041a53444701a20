//! One page about a command: what was asked, why, who allowed it, what was sent, what came back. Made of the ledger's records and
//! their payloads alone, so that it says nothing that cannot be proven; forms for people and programs in suggested reading order.

mod collect;
mod html;
mod text;

pub use collect::{Entry, Evidence, Field, Section, collect};
pub use html::html;
pub use text::text;

#[cfg(test)]
mod tests;
