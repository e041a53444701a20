//! One shard. Modules in suggested reading order.

pub(crate) mod core;
pub(crate) mod writer;

pub(crate) mod row;
pub(crate) mod segment;
pub(crate) mod segment_file;

pub(crate) mod index_file;
pub(crate) mod recent;

mod found;
pub(crate) mod open;
pub(crate) mod recovery;
pub(crate) mod replaced;
pub(crate) mod resolved;
pub(crate) mod restore;

mod account;
mod compaction;
pub(crate) mod compactor;
pub(crate) mod keeper;
pub(crate) mod look_up;
pub(crate) mod mark;
mod mend;
pub(crate) mod preparer;
pub(crate) mod readers;
pub(crate) mod remover;
mod retention;
pub(crate) mod tail;
