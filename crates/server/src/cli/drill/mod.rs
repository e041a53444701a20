//! `wayhold drill`: the bad day, on purpose. A throw-away server, a receiver behind a proxy that takes it
//! away, producers at a steady rate, and a judge that knows only what was acknowledged and what arrived;
//! or a running server, whose destination is paused and whose own books are read. Modules in suggested
//! reading order.

pub mod plan;

pub mod drain;

pub mod report;

pub mod configuration;

pub mod stage;

pub mod running;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use tempfile::TempDir;

use super::client::{Address, ServerArguments};
use super::exit::{Exit, Failure};
use super::output::Output;
use super::stop_signal::StopSignal;
use crate::config::quantity::parse_duration;
use plan::Plan;
use report::Report;
use stage::Stage;

/// Take a destination away and say what became of the promises.
#[derive(Debug, clap::Args)]
pub struct Drill {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// The destination is away for a time; events are accepted meanwhile.
    Outage(Outage),
    /// The same, and the server is killed with signal 9 in the middle.
    Restart(Load),
    /// The same, and in the middle the server finds its disk too full to accept.
    DiskFull(Load),
}

/// The destination is away for a time; events are accepted meanwhile.
#[derive(Debug, Args)]
struct Outage {
    #[command(flatten)]
    load: Load,
    /// Destination of the running server, which is paused for the time; may be left out where only one runs.
    #[arg(long, value_name = "NAME", requires = "server")]
    destination: Option<String>,
    /// Drill this running server under its own load instead of a throw-away one. Sends it no events.
    #[arg(
        long,
        value_name = "URL",
        conflicts_with_all = ["speed", "rate", "data", "control"]
    )]
    server: Option<Address>,
    /// File that holds the token to present to it.
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
}

/// How long, how fast, how much.
#[derive(Debug, Args)]
struct Load {
    /// How long the destination is away.
    #[arg(long = "for", value_name = "TIME", default_value = "30m", value_parser = time)]
    away: Duration,
    /// Divides every duration: the outage, waits between attempts, the breaker's. Never the rate.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=plan::SPEED_MAX))]
    speed: u32,
    /// Events sent in a real second.
    #[arg(long, value_name = "R", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=plan::RATE_MAX))]
    rate: u32,
    /// Run the throw-away server in a temporary folder inside this existing one, and so on its disk.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Make the receiver forget some of what it confirmed. The drill must find it and fail.
    #[arg(long)]
    control: bool,
}

/// What happens in the middle of the outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Middle {
    /// Nothing more.
    Quiet,
    /// The server is killed and started again.
    Kill,
    /// The server finds too little room, until the backlog is gone.
    DiskFull,
}

impl Drill {
    /// Runs the drill and prints what came of it.
    ///
    /// # Errors
    /// When a promise broke, or the drill cannot be run as asked.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        // Producers, proxy and receiver must not wait for each other more than they have to.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| failed("cannot start a runtime", &error))?;
        runtime.block_on(async {
            let report = match self.kind {
                Kind::Outage(outage) => outage.run(output).await?,
                Kind::Restart(load) => load.run(Middle::Kill, output).await?,
                Kind::DiskFull(load) => load.run(Middle::DiskFull, output).await?,
            };
            report.print(output)
        })
    }
}

impl Outage {
    async fn run(self, output: &mut Output) -> Result<Report, Failure> {
        let Some(server) = self.server else {
            return self.load.run(Middle::Quiet, output).await;
        };
        let token_file = self.token_file;
        let server = ServerArguments { server, token_file };
        let destination = self.destination.as_deref();
        running::run(&server, destination, self.load.away, output).await
    }
}

impl Load {
    async fn run(self, middle: Middle, output: &mut Output) -> Result<Report, Failure> {
        let plan = Plan::new(self.away, self.speed, self.rate)?;
        let folder = folder(self.data.as_deref())?;
        let stop = StopSignal::new()?;
        // Cut off, it drops server and receiver, and with them their processes.
        let report = tokio::select! {
            biased;
            signal = stop.received() => {
                Err(Failure::new(Exit::Failed, format!("stopped by {signal}")))
            }
            report = Stage::play(plan, middle, self.control, folder.path(), output) => report,
        };
        let removed = folder.close();
        let report = report?;
        removed.map_err(|error| failed("the drill's folder cannot be removed", &error))?;
        Ok(report)
    }
}

fn folder(parent: Option<&Path>) -> Result<TempDir, Failure> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("wayhold-drill-");
    match parent {
        Some(parent) => builder
            .tempdir_in(parent)
            .map_err(|error| Failure::usage(format!("--data {}: {error}", parent.display()))),
        None => builder
            .tempdir()
            .map_err(|error| failed("cannot make a temporary folder", &error)),
    }
}

fn failed(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("{what}: {error}"))
}

fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}
