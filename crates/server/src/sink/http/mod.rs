//! HTTP API destination, `kind = "http"`: an event becomes a request in the shape that a system's own
//! API asks for. What is sent is decided here; how it is sent, and what an answer means, is shared with
//! webhooks (`sink/webhook`).

pub mod config;

mod body;
mod json;
mod request;
mod scan;
mod success;
mod text;
mod url;
mod values;

#[cfg(test)]
pub(crate) mod real;
#[cfg(test)]
pub(crate) mod receiver;
