//! `wayhold bench load`: what sends the events, as a process of its own, so that the server is measured
//! alone. A closed loop: each caller sends its next request when it has the answer to the last. It
//! shares the machine with the server and says how much of it it took. Modules in suggested reading
//! order.

pub mod request;

pub mod connection;

use std::io;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::exit::{Exit, Failure};
use super::super::output::Output;
use super::super::process::{Process, this_binary};
use super::super::rehearsal::distribution::Distribution;
use super::machine;
use connection::Connection;
use request::Request;

/// Of the time and of the events, one in so many comes first and is not counted.
const WARM_UP: u32 = 5;

/// How long a caller waits after a refusal: what refuses now does so again at once.
const REFUSED_WAIT: Duration = Duration::from_millis(10);

/// How much longer than it was told to a load may take: its last requests have to be answered.
const LATE: Duration = Duration::from_secs(30);

/// What is sent, and until when.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Load {
    /// The server.
    #[arg(long)]
    pub target: SocketAddr,
    /// Connections, each with one request under way.
    #[arg(long)]
    pub callers: usize,
    /// Events in one request.
    #[arg(long)]
    pub batch: usize,
    /// Stops after so many milliseconds.
    #[arg(long)]
    pub millis: u64,
    /// Stops after so many events, where that comes first.
    #[arg(long)]
    pub events: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Loaded {
    /// Events acknowledged, without those of the warm-up.
    pub events: u64,
    /// How long that took.
    pub seconds: f64,
    /// Their requests, and how long the answers took.
    pub answers: Distribution,
    /// Requests that were not acknowledged.
    pub refused: u64,
    /// Processor time of the load itself, from its start to its end.
    pub cpu_seconds: f64,
}

/// What the callers have in common.
struct Common {
    begun: Instant,
    /// Nothing is counted before.
    count_from: Duration,
    count_from_event: u64,
    until: Duration,
    events: u64,
    /// Number of the next event.
    next: AtomicU64,
}

/// What callers saw.
#[derive(Default)]
struct Seen {
    acknowledged: Vec<Acknowledged>,
    refused: u64,
}

/// One request that was acknowledged.
#[derive(Clone, Copy)]
struct Acknowledged {
    sent: Instant,
    answered: Instant,
    /// Whether it was sent in the warm-up.
    early: bool,
}

impl Load {
    /// Makes the load and prints what came of it as JSON.
    ///
    /// # Errors
    /// When the server breaks a connection.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let loaded = self
            .make()
            .await
            .map_err(|error| Failure::new(Exit::Failed, format!("the load broke off: {error}")))?;
        output.line(serde_json::to_string(&loaded).unwrap_or_default());
        Ok(())
    }

    /// The same in a process of its own.
    ///
    /// # Errors
    /// When it cannot be started, or broke off.
    pub async fn run_apart(self) -> Result<Loaded, Failure> {
        let broken = |what: &dyn std::fmt::Display| {
            Failure::new(Exit::Failed, format!("the load generator {what}"))
        };
        let mut command = this_binary().map_err(|error| broken(&error))?;
        command
            .args(["bench", "load"])
            .args(["--target", &self.target.to_string()])
            .args(["--callers", &self.callers.to_string()])
            .args(["--batch", &self.batch.to_string()])
            .args(["--millis", &self.millis.to_string()])
            .args(["--events", &self.events.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let cannot = |error: io::Error| broken(&format!("cannot be started: {error}"));
        let mut process = Process::start(&mut command).map_err(cannot)?;
        let (stdout, _) = process.take_streams();
        let patience = Duration::from_millis(self.millis) + LATE;
        let ended = process.end_within(patience).await;
        if !ended.is_some_and(|status| status.success()) {
            let how = ended.map_or_else(|| "did not end".to_owned(), |status| status.to_string());
            return Err(broken(&format!("failed ({how})")));
        }
        // It has ended, so all it wrote is there.
        let mut text = String::new();
        if let Some(mut stdout) = stdout {
            io::Read::read_to_string(&mut stdout, &mut text).map_err(|error| broken(&error))?;
        }
        serde_json::from_str(&text).map_err(|error| broken(&format!("is not understood: {error}")))
    }

    async fn make(self) -> io::Result<Loaded> {
        // Made ready before the time begins.
        let mut ready = Vec::new();
        for number in 0..self.callers {
            let connection = Connection::open(self.target).await?;
            ready.push((connection, Request::new(self.target, self.batch, number)));
        }
        let until = Duration::from_millis(self.millis);
        let common = Arc::new(Common {
            begun: Instant::now(),
            count_from: until / WARM_UP,
            count_from_event: self.events / u64::from(WARM_UP),
            until,
            events: self.events,
            next: AtomicU64::new(0),
        });
        let mut callers = JoinSet::new();
        for (connection, request) in ready {
            callers.spawn(call(connection, request, self.batch, Arc::clone(&common)));
        }
        let mut all = Seen::default();
        while let Some(seen) = callers.join_next().await {
            all.add(seen.map_err(io::Error::other)??);
        }
        let refused = all.refused;
        let counted = all.counted();
        let first = counted.iter().map(|one| one.sent).min();
        let last = counted.iter().map(|one| one.answered).max();
        let span = first.zip(last).map(|(first, last)| last - first);
        let took = counted.iter().map(|one| one.answered - one.sent);
        Ok(Loaded {
            events: counted.len() as u64 * self.batch as u64,
            seconds: span.unwrap_or_default().as_secs_f64(),
            answers: Distribution::of(took.collect()),
            refused,
            cpu_seconds: machine::cpu("self")?.as_secs_f64(),
        })
    }
}

async fn call(
    mut connection: Connection,
    mut request: Request,
    batch: usize,
    common: Arc<Common>,
) -> io::Result<Seen> {
    let mut seen = Seen::default();
    loop {
        let first = common.next.fetch_add(batch as u64, Ordering::Relaxed);
        let sent = Instant::now();
        if first >= common.events || sent - common.begun >= common.until {
            return Ok(seen);
        }
        let status = connection.ask(request.numbered(first)).await?;
        let answered = Instant::now();
        if status != 202 {
            seen.refused += 1;
            tokio::time::sleep(REFUSED_WAIT).await;
        } else {
            let early = sent - common.begun < common.count_from && first < common.count_from_event;
            seen.acknowledged.push(Acknowledged {
                sent,
                answered,
                early,
            });
        }
    }
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.acknowledged.extend(other.acknowledged);
        self.refused += other.refused;
    }

    /// What came after the warm-up; all of it where the server was too slow for a second request.
    fn counted(self) -> Vec<Acknowledged> {
        if self.acknowledged.iter().all(|one| one.early) {
            return self.acknowledged;
        }
        let mut counted = self.acknowledged;
        counted.retain(|one| !one.early);
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_is_left_out_unless_there_is_nothing_else() {
        let now = Instant::now();
        let one = |early| Acknowledged {
            sent: now,
            answered: now,
            early,
        };
        let counted = |early: &[bool]| {
            let seen = Seen {
                acknowledged: early.iter().copied().map(one).collect(),
                refused: 0,
            };
            seen.counted().len()
        };
        assert_eq!(counted(&[true, false, true, false, false]), 3);
        assert_eq!(counted(&[true, true]), 2);
        assert_eq!(counted(&[]), 0);
    }
}
