//! `wayhold store`: the files of a stopped server, and copies of them. Looking changes nothing; only `repair`
//! does. Modules in suggested reading order.

pub mod inspect;

pub mod verify;

pub mod export;

pub mod repair;

pub mod backup;
pub mod restore;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use wayhold_store::OpenError;
use wayhold_store::rescue::StoppedStore;

use super::exit::{Exit, Failure};
use super::output::Output;

/// Look into, check and rescue the data directory of a stopped server; back up and restore.
#[derive(Debug, clap::Args)]
pub struct Store {
    /// The data directory of a stopped server [default: data; `backup` asks a running server instead].
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List what is there: catalogue, shards, segments, what is pending and what was put aside.
    Inspect,
    /// Hold every row, index file and letter against its checksum; exit code 1 where something is damaged.
    Verify,
    Export(export::Export),
    Repair(repair::Repair),
    Backup(backup::Backup),
    Restore(restore::Restore),
}

impl Store {
    /// Does it.
    ///
    /// # Errors
    /// Usage where a process runs on the directory or it is none; failed where something is damaged.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let given = self.data.as_deref();
        let data = given.unwrap_or(Path::new("data"));
        match self.verb {
            Verb::Inspect => inspect::run(&open(data)?, output),
            Verb::Verify => verify::run(&open(data)?, output),
            Verb::Export(export) => export.run(&open(data)?, output),
            Verb::Repair(repair) => repair.run(data, output),
            Verb::Backup(backup) => backup.run(given, output),
            Verb::Restore(restore) => restore.run(given, output),
        }
    }
}

fn open(data: &Path) -> Result<StoppedStore, Failure> {
    StoppedStore::open(data).map_err(|error| refused(&error))
}

/// Nothing can be done with the directory as it is.
fn refused(error: &OpenError) -> Failure {
    Failure::new(Exit::Usage, error.to_string())
}
