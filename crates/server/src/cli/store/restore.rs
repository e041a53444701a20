//! `wayhold store restore`: makes a data directory of a backup, as another node with every destination paused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use wayhold_model::{Clock, Timestamp};
use wayhold_store::backup::{RestoreError, Restored, restore};

use crate::api::backups::HoldsBody;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::clock::SystemClock;

/// Who acts on files: whoever may write them.
const LOCAL: &str = "local";

/// Make a data directory of a backup (--data: empty or absent): another node, whose receipts name other places, and
/// which delivers nothing until its destinations are resumed.
#[derive(Debug, clap::Args)]
pub struct Restore {
    /// The backup's directory; every file of it is verified first.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
}

impl Restore {
    /// Restores into `data`.
    ///
    /// # Errors
    /// Usage where the destination is not fit, failed where the backup is not whole or a file cannot be written.
    pub fn run(self, data: Option<&Path>, output: &mut Output) -> Result<(), Failure> {
        let data = data.ok_or_else(|| {
            Failure::usage("--data: expected the directory to restore into, empty or absent")
        })?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let restored = restore(&self.from, data, LOCAL, &clock).map_err(|error| refused(&error))?;
        output.json(&body(&restored));
        tell(&restored, data, output);
        Ok(())
    }
}

fn refused(error: &RestoreError) -> Failure {
    match error {
        RestoreError::Backup { path, problems } => Failure::new(
            Exit::Failed,
            format!(
                "the backup in {} cannot be used, nothing was written:\n{}",
                path.display(),
                problems.join("\n")
            ),
        ),
        RestoreError::Newer { .. } | RestoreError::Destination { .. } => {
            Failure::usage(error.to_string())
        }
        RestoreError::Failed { .. } => Failure::new(Exit::Failed, error.to_string()),
    }
}

fn body(restored: &Restored) -> Value {
    json!({
        "node": restored.node_id,
        "generation": restored.generation,
        "paused": restored.paused,
        "backup": HoldsBody::new(&restored.manifest),
    })
}

fn tell(restored: &Restored, data: &Path, output: &mut Output) {
    let manifest = &restored.manifest;
    let begun = Timestamp::from_micros(manifest.begun_at);
    output.line(format!(
        "{} holds node {}, made of the backup of {begun} of node {}",
        data.display(),
        restored.node_id,
        manifest.node_id
    ));
    output.line(format!(
        "new events go to generation g{}",
        restored.generation
    ));
    for shard in &manifest.shards {
        if let Some(at) = shard.last_accepted_at.map(Timestamp::from_micros) {
            let (generation, number) = (shard.generation, shard.shard);
            output.line(format!(
                "g{generation}.s{number}: what was accepted after {at} is not in it"
            ));
        }
    }
    for name in &manifest.left_out {
        output.line(format!("the original could not read {name}"));
    }
    output.line(format!(
        "paused: {}; resume each when the original sends no more",
        restored.paused.join(", ")
    ));
}
