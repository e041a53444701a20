//! Delivery again. A redrive is the same delivery once more: dead letters, shown, redriven and discarded. A replay is a
//! new delivery of an old event, which changes nothing of its first.

pub mod edit;
pub mod feeding;
pub mod keep;
pub mod letter_filter;
pub mod letters;
pub mod many;
pub mod replays;
pub mod selection;

pub use letter_filter::LettersMeant;
pub use letters::{Letters, RedeliveryError};
pub use replays::{ReplayError, Replays};
