//! What commands ask of the outside world, and the ledger that proves what became of it. Modules in suggested reading
//! order.

pub mod approvals;
pub mod gate;
pub mod halt;

pub mod announce;
pub mod rulebook;
pub mod simulate;
pub mod timer;

pub mod ledger;
pub mod ledger_key;

pub mod anchors;
pub mod checkpoints;

pub mod export;
pub mod verify;
