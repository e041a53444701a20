//! What a load is: how many connections, what they send, how fast and until when.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::generator::Generator;
use crate::BenchError;

/// Arguments of `load`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The server.
    #[arg(long)]
    pub target: SocketAddr,
    /// Keep-alive connections, each with at most one request under way.
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// Events in one request: 1 sends CloudEvents in binary mode, more send NDJSON.
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// Proposes commands instead of sending events.
    #[arg(long)]
    pub commands: bool,
    /// Requests per second, whatever the server does; latency then counts from the intended start.
    /// Without it every connection sends as soon as it has its answer.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Stops after this long, the warm-up not counted.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Time before measuring starts.
    #[arg(long, default_value_t = 1.0)]
    pub warmup: f64,
    /// Stops after this many acknowledged events instead of after a time.
    #[arg(long)]
    pub events: Option<u64>,
    /// Ordering keys in use.
    #[arg(long, default_value_t = crate::payload::KEYS)]
    pub keys: u64,
    /// Ends sooner when its standard input does.
    #[arg(long)]
    pub until_told: bool,
    /// Begins every id; one prefix may be sent once to a server, or its events are duplicates.
    #[arg(long, default_value = "load")]
    pub prefix: String,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// After a while, of which the first part is not counted.
    After {
        warmup: Duration,
        measured: Duration,
    },
    /// After this many acknowledged events.
    Events(u64),
}

impl Args {
    /// When this load ends.
    pub fn stop(&self) -> Stop {
        match self.events {
            Some(events) => Stop::Events(events),
            None => Stop::After {
                warmup: Duration::from_secs_f64(self.warmup),
                measured: Duration::from_secs_f64(self.seconds),
            },
        }
    }
}

/// Runs one load and prints its report.
///
/// # Errors
/// When the server cannot be reached, breaks a connection, or speaks no HTTP/1.1 with lengths.
pub fn main(args: &Args) -> Result<(), BenchError> {
    let told = Arc::new(AtomicBool::new(false));
    if args.until_told {
        let told = Arc::clone(&told);
        std::thread::spawn(move || {
            // An input that cannot be read has ended as well.
            let _read = io::copy(&mut io::stdin().lock(), &mut io::sink());
            told.store(true, Ordering::Release);
        });
    }
    let report = Generator::connect(args)?.run(&told)?;
    print_line(&report)
}

#[expect(clippy::print_stdout, reason = "the report is the output")]
fn print_line(report: &impl Serialize) -> Result<(), BenchError> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}
