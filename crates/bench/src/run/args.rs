//! Arguments of the run, and its course.

use std::path::{Path, PathBuf};

#[cfg(feature = "kafka")]
use super::kafka;
use super::part::{Part, Round};
use super::plan::Plan;
use super::series::Figures;
use super::verdict::{self, Target};
use super::wanted::Wanted;
use super::{
    accept, commands, crowd, delivering, drain, ledger, outbox, restart, route, segments, webhook,
};
use crate::BenchError;

/// Everything that is measured, in the order of a round.
const PARTS: &[Part] = &[
    route::PART,
    ledger::PART,
    accept::PART,
    segments::PART,
    delivering::PART,
    drain::PART,
    commands::PART,
];

/// What takes long to prepare, and then runs its rounds by itself after those of the others.
const APART: &[Part] = &[
    restart::PART,
    webhook::PART,
    crowd::PART,
    outbox::PART,
    #[cfg(feature = "kafka")]
    kafka::PART,
];

/// What takes longer still: only where it is named, or nothing is measured.
const NAMED: &[Part] = &[restart::SHARDS];

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
    let targets: Vec<&Target> = parts().flat_map(|part| part.targets).collect();
    let known: Vec<&str> = parts().flat_map(|part| part.names).copied().collect();
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
    let void = verdict::void(&figures);
    if void.is_empty() {
        return Ok(());
    }
    print(&void.join("\n"));
    Err("the run is void: its yardsticks are off, so something else had the machine".into())
}

fn parts() -> impl Iterator<Item = &'static Part> {
    PARTS.iter().chain(APART).chain(NAMED)
}

fn rounds(plan: &Plan, wanted: &Wanted, folder: &Path) -> Result<Figures, BenchError> {
    let mut figures = Figures::default();
    let round = |number| Round {
        number,
        plan,
        folder,
        wanted,
    };
    let chosen = |parts: &'static [Part]| -> Vec<&Part> {
        let is_wanted = |part: &&Part| round(0).wants_any(part.names);
        parts.iter().filter(is_wanted).collect()
    };
    let in_turn = chosen(PARTS);
    for number in 0..plan.rounds {
        if in_turn.is_empty() {
            break;
        }
        tell(&format!("round {} of {}", number + 1, plan.rounds));
        figures.begin_round(number);
        for part in &in_turn {
            (part.round)(&round(number), &mut figures)?;
        }
    }
    let named = match plan.is_smoke || wanted.is_by_name() {
        true => chosen(NAMED),
        false => Vec::new(),
    };
    for part in chosen(APART).into_iter().chain(named) {
        tell(&format!("apart: {}", part.names.join(" ")));
        (part.round)(&round(0), &mut figures)?;
    }
    Ok(figures)
}

fn write_json(path: &Path, figures: &Figures) -> Result<(), BenchError> {
    let mut text = serde_json::to_string_pretty(&figures.medians())?;
    text.push('\n');
    Ok(std::fs::write(path, text)?)
}

/// Says something to the person who waits.
#[expect(clippy::print_stderr, reason = "a tool of the terminal")]
pub(crate) fn tell(line: &str) {
    eprintln!("{line}");
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
        let names: Vec<&str> = parts().flat_map(|part| part.names).copied().collect();
        let distinct: HashSet<&str> = names.iter().copied().collect();
        assert_eq!(distinct.len(), names.len());
        for target in parts().flat_map(|part| part.targets) {
            for name in target.of.names() {
                assert!(distinct.contains(name), "{}", target.of);
            }
        }
    }
}
