//! The HTTP API: each module turns requests into calls of a service and its results into the shapes
//! that are contract. Modules in suggested reading order.

pub mod events;
