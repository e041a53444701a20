//! What the process tells about itself: metrics and logs. Modules in suggested reading order.

pub mod histogram;
pub mod metrics;

pub mod accounting;

pub mod logs;
