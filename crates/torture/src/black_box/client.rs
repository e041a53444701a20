//! A client with no more than these tests need: one connection, blocking, and no doubt about how far a
//! request got.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for an answer; far above what any test needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer as it came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The last segment of the problem's type.
    pub fn problem(&self) -> String {
        let json = self.json();
        let kind = json["type"].as_str().unwrap_or_default();
        kind.rsplit('/').next().unwrap_or_default().to_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

/// How a request ended that got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Nobody listens: certainly nothing happened.
    NotSent,
    /// Bytes were sent; anything may have happened.
    Unknown,
}

/// One connection, made again when it broke.
pub struct Client {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            stream: None,
        }
    }

    pub fn get(&mut self, target: &str) -> Result<Answer, Silence> {
        self.request("GET", target, "", b"")
    }

    /// The same with these headers, each line ending with CRLF.
    pub fn get_as(&mut self, target: &str, headers: &str) -> Result<Answer, Silence> {
        self.request("GET", target, headers, b"")
    }

    /// `POST` with these headers, each line ending with CRLF.
    pub fn post(&mut self, target: &str, headers: &str, body: &[u8]) -> Result<Answer, Silence> {
        self.request("POST", target, headers, body)
    }

    pub fn put(&mut self, target: &str, body: &[u8]) -> Result<Answer, Silence> {
        let headers = "Content-Type: application/json\r\n";
        self.request("PUT", target, headers, body)
    }

    /// Sends a request and leaves before the answer.
    pub fn post_and_leave(&mut self, target: &str, headers: &str, body: &[u8]) {
        if self.connect().is_ok()
            && let Some(mut stream) = self.stream.take()
        {
            drop(stream.write_all(&message("POST", target, headers, body)));
        }
    }

    fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &str,
        body: &[u8],
    ) -> Result<Answer, Silence> {
        self.connect()?;
        let mut stream = self.stream.take().expect("connected a line above");
        let exchange = || {
            stream.write_all(&message(method, target, headers, body))?;
            read_answer(&mut stream)
        };
        let answer = { exchange }().map_err(|_broken| Silence::Unknown)?;
        if answer.header("connection") != Some("close") {
            self.stream = Some(stream);
        }
        Ok(answer)
    }

    fn connect(&mut self) -> Result<(), Silence> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.address).map_err(|_refused| Silence::NotSent)?;
            stream
                .set_read_timeout(Some(PATIENCE))
                .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
                .and_then(|()| stream.set_nodelay(true))
                .map_err(|_gone| Silence::NotSent)?;
            self.stream = Some(stream);
        }
        Ok(())
    }
}

fn message(method: &str, target: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Value of a header in a head.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Head and body of the next message; an error where it is cut off.
pub fn read_message(stream: &mut TcpStream) -> std::io::Result<(String, Vec<u8>)> {
    let cut_off = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    let mut fill = |bytes: &mut Vec<u8>| {
        let count = stream.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        if count == 0 { Err(cut_off()) } else { Ok(()) }
    };
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        fill(&mut bytes)?;
    };
    let mut body = bytes.split_off(end + 4);
    let head = String::from_utf8(bytes).map_err(|_binary| cut_off())?;
    let length = header(&head, "content-length").map_or(Ok(0), str::parse);
    let length: usize = length.map_err(|_strange| cut_off())?;
    while body.len() < length {
        fill(&mut body)?;
    }
    Ok((head, body))
}

fn read_answer(stream: &mut TcpStream) -> std::io::Result<Answer> {
    let (head, body) = read_message(stream)?;
    let status = head.get(9..12).and_then(|status| status.parse().ok());
    Ok(Answer {
        status: status.ok_or(std::io::ErrorKind::InvalidData)?,
        head,
        body,
    })
}
