//! Serving HTTP/1.1: listeners and connections with their own time limits, the front that every
//! request passes, and problems. Modules in suggested reading order.

mod server;

mod connection;
mod limits;
mod listener;
mod watchdog;

mod front;

mod body;
mod pages;
pub mod problem;

pub use front::{Answer, Events, Front};
pub use limits::SharedLimits;
pub use listener::Listener;
pub use pages::{routes as pages, unserved};
pub use problem::{Problem, ProblemType};
pub use server::Server;

pub(crate) use body::RequestBody;
pub(crate) use front::Client;
