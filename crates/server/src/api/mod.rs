//! The HTTP API: one file per noun, each with its routes and the forms of its bodies. Handlers ask the
//! services and put their answers into words; they decide nothing. Modules in suggested reading order.

pub mod router;

pub mod body;
pub mod caller;
pub mod list;

pub mod event_list;
pub mod events;
pub mod lookup;

pub mod approvals;
pub mod attempts;
pub mod audit;
pub mod backups;
pub mod command_edits;
pub mod commands;
pub mod config;
pub mod dead_letters;
pub mod destinations;
pub mod evidence;
pub mod explain;
pub mod halts;
pub mod health;
pub mod ledger;
pub mod replays;
pub mod shards;
pub mod sources;
pub mod status;
pub mod tokens;
pub mod trial;
