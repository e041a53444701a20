//! Arguments of the run, and its course.

use std::path::{Path, PathBuf};

use super::part::{Part, Round};
use super::plan::Plan;
use super::series::Figures;
use super::verdict::{self, Target};
use super::wanted::Wanted;
use super::{accept, drain};
use crate::BenchError;

/// Everything that is measured, in the order of a round.
const PARTS: &[Part] = &[accept::PART, drain::PART];

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
    /// What to measure: figures whose names begin so, and those that they are held against. Everything
    /// without a name.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
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
    let targets: Vec<&Target> = PARTS.iter().flat_map(|part| part.targets).collect();
    let known: Vec<&str> = PARTS.iter().flat_map(|part| part.names).copied().collect();
    let wanted = Wanted::new(&args.names, &known, &targets)?;
    let folder = match &args.data {
        Some(data) => tempfile::tempdir_in(data)?,
        None => tempfile::tempdir()?,
    };
    let figures = rounds(&plan, &wanted, folder.path())?;
    print(&figures.to_string());
    if let Some(path) = &args.json {
        write_json(path, &figures)?;
    }
    if args.smoke {
        return Ok(());
    }
    print(&verdict::table(&figures, &targets));
    match verdict::void(&figures) {
        void if void.is_empty() => Ok(()),
        void => Err(void.join("; ").into()),
    }
}

fn rounds(plan: &Plan, wanted: &Wanted, folder: &Path) -> Result<Figures, BenchError> {
    let mut figures = Figures::default();
    for number in 0..plan.rounds {
        progress(number, plan.rounds);
        figures.begin_round(number);
        let round = Round {
            number,
            plan,
            folder,
            wanted,
        };
        for part in PARTS.iter().filter(|part| round.wants_any(part.names)) {
            (part.round)(&round, &mut figures)?;
        }
    }
    Ok(figures)
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

#[expect(clippy::print_stdout, reason = "the tables are the output")]
fn print(table: &str) {
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_name_belongs_to_one_part_and_every_target_speaks_of_names() {
        let names: Vec<&str> = PARTS.iter().flat_map(|part| part.names).copied().collect();
        let distinct: HashSet<&str> = names.iter().copied().collect();
        assert_eq!(distinct.len(), names.len());
        for target in PARTS.iter().flat_map(|part| part.targets) {
            for name in target.of.names() {
                assert!(distinct.contains(name), "{}", target.of);
            }
        }
    }
}
