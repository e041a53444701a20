//! One shard. Modules in suggested reading order.

pub(crate) mod row;
pub(crate) mod segment;

pub(crate) mod index_file;
pub(crate) mod recent;

pub(crate) mod mark;
pub(crate) mod tail;
