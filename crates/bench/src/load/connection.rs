//! One keep-alive connection with at most one request under way.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::answer::{self, Answer};

/// One connection; never blocks after it was made.
pub struct Connection {
    stream: TcpStream,
    inbox: Vec<u8>,
    /// The rest of a request that the socket did not take at once.
    outbox: Vec<u8>,
    intended_at: Instant,
}

/// A complete answer.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// HTTP status.
    pub status: u16,
    /// When its request should have been sent.
    pub intended_at: Instant,
}

impl Connection {
    /// Connects, waiting for it.
    pub fn open(target: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            inbox: Vec::new(),
            outbox: Vec::new(),
            intended_at: Instant::now(),
        })
    }

    /// Sends a request that should have been sent at `intended_at`.
    pub fn send(&mut self, request: &[u8], intended_at: Instant) -> io::Result<()> {
        self.intended_at = intended_at;
        let taken = self.write(request)?;
        self.outbox
            .extend_from_slice(request.get(taken..).unwrap_or_default());
        Ok(())
    }

    /// Whether part of the request waits for room in the socket.
    pub fn wants_room(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// The socket has room again.
    pub fn flush(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.outbox);
        let taken = self.write(&rest)?;
        self.outbox = rest;
        self.outbox.drain(..taken);
        Ok(())
    }

    /// The socket has bytes: reads them through `scratch`. An answer that came in one piece, as nearly
    /// all do, is never copied.
    pub fn receive(&mut self, scratch: &mut [u8]) -> io::Result<Option<Answered>> {
        let received = match self.stream.read(scratch) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => scratch.get(..bytes).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let answer = if self.inbox.is_empty() {
            answer::read(received)
        } else {
            self.inbox.extend_from_slice(received);
            answer::read(&self.inbox)
        };
        match answer {
            Answer::Partial if self.inbox.is_empty() => {
                self.inbox.extend_from_slice(received);
                Ok(None)
            }
            Answer::Partial => Ok(None),
            // With one request under way nothing may follow its answer.
            Answer::Whole { status, bytes } if bytes == self.inbox.len().max(received.len()) => {
                self.inbox.clear();
                Ok(Some(Answered {
                    status,
                    intended_at: self.intended_at,
                }))
            }
            Answer::Whole { .. } | Answer::Foreign => Err(ErrorKind::InvalidData.into()),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a socket that does not block takes what it can"
    )]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.stream.write(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            outcome => outcome,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
