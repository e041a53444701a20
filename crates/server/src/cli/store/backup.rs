//! `wayhold store backup`: a copy of a running server's store, made by the server, or of a stopped one's.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wayhold_model::Clock;
use wayhold_store::Store;
use wayhold_store::backup::Progress;

use crate::api::backups::HoldsBody;
use crate::cli::block_on;
use crate::cli::client::{Client, ServerArguments};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{Output, cell, items};
use crate::clock::SystemClock;

/// How often the server is asked how far it is.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// How often a person is told.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Copy the store into an empty directory on its machine: of a running server, which does it and goes on
/// accepting and delivering, or with --data of a stopped one.
#[derive(Debug, clap::Args)]
pub struct Backup {
    #[command(flatten)]
    server: ServerArguments,
    /// The directory; it must be empty or absent.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

impl Backup {
    /// Asks the server and waits, or copies the stopped store in `data`.
    ///
    /// # Errors
    /// No backup was made, or the store could not read all of itself.
    pub fn run(self, data: Option<&Path>, output: &mut Output) -> Result<(), Failure> {
        let to = std::path::absolute(&self.to)
            .map_err(|error| Failure::usage(format!("--to {}: {error}", self.to.display())))?;
        let made = match data {
            None => block_on(ask(&mut Client::new(&self.server)?, &to, output))?,
            Some(data) => copy(data, &to)?,
        };
        output.json(&made);
        tell(&made, &to, output)
    }
}

async fn ask(client: &mut Client, to: &Path, output: &mut Output) -> Result<Value, Failure> {
    const BACKUPS: &str = "/v1/backups";
    let mut run = client.post(BACKUPS, Some(&json!({ "to": to }))).await?;
    let number = run.get("number").cloned();
    let mut told = Instant::now();
    loop {
        match run.get("state").and_then(Value::as_str) {
            Some("done") => return Ok(run),
            Some("failed") => return Err(Failure::new(Exit::Failed, cell(&run, "reason"))),
            _ => {}
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            let (bytes, of) = (cell(&run, "bytes"), cell(&run, "bytes_expected"));
            output.note(format!("{bytes} of about {of} bytes are copied"));
        }
        tokio::time::sleep(ASK_EVERY).await;
        let list = client.get(BACKUPS).await?;
        let found = items(&list)
            .iter()
            .find(|one| one.get("number") == number.as_ref());
        run = found.cloned().ok_or_else(|| {
            let lost = "the server was started again before the backup was complete; make it again";
            Failure::new(Exit::Failed, lost)
        })?;
    }
}

fn copy(data: &Path, to: &Path) -> Result<Value, Failure> {
    let (clock, progress) = (SystemClock, Progress::default());
    let clock: Arc<dyn Clock> = Arc::new(clock);
    let manifest = Store::back_up_stopped(data, to, &clock, &progress)
        .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let mut made = json!(HoldsBody::new(&manifest));
    if let Some(made) = made.as_object_mut() {
        made.insert("to".to_owned(), json!(to));
        made.insert("bytes".to_owned(), json!(manifest.bytes()));
    }
    Ok(made)
}

fn tell(made: &Value, to: &Path, output: &mut Output) -> Result<(), Failure> {
    let (files, bytes) = (cell(made, "files"), cell(made, "bytes"));
    output.line(format!("{files} files, {bytes} bytes in {}", to.display()));
    let list = |name: &str| {
        made.get(name)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    for shard in list("shards") {
        let (name, last) = (cell(&shard, "shard"), cell(&shard, "last_sequence"));
        output.line(match shard.get("last_accepted_at") {
            Some(Value::String(at)) => format!(
                "{name}: up to sequence {last}, accepted {at}; what was accepted later is not in it"
            ),
            _ => format!("{name}: up to sequence {last}"),
        });
    }
    let left_out: Vec<String> = list("left_out").iter().map(|one| one.to_string()).collect();
    if left_out.is_empty() {
        return Ok(());
    }
    let words = "the backup is made, without what the store itself cannot read:";
    Err(Failure::new(
        Exit::Failed,
        format!("{words}\n{}", left_out.join("\n")),
    ))
}
