//! Where connections come from: a TCP port or a Unix socket, behind one face.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::auth::Peer;
use crate::config::ListenAddr;

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    local: bool,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Binds an address. A socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// What the system says; the address is taken, or may not be used.
    pub async fn bind(address: &ListenAddr) -> io::Result<Self> {
        let socket = match address {
            ListenAddr::Tcp(address) => Socket::Tcp(TcpListener::bind(address).await?),
            ListenAddr::Unix(path) => {
                remove_abandoned(path).await?;
                Socket::Unix(UnixListener::bind(path)?, path.clone())
            }
        };
        Ok(Self {
            socket,
            local: address.is_loopback(),
        })
    }

    /// Where it listens, with the port that was given to it.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<ListenAddr> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().map(ListenAddr::Tcp),
            Socket::Unix(_, path) => Ok(ListenAddr::Unix(path.clone())),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, address): (TcpStream, SocketAddr) = listener.accept().await?;
                // Answers are small and written whole; waiting for more to send only delays them.
                stream.set_nodelay(true)?;
                let address = Some(address.ip().to_canonical());
                Ok((
                    Stream::Tcp(stream),
                    Peer {
                        address,
                        local: self.local,
                    },
                ))
            }
            Socket::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((
                    Stream::Unix(stream),
                    Peer {
                        address: None,
                        local: self.local,
                    },
                ))
            }
        }
    }
}

/// A socket file outlives a process that was killed, and would refuse the next one.
async fn remove_abandoned(path: &Path) -> io::Result<()> {
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        // In use: binding says so. Absent: nothing to do.
        _ => Ok(()),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(path = %path.display(), %error, "socket file not removed");
        }
    }
}

/// A connection's bytes.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }
}
