//! Who is at the other end of a connection, as far as the connection tells.

use std::net::IpAddr;

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address; `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// Whether the listener can be reached from this machine only.
    pub local: bool,
}
