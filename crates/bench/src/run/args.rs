//! Arguments of the run, and its course.

use std::path::{Path, PathBuf};

use super::plan::Plan;
use super::series::Figures;
use super::{accept, drain, verdict};
use crate::BenchError;

/// Arguments of `run`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Writes the figures as a JSON list of `{"name", "value", "unit"}`.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// One short round, to show that everything runs; its figures mean nothing.
    #[arg(long)]
    pub smoke: bool,
    /// Interleaved rounds.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Where the servers keep their data; a temporary folder without it. The disk is part of what is
    /// measured.
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// What to measure; everything without a name.
    #[arg(value_name = "NAME")]
    pub parts: Vec<Part>,
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Accepting, over connections and batches.
    Accept,
    /// A backlog: restart on it, and drain it.
    Drain,
}

/// Runs the comparison and prints it.
///
/// # Errors
/// When a server or load fails, or the run is void.
pub fn main(args: &Args) -> Result<(), BenchError> {
    let plan = if args.smoke {
        Plan::smoke()
    } else {
        Plan::full(args.rounds)
    };
    let folder = match &args.data {
        Some(data) => tempfile::tempdir_in(data)?,
        None => tempfile::tempdir()?,
    };
    let mut figures = Figures::default();
    for round in 0..plan.rounds {
        progress(round, plan.rounds);
        if wanted(args, Part::Accept) {
            accept::round(&plan, round, folder.path(), &mut figures)?;
        }
        if wanted(args, Part::Drain) {
            drain::round(&plan, folder.path(), &mut figures)?;
        }
    }
    figures.derive(verdict::RATIOS);
    print(&figures);
    if let Some(path) = &args.json {
        write_json(path, &figures)?;
    }
    if args.smoke {
        Ok(())
    } else {
        verdict::check(&figures)
    }
}

fn wanted(args: &Args, part: Part) -> bool {
    args.parts.is_empty() || args.parts.contains(&part)
}

fn write_json(path: &Path, figures: &Figures) -> Result<(), BenchError> {
    let mut text = serde_json::to_string_pretty(&figures.medians())?;
    text.push('\n');
    Ok(std::fs::write(path, text)?)
}

#[expect(clippy::print_stderr, reason = "a tool of the terminal")]
fn progress(round: usize, rounds: usize) {
    eprintln!("round {} of {rounds}", round + 1);
}

#[expect(clippy::print_stdout, reason = "the table is the output")]
fn print(figures: &Figures) {
    println!("{figures}");
}
