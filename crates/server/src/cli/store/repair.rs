//! `store repair`: puts aside what is damaged, never deletes it, and makes the rest start again.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use wayhold_model::DestinationId;
use wayhold_store::rescue::repair::{Names, RepairError, Step, plan, repair};

use super::refused;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::clock::SystemClock;

/// Put aside what is damaged, never deleting anything, so that the server starts and serves the rest.
#[derive(Debug, clap::Args)]
pub struct Repair {
    /// Say what would be done first, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Name of a destination, for a catalogue that is lost with it; may be repeated.
    #[arg(long = "destination", value_name = "NUMBER=NAME", value_parser = named)]
    destinations: Vec<(u32, String)>,
}

fn named(text: &str) -> Result<(u32, String), String> {
    let (number, name) = text.split_once('=').unwrap_or_default();
    match number.parse() {
        Ok(number) if !name.is_empty() => Ok((number, name.to_owned())),
        _ => Err("expected a number, =, and a name, as in 1=wms".to_owned()),
    }
}

impl Repair {
    /// Repairs the store in `data`, or says what it would do.
    ///
    /// # Errors
    /// Usage where the directory cannot be used or names are missing; failed where a step failed.
    pub(super) fn run(self, data: &Path, output: &mut Output) -> Result<(), Failure> {
        let names = self.destinations.into_iter();
        let names: Names = names.map(|(id, name)| (DestinationId(id), name)).collect();
        let mut steps = Vec::new();
        let found = if self.dry_run {
            steps = plan(data, &names).map_err(failure)?;
            Vec::new()
        } else {
            let mut done = |step: &Step| {
                output.note(words(step));
                steps.push(step.clone());
            };
            repair(data, &names, Arc::new(SystemClock), &mut done).map_err(failure)?
        };
        output.json(&json!({
            "dry_run": self.dry_run,
            "steps": steps.iter().map(body).collect::<Vec<_>>(),
            "findings": found,
        }));
        if self.dry_run {
            for step in &steps {
                output.line(words(step));
            }
        }
        for finding in found {
            output.line(finding);
        }
        Ok(())
    }
}

fn body(step: &Step) -> Value {
    match step {
        Step::PutAside(file) => json!({ "step": "put_aside", "file": file }),
        Step::KeepCopy(file) => json!({ "step": "keep_copy", "file": file }),
        Step::MoveBack { from, to } => json!({ "step": "move_back", "from": from, "file": to }),
        Step::MakeCatalog(file) => json!({ "step": "make_catalog", "file": file }),
        Step::Reopen => json!({ "step": "reopen" }),
    }
}

fn words(step: &Step) -> String {
    match step {
        Step::PutAside(file) => format!("put aside {}", file.display()),
        Step::KeepCopy(file) => format!("keep a copy of {}", file.display()),
        Step::MoveBack { from, to } => format!("move {} to {}", from.display(), to.display()),
        Step::MakeCatalog(file) => format!(
            "make {} from the shards, every destination paused",
            file.display()
        ),
        Step::Reopen => {
            "open the store once, which makes index files, marks and progress again".to_owned()
        }
    }
}

fn failure(error: RepairError) -> Failure {
    match error {
        RepairError::Open(error) => refused(&error),
        RepairError::Unnamed(_) | RepairError::NoSeed => Failure::usage(error.to_string()),
        RepairError::Step { .. } => Failure::new(Exit::Failed, error.to_string()),
    }
}
