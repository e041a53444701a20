//! Delivery again: dead letters, shown, redriven and discarded.

pub mod letters;

pub use letters::{Letters, RedeliveryError};
