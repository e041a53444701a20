//! What the process tells about itself: counters it keeps, a report of everything at one moment, the
//! metrics page, and logs. Modules in suggested reading order.

pub mod histogram;
pub mod metrics;

pub mod accounting;
pub mod report;

pub mod exposition;

pub mod logs;
