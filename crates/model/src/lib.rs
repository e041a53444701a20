//! Pure values and decisions of Wayhold: events, ids, ordering keys, routes, retry verdicts, backoff
//! and breaker. Nothing here does IO, reads a clock or needs a runtime, so every rule can be tested as
//! a table. Modules are listed in suggested reading order.

pub mod endurance;
pub mod event;
pub mod id;
pub mod stored;
pub mod time;

pub mod hash;
pub mod webhook_id;

pub mod attribute;
pub mod condition;
pub mod filter;
pub mod place;
pub mod pointer;
mod predicate;
pub mod template;

pub mod approval;

pub mod key;
pub mod route;
pub mod rule;
pub mod shard_map;

pub mod admission;
pub mod backoff;
pub mod breaker;
pub mod class;
pub mod command;
pub mod error_print;
pub mod outcome;
pub mod quota;
pub mod rate;
pub mod receipt;
pub mod verdict;

pub mod ledger;

pub mod limits;

pub use class::{FailureClass, Fault};
pub use event::{AttributeValue, Event, EventParts, InvalidEvent};
pub use id::{DestinationId, DestinationSet, Generation, LaneId, Position, Sequence, ShardId};
pub use outcome::{Failure, Outcome, OutcomeKind};
pub use receipt::Receipt;
pub use stored::StoredEvent;
pub use time::{Clock, Timestamp};
