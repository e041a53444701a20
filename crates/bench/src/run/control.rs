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
    ask(
        server,
        "POST",
        &format!("/v1/destinations/{destination}/resume"),
    )
    .map(drop)
}

/// Waits until nothing is pending for a destination; tells how long that took.
pub fn drained(server: SocketAddr, destination: &str) -> Result<Duration, BenchError> {
    let started = Instant::now();
    while pending(server, destination)? > 0 {
        if started.elapsed() > DRAIN_TIMEOUT {
            return Err(format!("{destination} did not drain within {DRAIN_TIMEOUT:?}").into());
        }
        std::thread::sleep(POLL);
    }
    Ok(started.elapsed())
}

/// Deliveries that a destination has pending.
pub fn pending(server: SocketAddr, destination: &str) -> Result<u64, BenchError> {
    let metrics = ask(server, "GET", "/metrics")?;
    let name = format!("wayhold_pending_deliveries{{destination=\"{destination}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
    Ok(value
        .ok_or("no wayhold_pending_deliveries in /metrics")?
        .trim()
        .parse()?)
}

fn ask(server: SocketAddr, method: &str, path: &str) -> Result<String, BenchError> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {server}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 2") => Ok(body.to_owned()),
        _ => Err(format!("{method} {path} was answered: {answer}").into()),
    }
}
