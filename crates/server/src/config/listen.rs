//! Where a listener binds: a TCP address or a Unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddr {
    /// An IP address and port; port 0 takes a free one.
    Tcp(SocketAddr),
    /// Path of a Unix socket, written `unix:PATH`.
    Unix(PathBuf),
}

/// A text that is no listener's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected an address such as \"127.0.0.1:8700\" or \"unix:/run/wayhold.sock\"")]
pub struct InvalidListenAddr;

impl ListenAddr {
    /// Whether only this machine can reach it. Any other listener needs tokens.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Whether the system chooses the port.
    pub fn is_any_port(&self) -> bool {
        matches!(self, Self::Tcp(address) if address.port() == 0)
    }
}

impl FromStr for ListenAddr {
    type Err = InvalidListenAddr;

    fn from_str(text: &str) -> Result<Self, InvalidListenAddr> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() && !path.contains('\0') => Ok(Self::Unix(path.into())),
            Some(_) => Err(InvalidListenAddr),
            None => text.parse().map(Self::Tcp).map_err(|_| InvalidListenAddr),
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_written_and_know_whether_they_are_local() {
        for (text, loopback) in [
            ("127.0.0.1:8700", true),
            ("127.8.8.8:0", true),
            ("[::1]:8700", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("unix:/run/wayhold.sock", true),
            ("0.0.0.0:8700", false),
            ("[::]:8700", false),
            ("10.0.0.7:8700", false),
        ] {
            let address: ListenAddr = text.parse().unwrap();
            assert_eq!(
                (address.to_string().as_str(), address.is_loopback()),
                (text, loopback)
            );
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "8700",
            "localhost:8700",
            "127.0.0.1",
            "unix:",
            "http://127.0.0.1:1",
        ] {
            assert_eq!(text.parse::<ListenAddr>(), Err(InvalidListenAddr), "{text}");
        }
    }
}
