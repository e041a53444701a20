//! What the run asks of a Wayhold server besides sending it events.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::BenchError;

/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a count is looked at.
const POLL: Duration = Duration::from_millis(10);
/// Longest time for a backlog to drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Lets a paused destination deliver.
pub fn resume(server: SocketAddr, destination: &str) -> Result<(), BenchError> {
    act(server, destination, "resume")
}

/// Stops delivering to a destination; what is under way comes back.
pub fn pause(server: SocketAddr, destination: &str) -> Result<(), BenchError> {
    act(server, destination, "pause")
}

fn act(server: SocketAddr, destination: &str, action: &str) -> Result<(), BenchError> {
    let path = format!("/v1/destinations/{destination}/{action}");
    ask(server, "POST", &path).map(drop)
}

/// Has one event accepted.
pub fn send_first(server: SocketAddr) -> Result<(), BenchError> {
    let event = "{\"specversion\":\"1.0\",\"id\":\"first\",\"source\":\"/bench/first\",\
                 \"type\":\"com.example.started\"}";
    send(server, event).map(drop)
}

/// Has one event accepted, given as a JSON envelope; the receipts.
pub fn send(server: SocketAddr, event: &str) -> Result<String, BenchError> {
    exchange(
        server,
        &format!(
            "POST /v1/events HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\
             content-type: application/cloudevents+json\r\ncontent-length: {}\r\n\r\n{event}",
            event.len()
        ),
    )
}

/// How much was pending at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// When the server was asked.
    pub at: Instant,
    /// Deliveries that waited then.
    pub pending: u64,
}

impl Moment {
    /// Deliveries per second from this moment to a later one at which less was pending.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn rate_to(self, later: Self) -> f64 {
        let delivered = self.pending.saturating_sub(later.pending);
        delivered as f64 / later.at.duration_since(self.at).as_secs_f64()
    }
}

/// Waits until at most so much is pending.
pub fn pending_at_most(
    server: SocketAddr,
    destination: &str,
    most: u64,
) -> Result<Moment, BenchError> {
    let started = Instant::now();
    loop {
        let at = Instant::now();
        let pending = pending(server, destination)?;
        if pending <= most {
            return Ok(Moment { at, pending });
        }
        if started.elapsed() > DRAIN_TIMEOUT {
            return Err(format!("{destination} did not drain within {DRAIN_TIMEOUT:?}").into());
        }
        std::thread::sleep(POLL);
    }
}

/// Waits until nothing is pending for a destination; tells how long that took.
pub fn drained(server: SocketAddr, destination: &str) -> Result<Duration, BenchError> {
    let started = Instant::now();
    pending_at_most(server, destination, 0)?;
    Ok(started.elapsed())
}

/// Deliveries that a destination has pending.
pub fn pending(server: SocketAddr, destination: &str) -> Result<u64, BenchError> {
    let metrics = metrics(server)?;
    let name = format!("wayhold_pending_deliveries{{destination=\"{destination}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
    Ok(value
        .ok_or("no wayhold_pending_deliveries in /metrics")?
        .trim()
        .parse()?)
}

/// What the server counts, as text.
pub fn metrics(server: SocketAddr) -> Result<String, BenchError> {
    ask(server, "GET", "/metrics")
}

/// Asks any server for something.
pub fn get(server: SocketAddr, path: &str) -> Result<String, BenchError> {
    ask(server, "GET", path)
}

/// Waits until something holds.
pub fn eventually(
    what: &str,
    mut holds: impl FnMut() -> Result<bool, BenchError>,
) -> Result<(), BenchError> {
    let started = Instant::now();
    while !holds()? {
        if started.elapsed() > DRAIN_TIMEOUT {
            return Err(format!("not within {DRAIN_TIMEOUT:?}: {what}").into());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

fn ask(server: SocketAddr, method: &str, path: &str) -> Result<String, BenchError> {
    exchange(
        server,
        &format!(
            "{method} {path} HTTP/1.1\r\nhost: {server}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        ),
    )
}

/// Sends one request on a connection of its own; the body of a positive answer.
fn exchange(server: SocketAddr, request: &str) -> Result<String, BenchError> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 2") => Ok(body.to_owned()),
        _ => {
            let line = request.lines().next().unwrap_or_default();
            Err(format!("{line} was answered: {answer}").into())
        }
    }
}
