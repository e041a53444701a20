//! `wayhold bench`: measures this machine and says what it will bear. In a folder of its own on the disk
//! that is asked about, with servers of its own that run with everybody's settings, and with a load
//! generator beside them; each is this same binary. Nothing else is touched, and all of it is gone at the
//! end. Modules in suggested reading order.

pub mod plan;

pub mod folder;

pub mod sync;

pub mod machine;

pub mod load;
pub mod server;

pub mod accept;
pub mod backlog;
pub mod lanes;
pub mod settled;

pub mod sizing;

pub mod progress;
pub mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Subcommand;
use wayhold_store::Options;

use super::block_on;
use super::exit::{Exit, Failure};
use super::output::Output;
use super::stop_signal::StopSignal;
use crate::blocking::blocking;
use crate::config::quantity::parse_duration;
use crate::config::{self, Environment, Overrides};
use folder::Folder;
use machine::Machine;
use plan::Step;
use progress::Progress;
use report::Report;

/// Shortest time that gives figures worth reading.
const TIME_MIN: Duration = Duration::from_secs(10);

/// Longest: beyond this nothing becomes more certain.
const TIME_MAX: Duration = Duration::from_secs(3_600);

/// Most numbers of callers that are measured one after the other.
const CONNECTIONS_MAX: usize = 16;

/// Most callers at a time: a server takes 1,024 connections from one address.
const CALLERS_MAX: u64 = 1_000;

/// Measure this machine: sync latency, events a second in and out, memory, disk; and what follows for
/// sizing.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    part: Option<Part>,
    /// Measure on the disk of this existing folder; a temporary folder in it is made and removed
    /// [default: where the configured data directory lies].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration whose data directory says which disk.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    config: Option<PathBuf>,
    /// How long it may take, at least 10s.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = time)]
    time: Duration,
    /// Numbers of callers that send single events.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_values_t = plan::CALLERS.map(|callers| callers as u64),
        value_parser = clap::value_parser!(u64).range(1..=CALLERS_MAX)
    )]
    connections: Vec<u64>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// The load generator, as a process of its own.
    #[command(hide = true)]
    Load(load::Load),
}

impl Bench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// When the command line asks for what cannot be measured, there is too little space, or a server
    /// cannot be run here.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        if let Some(Part::Load(load)) = self.part {
            return block_on(load.run(output));
        }
        if self.connections.len() > CONNECTIONS_MAX {
            return Err(Failure::usage(format!(
                "--connections: expected at most {CONNECTIONS_MAX} numbers"
            )));
        }
        let parent = match &self.data {
            Some(folder) => folder.clone(),
            None => configured_disk(self.config.as_deref())?,
        };
        let needed = plan::bytes_needed(self.time, &Options::default());
        let folder = Folder::make(&parent, needed)?;
        let bytes = plan::bytes_per_step(self.time) >> 20;
        output.note(format!(
            "measuring in {} for about {} s; at most about {bytes} MiB are in use at a time",
            folder.path().display(),
            self.time.as_secs()
        ));
        let stop = Arc::new(AtomicBool::new(false));
        let outcome = block_on(async {
            let signal = StopSignal::new()?;
            tokio::select! {
                // First, since an interruption at the terminal ends the load generator too.
                biased;
                signal = signal.received() => {
                    stop.store(true, Ordering::Relaxed);
                    Err(Failure::new(Exit::Failed, format!("stopped by {signal}")))
                }
                report = self.measure(&folder, &stop) => report,
            }
        });
        // The runtime has ended and with it all that writes into the folder.
        let removed = folder.remove();
        let report = outcome?;
        removed?;
        report.print(output);
        Ok(())
    }

    async fn measure(&self, folder: &Folder, stop: &Arc<AtomicBool>) -> Result<Report, Failure> {
        let begun = Instant::now();
        let callers: Vec<_> = self
            .connections
            .iter()
            .filter_map(|callers| usize::try_from(*callers).ok())
            .collect();
        let steps = plan::steps(&callers);
        let bytes = plan::bytes_per_step(self.time);
        let mut report = Report::new(&folder.path().display(), Machine::here());
        let mut progress = Progress::over(steps.len());
        for (at, step) in steps.iter().enumerate() {
            let left = self.time.saturating_sub(begun.elapsed());
            let share = plan::share(left, steps.get(at..).unwrap_or_default());
            progress.begin(&step.words(), share);
            let dir = folder.path().join(format!("step-{at}"));
            run_step(*step, (dir, stop), (bytes, share), &mut report).await?;
        }
        report.finish(begun.elapsed(), folder.is_in_memory(), &Options::default());
        Ok(report)
    }
}

async fn run_step(
    step: Step,
    (dir, stop): (PathBuf, &Arc<AtomicBool>),
    (bytes, share): (u64, Duration),
    report: &mut Report,
) -> Result<(), Failure> {
    match step {
        Step::Sync => {
            let stop = Arc::clone(stop);
            let measured = blocking(move || {
                std::fs::create_dir(&dir)?;
                sync::measure(&dir, share, &stop)
            });
            let failed = |what: &dyn std::fmt::Display| {
                Failure::new(Exit::Failed, format!("the disk cannot be measured: {what}"))
            };
            report.sync = measured
                .await
                .map_err(|error| failed(&error))?
                .map_err(|error| failed(&error))?;
        }
        Step::Accept { callers, batch } => {
            let events = plan::events_within(bytes, callers * batch);
            let measured = accept::measure(&dir, (callers, batch), events, share).await?;
            report.accept.push(measured);
        }
        Step::Backlog => {
            let events = plan::events_within(bytes, usize::MAX);
            report.backlog = Some(backlog::measure(&dir, events, share).await?);
        }
        Step::Lanes => report.lanes = lanes::measure(&dir, share).await?,
        Step::Disk => report.settled_bytes_per_event = settled::measure(&dir, share).await?,
    }
    Ok(())
}

/// The folder that the configured data directory lies in, or would.
fn configured_disk(config: Option<&Path>) -> Result<PathBuf, Failure> {
    let loaded = config::load(config, &Overrides::default(), &Environment::of_process())
        .map_err(|problems| Failure::usage(problems.to_string()))?;
    Ok(folder::nearest_above(&loaded.config.data))
}

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    if (TIME_MIN..=TIME_MAX).contains(&time) {
        Ok(time)
    } else {
        Err("expected 10s to 1h".to_owned())
    }
}
