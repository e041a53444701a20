//! What became of the deliveries of one shard: which are resolved, which wait for another attempt, which
//! were given up. Owner of `state-<n>.db`.
//!
//! Memory is ahead and the file follows: every change is made in memory under one short lock, and one
//! thread writes what changed in one synced transaction, every 25 ms, every 4,096 settlements, or when
//! somebody waits. Each transaction is one consistent moment of memory, so the accounting holds after
//! any crash; what a crash takes away is repeated, never lost. A file whose write failed is never written
//! again: a new one is made from memory. Modules in suggested reading order.

mod chunk;
mod letter;
mod memory;

mod attempts;
mod batch_rows;
mod carry;
mod checks;
mod file;
mod recovery;
mod writer;

mod dead_letters;
mod durability;
mod examine;
mod handle;
mod letter_actions;
mod letter_edits;
mod letter_queries;
mod letter_rows;

pub use dead_letters::{
    DeadLetters, LetterAt, LetterError, LetterGroup, LetterPage, LetterQuery, LetterSelection,
};
pub(crate) use dead_letters::{EventSource, ProgressSource};
pub use durability::NotDurable;
pub(crate) use examine::Examined;
pub(crate) use handle::{Opened, Progress, ProgressOptions};
pub(crate) use letter::LetterNumbers;
pub use letter_actions::EndedLetter;
pub(crate) use memory::{Compaction, LaneView, LeftOut, ResolvedSegment, Source, Stretch, Totals};

#[cfg(test)]
mod tests;
