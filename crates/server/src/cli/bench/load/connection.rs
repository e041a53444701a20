//! One keep-alive connection with at most one request under way, and just enough HTTP/1.1 to know when
//! its answer is complete.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes read at once: the answer to a hundred events has about ten kibibytes.
const READ_BYTES: usize = 32 * 1024;

/// Most bytes of one answer: ours list at most as many receipts as a request has events.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// A connection to the server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    inbox: Vec<u8>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// When the server does not take it.
    pub async fn open(target: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            inbox: Vec::with_capacity(READ_BYTES),
        })
    }

    /// Sends a request, waits for the whole answer, and gives its status.
    ///
    /// # Errors
    /// When the connection breaks, or what comes is not HTTP/1.1 with a stated length.
    pub async fn ask(&mut self, request: &[u8]) -> Result<u16> {
        self.stream.write_all(request).await?;
        self.inbox.clear();
        loop {
            if self.stream.read_buf(&mut self.inbox).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            match read(&self.inbox) {
                Answer::Whole { status } => return Ok(status),
                Answer::Partial if self.inbox.len() < ANSWER_BYTES_MAX => {
                    self.inbox.reserve(READ_BYTES);
                }
                Answer::Partial | Answer::Foreign => {
                    return Err(Error::new(ErrorKind::InvalidData, "not an answer of ours"));
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// More has to come.
    Partial,
    /// All of it, and nothing more: with one request under way nothing may follow.
    Whole { status: u16 },
    /// Not HTTP/1.1 with a stated length.
    Foreign,
}

fn read(inbox: &[u8]) -> Answer {
    let Some(head_bytes) = memchr::memmem::find(inbox, b"\r\n\r\n") else {
        return Answer::Partial;
    };
    let (head, body) = inbox.split_at(head_bytes + 4);
    match status(head).zip(content_length(head)) {
        Some((status, length)) if body.len() == length => Answer::Whole { status },
        Some((_, length)) if body.len() < length => Answer::Partial,
        Some(_) | None => Answer::Foreign,
    }
}

fn status(head: &[u8]) -> Option<u16> {
    let text = head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let value = head.split(|&byte| byte == b'\n').find_map(|line| {
        let (name, value) = line.split_at_checked(NAME.len())?;
        name.eq_ignore_ascii_case(NAME).then_some(value)
    })?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_with_its_last_byte_and_not_before() {
        let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 3\r\ndate: x\r\n\r\nabc";
        for end in 0..answer.len() {
            assert_eq!(read(&answer[..end]), Answer::Partial, "{end}");
        }
        assert_eq!(read(answer), Answer::Whole { status: 202 });
        assert_eq!(read(&[answer, &b"d"[..]].concat()), Answer::Foreign);
        assert_eq!(read(b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n"), Answer::Foreign);
        assert_eq!(read(b"SSH-2.0\r\n\r\n"), Answer::Foreign);
    }
}
