//! A request as an operator may see it before it is sent: what may be a credential is masked.

use bytes::Bytes;

/// What stands instead of a credential.
pub const MASK: &str = "[redacted]";

/// A request that would be sent for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The method.
    pub method: String,
    /// The URL; of one that may be a credential only the host.
    pub url: String,
    /// Names and values, as they are sent or masked. What the client adds by itself (`host`, lengths) is left out.
    pub headers: Vec<(String, String)>,
    /// The body, byte for byte.
    pub body: Bytes,
}
