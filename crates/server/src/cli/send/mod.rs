//! `wayhold send`: events from files. A reader thread turns records into lines and packs them into
//! slices while the slice before is on its way; slices go out one after the other, so events are
//! accepted in the order of the files. Ids come from the records, so after a crash or an interrupted
//! run the same command is simply given again. Modules in suggested reading order.

pub mod template;

pub mod map;

pub mod record;

pub mod envelope;

pub mod slice;

pub mod upload;

mod progress;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use tokio::sync::mpsc;

use super::client::{Client, ServerArguments};
use super::exit::{Exit, Failure};
use super::output::Output;
use map::Map;
use progress::Progress;
use record::{Collected, Format};
use slice::{Refusal, Slice};
use upload::Upload;

/// Slices read ahead of the one being sent: enough to hide the reading, few enough to bound memory.
const SLICES_AHEAD: usize = 2;

/// Refused records that are named one by one; the rest are counted.
const REFUSALS_NAMED_MAX: u64 = 20;

/// Send events from files: CloudEvents, or JSON and CSV by a map. Safe to repeat.
#[derive(Debug, clap::Args)]
pub struct SendFiles {
    /// Files and folders; of a folder, everything below it that ends in .json, .jsonld, .ndjson,
    /// .jsonl or .csv, in order of names.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// TOML file that says where type, source, id, key, subject and time come from (see
    /// examples/maps). Without it the records are CloudEvents.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Read every file in this format, whatever its ending.
    #[arg(long)]
    format: Option<Format>,
    /// Print the events, one per line, and send nothing.
    #[arg(long)]
    dry_run: bool,
    /// Seconds to wait for a server that is away or has no room, before giving up.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    #[command(flatten)]
    server: ServerArguments,
}

impl SendFiles {
    /// Sends every record and reports how many were stored, known before, or refused.
    ///
    /// # Errors
    /// Usage for a map or file that cannot be read, unreachable when the server stays away, failed
    /// when a record was refused.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let map = self.map.as_ref().map(read_map).transpose()?;
        let collected = record::collect(&self.files, self.format)
            .map_err(|error| Failure::usage(error.to_string()))?;
        if collected.files.is_empty() {
            return Err(Failure::usage(
                "nothing to send: no file there ends in .json, .jsonld, .ndjson, .jsonl or .csv",
            ));
        }
        let client = Client::new(&self.server)?;
        let skipped = collected.skipped;
        let bytes = collected.bytes;
        let read = Arc::new(AtomicU64::new(0));
        let (slices, queue) = mpsc::channel(SLICES_AHEAD);
        let reader = {
            let read = Arc::clone(&read);
            tokio::task::spawn_blocking(move || pack(&collected, map.as_ref(), &read, &slices))
        };
        let work = Work {
            read,
            bytes,
            patience: std::time::Duration::from_secs(self.patience),
        };
        let tally = if self.dry_run {
            work.print(queue, output).await?
        } else {
            work.send(queue, client, output).await?
        };
        reader.await.map_err(|error| {
            Failure::new(
                Exit::Failed,
                format!("the reader of the files ended: {error}"),
            )
        })?;
        tally.report(skipped, output)
    }
}

/// Reads every file and hands over slices until nobody takes them.
fn pack(
    collected: &Collected,
    map: Option<&Map>,
    read: &Arc<AtomicU64>,
    slices: &mpsc::Sender<Slice>,
) {
    let mut packer = slice::Packer::new(map, |slice| slices.blocking_send(slice).is_ok());
    for (path, format) in &collected.files {
        if !packer.file(path, *format, read) {
            return;
        }
    }
    packer.finish();
}

fn read_map(path: &PathBuf) -> Result<Map, Failure> {
    let unusable =
        |what: &dyn std::fmt::Display| Failure::usage(format!("--map {}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| unusable(&error))?;
    Map::parse(&text).map_err(|error| unusable(&error))
}

/// What one run works on besides the slices.
struct Work {
    read: Arc<AtomicU64>,
    bytes: u64,
    patience: std::time::Duration,
}

impl Work {
    async fn send(
        &self,
        mut queue: mpsc::Receiver<Slice>,
        client: Client,
        output: &mut Output,
    ) -> Result<Tally, Failure> {
        let mut upload = Upload::new(client, self.patience);
        let mut progress = Progress::new(self.bytes);
        let mut tally = Tally::default();
        while let Some(slice) = queue.recv().await {
            tally.refuse(&slice.refused, &progress, output);
            let sent = upload
                .slice(slice.lines, &mut |why| progress.say(output, why))
                .await?;
            tally.stored += sent.stored;
            tally.duplicates += sent.duplicates;
            tally.refuse(&sent.refused, &progress, output);
            progress.at(self.read.load(Ordering::Relaxed), tally.total(), output);
        }
        progress.finish();
        tally.seconds = Some(progress.elapsed().as_secs_f64());
        Ok(tally)
    }

    async fn print(
        &self,
        mut queue: mpsc::Receiver<Slice>,
        output: &mut Output,
    ) -> Result<Tally, Failure> {
        let progress = Progress::silent();
        let mut tally = Tally::default();
        let mut stdout = std::io::BufWriter::new(std::io::stdout());
        let unwritten = |error| Failure::new(Exit::Failed, format!("standard output: {error}"));
        while let Some(slice) = queue.recv().await {
            tally.refuse(&slice.refused, &progress, output);
            for line in &slice.lines {
                stdout.write_all(&line.text).map_err(unwritten)?;
                stdout.write_all(b"\n").map_err(unwritten)?;
            }
            tally.stored += slice.lines.len() as u64;
        }
        stdout.flush().map_err(unwritten)?;
        Ok(tally)
    }
}

/// What became of the records.
#[derive(Debug, Default)]
struct Tally {
    stored: u64,
    duplicates: u64,
    refused: u64,
    /// How long sending took; `None` when nothing was sent.
    seconds: Option<f64>,
}

impl Tally {
    fn total(&self) -> u64 {
        self.stored + self.duplicates + self.refused
    }

    fn refuse(&mut self, refusals: &[Refusal], progress: &Progress, output: &mut Output) {
        for refusal in refusals {
            self.refused += 1;
            if self.refused <= REFUSALS_NAMED_MAX {
                progress.say(output, &format!("{}: {}", refusal.origin, refusal.reason));
            }
        }
    }

    fn report(&self, skipped: u64, output: &mut Output) -> Result<(), Failure> {
        if skipped > 0 {
            output.note(format!(
                "left out {skipped} files whose ending names no format"
            ));
        }
        if let Some(seconds) = self.seconds {
            output.line(format!(
                "{} events sent in {seconds:.1} s: {} stored, {} known before, {} refused",
                self.total(),
                self.stored,
                self.duplicates,
                self.refused
            ));
            output.json(&json!({
                "stored": self.stored, "duplicates": self.duplicates, "refused": self.refused,
                "seconds": seconds,
            }));
        }
        match self.refused {
            0 => Ok(()),
            refused => Err(Failure::new(
                Exit::Failed,
                format!("{refused} of {} records were refused", self.total()),
            )),
        }
    }
}
