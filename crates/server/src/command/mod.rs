//! Commands: durable outward acts, from proposal to outcome. What is proposed is judged and kept in one change; what is
//! ready is handed to the outbox as an event of its own; no attempt leaves before it is on record, and its outcome is
//! on record before its delivery is settled. Modules in suggested reading order.

mod arguments;
pub mod kinds;
pub mod proposal;
pub mod records;

pub mod desk;
pub mod keys;
pub mod propose;

pub mod emit;
pub mod resolve;

mod answer;
pub mod leave;
pub mod outcome;
mod sendable;
pub mod track;

pub mod assign;
pub mod cancel;
pub mod care;
pub mod reconcile;
pub mod schedule;
pub mod undo;

pub mod approvals;
pub mod counted;
pub mod gate;
pub mod halt;

pub mod edit;
pub mod rules;

pub mod announce;
pub mod rulebook;
pub mod simulate;
pub mod timer;

pub mod ledger;
pub mod ledger_key;

pub mod anchors;
pub mod checkpoints;
pub mod destinations;
pub mod standing;

pub mod evidence;

pub mod export;
pub mod verify;

pub use desk::{CommandDesk, CommandError};
pub use kinds::{Kind, Kinds};
