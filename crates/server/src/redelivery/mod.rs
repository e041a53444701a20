//! Delivery again: dead letters, shown, redriven and discarded; and which events are meant where many are.

pub mod letter_filter;
pub mod letters;
pub mod many;
pub mod selection;

pub use letter_filter::LettersMeant;
pub use letters::{Letters, RedeliveryError};
