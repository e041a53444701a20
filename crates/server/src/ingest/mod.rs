//! The one way in: bytes and headers become events, events get their ordering key and their
//! destinations, the store makes them durable, and each gets a receipt or a refusal. Knows nothing of
//! HTTP answers (`api::events`) or connections (`http`). Modules in suggested reading order.

mod accept;
mod admission;
mod rows;
mod rules;
mod stream;

mod mode;

mod binary;
mod envelope;
mod plain;

mod attribute;
mod draft;
mod json;
mod trace;

mod conflict;
mod refusal;

pub use accept::{Accept, Accepted, Keeper, LimitsNow};
pub use admission::{Admission, FullLimit, LimitReport};
pub use conflict::Difference;
pub use refusal::{Refusal, Refused};
pub use rules::Rules;

pub(crate) use attribute::Value;
pub(crate) use draft::{Draft, push_json_string};
pub(crate) use mode::{Mode, of as mode_of};
pub(crate) use rows::{RowDraft, RowResult};

#[cfg(test)]
mod round_trip;
