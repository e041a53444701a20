//! A raw HTTP/1.1 client: one request a connection, exactly the bytes that the test says.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use super::PATIENCE;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Status code.
    pub(crate) status: u16,
    /// Header lines as received.
    pub(crate) head: String,
    /// Body.
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The body as JSON; null where it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// One header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Asks `authority` (`127.0.0.1:1234`).
///
/// # Errors
/// When no whole answer comes, as while a server is killed.
pub(crate) fn ask(
    authority: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut request =
        format!("{method} {path} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.extend([name, ": ", value, "\r\n"]);
    }
    request.extend(["content-length: ", &body.len().to_string(), "\r\n\r\n"]);
    stream.write_all(&[request.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(method, &answer).ok_or_else(|| std::io::Error::other("the answer was cut off"))
}

fn parse(method: &str, answer: &[u8]) -> Option<Answer> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = answer.split_at(end + 4);
    let head = String::from_utf8_lossy(head).into_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let answer = Answer {
        status,
        head,
        body: body.to_vec(),
    };
    let whole = answer
        .header("content-length")
        .and_then(|length| length.parse::<usize>().ok());
    if let Some(whole) = whole
        && method != "HEAD"
        && whole != answer.body.len()
    {
        return None;
    }
    Some(answer)
}
