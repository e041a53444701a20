//! Both ends of a webhook: a receiver that notes when it is asked, and the bare client that Wayhold's
//! deliveries are held against. Modules in suggested reading order.

pub mod arrivals;
pub mod hostile;
pub mod post;
pub mod receiver;
