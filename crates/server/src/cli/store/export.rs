//! `store export`: the surviving events as NDJSON, one CloudEvent a line, which `wayhold send` takes.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use serde_json::json;
use wayhold_store::rescue::StoppedStore;
use wayhold_store::rescue::export::{ExportError, Exported, Summary, Wanted};

use super::refused;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::send::envelope::exported_line;

/// Write the surviving events as NDJSON, one CloudEvent a line, for `wayhold send`.
#[derive(Debug, clap::Args)]
pub struct Export {
    /// Those that some destination is still owed (the default).
    #[arg(long, conflicts_with = "all")]
    pending: bool,
    /// Every event that is there, delivered ones and dead letters too.
    #[arg(long)]
    all: bool,
    /// Only those owed to this destination, by name or as # and its number; with --all, those that ever were.
    #[arg(long, value_name = "NAME")]
    destination: Option<String>,
    /// Write to this new file instead of standard output.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

impl Export {
    /// Writes the events.
    ///
    /// # Errors
    /// Usage where the destination or the file is not there to be used; failed where something could not be
    /// read or written: what could be read was written all the same.
    pub(super) fn run(self, store: &StoppedStore, output: &mut Output) -> Result<(), Failure> {
        let destination = self.destination.as_ref().map(|name| {
            let known = store.destination(name);
            known.ok_or_else(|| {
                let words = format!(
                    "--destination: {name} is unknown; expected a name of the catalogue, or # and a number"
                );
                Failure::usage(words)
            })
        });
        let wanted = Wanted {
            all: self.all,
            destination: destination.transpose()?,
        };
        let mut to: Box<dyn Write> = match &self.to {
            None => Box::new(io::stdout().lock()),
            Some(path) => Box::new(
                File::create_new(path)
                    .map_err(|error| Failure::usage(format!("--to {}: {error}", path.display())))?,
            ),
        };
        let summary = write(store, wanted, &mut to)?;
        if self.to.is_some() {
            output.json(&json!({
                "events": summary.events,
                "damaged": summary.damaged,
                "unreadable": unreadable(&summary),
            }));
        }
        output.note(format!("{} events", summary.events));
        report(&summary, output)
    }
}

fn write(store: &StoppedStore, wanted: Wanted, to: &mut dyn Write) -> Result<Summary, Failure> {
    let mut to = BufWriter::new(to);
    let mut take = |exported: Exported| {
        let owed: Vec<String> = exported.owed.iter().map(|id| store.name_of(*id)).collect();
        let position = exported.event.position.to_string();
        let line = exported_line(&exported.event.event, &position, &owed.join(","));
        to.write_all(&line)?;
        to.write_all(b"\n")
    };
    let exported = store.export(wanted, &mut take);
    let summary = exported.map_err(|error| match error {
        ExportError::Open(error) => refused(&error),
        error @ ExportError::Write(_) => Failure::new(Exit::Failed, error.to_string()),
    })?;
    let flushed = to.flush();
    flushed.map_err(|error| Failure::new(Exit::Failed, ExportError::Write(error).to_string()))?;
    Ok(summary)
}

fn unreadable(summary: &Summary) -> Vec<String> {
    let files = summary.unreadable.iter();
    files
        .map(|(path, reason)| format!("{}: {reason}", path.display()))
        .collect()
}

fn report(summary: &Summary, output: &mut Output) -> Result<(), Failure> {
    let unreadable = unreadable(summary);
    for file in &unreadable {
        output.note(file);
    }
    if summary.damaged > 0 {
        output.note(format!(
            "{} events are damaged and were left out",
            summary.damaged
        ));
    }
    match unreadable.is_empty() && summary.damaged == 0 {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::Failed,
            "not everything could be read; what is whole was written",
        )),
    }
}
