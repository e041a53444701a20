//! The ledger within `commands.db`: records beside the rows that they speak of, so that a change of state and its record
//! are one transaction; the tree over them; payloads, which lie outside the tree and can be erased; keys and
//! checkpoints; and what is removed once it is older than the retention. Modules in suggested reading order.

mod records;
mod tree;

mod followed;
mod keys;
mod payloads;
mod retention;

mod file;
mod soundness;

pub use file::LedgerFile;
pub use keys::KeyOfLedger;
pub use payloads::{Erasing, Payload, random_salt};
pub use records::RecordRow;
pub use retention::Retained;
pub(super) use soundness::unsound;
pub(super) use tree::restore;

pub(super) const SCHEMAS: [&str; 6] = [
    records::SCHEMA,
    tree::SCHEMA,
    keys::SCHEMA,
    payloads::SCHEMA,
    retention::SCHEMA,
    followed::SCHEMA,
];

#[cfg(test)]
mod tests;
