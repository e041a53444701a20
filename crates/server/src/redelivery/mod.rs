//! Delivery again: dead letters, shown, redriven and discarded; and which events are meant where many are.

pub mod letters;
pub mod selection;

pub use letters::{Letters, RedeliveryError};
