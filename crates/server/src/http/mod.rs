//! Serving HTTP/1.1: listeners and connections with their own time limits, the front that every
//! request passes, and problems. Modules in suggested reading order.

pub mod problem;

pub use problem::{Problem, ProblemType};
