//! The course of the comparison.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use wayhold_store::Options;

use super::limit::MemoryLimit;
use super::recognised::send_again;
use crate::BenchError;
use crate::process::{Start, load};
use crate::run::accept::refuse_refusals;
use crate::run::args::tell;
use crate::run::cold::forget;
use crate::run::series::{Figures, shown};
use crate::run::verdict::Derived;

/// Longest time for making the index files of a window.
const FILL_TIMEOUT: Duration = Duration::from_secs(900);
/// Longest time of a start with a window of that many ids, from a disk that nothing was read of.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// Bytes of a mebibyte.
const MIB: u64 = 1024 * 1024;

/// How much of the ordinary rate must remain.
const PASS: f64 = 0.9;

/// Arguments of `window`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Ids of the long window.
    #[arg(long, default_value_t = 50_000_000)]
    pub ids: u64,
    /// Memory of the server with the long window, its share of the page cache included, in MiB.
    #[arg(long, default_value_t = 512)]
    pub memory: u64,
    /// Interleaved rounds.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Connections, each with one event under way.
    #[arg(long, default_value_t = 256)]
    pub connections: usize,
    /// Old ids, spread over the window, that are sent again in every round.
    #[arg(long, default_value_t = 500)]
    pub again: u64,
    /// Where the servers keep their data; a temporary folder without it. Needs 60 bytes per id and some
    /// gigabytes.
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Writes the figures as a JSON list of `{"name", "value", "unit"}`.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// A server that is measured.
struct Subject<'a> {
    /// In names of figures.
    name: &'static str,
    ids: u64,
    data: PathBuf,
    limit: Option<&'a MemoryLimit>,
}

/// Runs the comparison and prints it.
///
/// # Errors
/// When the limit cannot be set, a server or load fails, an old id is not recognised, or too little of the
/// rate remains.
pub fn main(args: &Args) -> Result<(), BenchError> {
    let limit = MemoryLimit::make(args.memory * MIB)?;
    let folder = match &args.data {
        Some(data) => tempfile::tempdir_in(data)?,
        None => tempfile::tempdir()?,
    };
    let ordinary = Subject {
        name: "ordinary",
        ids: Options::default().window_ids as u64,
        data: folder.path().join("ordinary"),
        limit: None,
    };
    let long = Subject {
        name: "long",
        ids: args.ids,
        data: folder.path().join("long"),
        limit: Some(&limit),
    };
    let mut figures = Figures::default();
    for subject in [&ordinary, &long] {
        subject.fill()?;
    }
    for round in 0..args.rounds {
        tell(&format!("round {} of {}", round + 1, args.rounds));
        figures.begin_round(round);
        for subject in [&ordinary, &long] {
            subject.measure(args, folder.path(), round, &mut figures)?;
        }
    }
    report(args, &limit, &figures)
}

impl Subject<'_> {
    fn flags(&self) -> Vec<String> {
        vec![
            "--deliver".to_owned(),
            format!("--window-reach={}", self.ids),
        ]
    }

    fn start(&self, patience: Duration) -> Start<'_> {
        Start {
            patience,
            ..Start::new("wayhold", &self.data)
        }
    }

    /// Makes the window's index files, under no limit.
    fn fill(&self) -> Result<(), BenchError> {
        tell(&format!("filling a window of {} ids", self.ids));
        let server = self.start(FILL_TIMEOUT).run(&self.flags())?;
        server.stop()?;
        Ok(())
    }

    /// One round, from a cold start.
    fn measure(
        &self,
        args: &Args,
        folder: &Path,
        round: usize,
        figures: &mut Figures,
    ) -> Result<(), BenchError> {
        forget(folder)?;
        let start = Start {
            limit: self.limit,
            ..self.start(START_TIMEOUT)
        };
        let server = start.run(&self.flags())?;
        let name = |what: &str| format!("window.{what}.{}", self.name);
        figures.add(name("start"), "s", server.start.as_secs_f64());
        let before = server.cpu()?;
        let report = load(
            server.address,
            &[
                format!("--connections={}", args.connections),
                format!("--seconds={}", args.seconds),
                format!("--prefix=round{round}"),
            ],
        )?;
        let cpu = server.cpu()?.saturating_sub(before);
        refuse_refusals(self.name, &report)?;
        figures.add(name("cpu_us"), "us", per_event(cpu, report.events_in_all));
        figures.add(name("accept"), "events/s", report.rate);
        figures.add(name("p99"), "ms", report.p99_ms);
        // What was accepted meanwhile has pushed the oldest out of the window.
        let gone = (self.ids / 2).min(10_000_000);
        let recognised = send_again(server.address, (gone, self.ids), args.again)?;
        if recognised < args.again {
            let unknown = args.again - recognised;
            return Err(format!(
                "{unknown} of {} old ids were taken for new ones",
                args.again
            )
            .into());
        }
        let memory = server.memory()?;
        figures.add(name("rss_peak"), "MiB", memory.peak);
        server.stop()?;
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn per_event(time: Duration, events: u64) -> f64 {
    time.as_secs_f64() * 1e6 / events.max(1) as f64
}

/// A figure as it is published.
#[derive(Serialize)]
struct Published {
    name: String,
    value: f64,
    unit: String,
}

fn report(args: &Args, limit: &MemoryLimit, figures: &Figures) -> Result<(), BenchError> {
    let share = Derived::Ratio {
        of: "window.accept.long",
        over: "window.accept.ordinary",
    };
    let share = figures.derived(&share).ok_or("no round was measured")?;
    let peak = limit.peak()?;
    let mut text = figures.to_string();
    writeln!(
        text,
        "accept, long / ordinary: {} ({} to {}), to pass {PASS}",
        shown(share.median),
        shown(share.min),
        shown(share.max)
    )?;
    writeln!(
        text,
        "peak memory with {} ids, page cache included: {} of {} MiB ({})",
        args.ids,
        peak / MIB,
        args.memory,
        limit.kind()
    )?;
    print(&text);
    if let Some(path) = &args.json {
        let medians = serde_json::to_value(figures.medians())?;
        let mut all = medians.as_array().cloned().unwrap_or_default();
        for (name, value, unit) in [
            ("window.accept.long_over_ordinary", share.median, "ratio"),
            ("window.memory_peak.long", mebibytes(peak), "MiB"),
        ] {
            all.push(serde_json::to_value(Published {
                name: name.to_owned(),
                value,
                unit: unit.to_owned(),
            })?);
        }
        std::fs::write(path, serde_json::to_string_pretty(&all)? + "\n")?;
    }
    match share.median >= PASS {
        true => Ok(()),
        false => Err(format!("only {} of the rate remains", shown(share.median)).into()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

#[expect(clippy::print_stdout, reason = "the table is the output")]
fn print(table: &str) {
    println!("{table}");
}
