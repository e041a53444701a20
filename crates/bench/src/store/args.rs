//! What the harness does and under which options of the store.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use wayhold_store::Options;

use super::{append, backlog};
use crate::BenchError;

/// Arguments of `store`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    pub scenario: Scenario,
}

/// What to measure.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Scenario {
    /// Callers append in a closed loop, or at a fixed rate.
    Append(AppendArgs),
    /// Fills a backlog, stops, opens again and drains it.
    Backlog(BacklogArgs),
}

/// Arguments of `store append`.
#[derive(Clone, Debug, clap::Args)]
pub struct AppendArgs {
    #[command(flatten)]
    pub layout: Layout,
    /// What stores.
    #[arg(long, value_enum, default_value_t = Kind::Wayhold)]
    pub engine: Kind,
    /// Tasks that append, each waiting for its receipt.
    #[arg(long, default_value_t = 256)]
    pub callers: usize,
    /// Events in one call.
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// Calls per second of all callers together, whatever the store does; none is as fast as it can.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Time before measuring starts.
    #[arg(long, default_value_t = 0.5)]
    pub warmup: f64,
    /// Time of measuring.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// A consumer settles what is stored, so that segments come and go.
    #[arg(long)]
    pub consume: bool,
}

/// Arguments of `store backlog`.
#[derive(Clone, Debug, clap::Args)]
pub struct BacklogArgs {
    #[command(flatten)]
    pub layout: Layout,
    /// Events that wait before the drain.
    #[arg(long, default_value_t = 1_000_000)]
    pub events: u64,
    /// Events in one call of the 16 tasks that fill it.
    #[arg(long, default_value_t = 100)]
    pub batch: usize,
}

/// Options of the store that are up for choice; each default is the store's own.
#[derive(Clone, Debug, clap::Args)]
pub struct Layout {
    /// The data directory; made when absent.
    #[arg(long)]
    pub data: PathBuf,
    /// Shards of the data directory, where it is made now.
    #[arg(long)]
    pub shards: Option<u16>,
    /// Page size of segment files.
    #[arg(long)]
    pub page_size: Option<u32>,
    /// Most bytes of one commit.
    #[arg(long)]
    pub group_bytes: Option<usize>,
    /// Bytes of WAL at which a segment ends.
    #[arg(long)]
    pub segment_bytes: Option<u64>,
    /// Milliseconds between two syncs of the mark.
    #[arg(long)]
    pub mark_sync_ms: Option<u64>,
}

/// What stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// The store of Wayhold.
    Wayhold,
    /// The classic outbox.
    Classic,
}

impl Layout {
    /// The store's options with what was chosen here.
    pub fn options(&self) -> Options {
        let default = Options::default();
        Options {
            shards: self.shards.unwrap_or(default.shards),
            page_size: self.page_size.unwrap_or(default.page_size),
            group_bytes: self.group_bytes.unwrap_or(default.group_bytes),
            segment_bytes: self.segment_bytes.unwrap_or(default.segment_bytes),
            mark_sync: self
                .mark_sync_ms
                .map_or(default.mark_sync, Duration::from_millis),
            ..default
        }
    }
}

/// Runs one scenario and prints its report as one line of JSON.
///
/// # Errors
/// When the store refuses.
pub fn main(args: &Args) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match &args.scenario {
        Scenario::Append(args) => print_line(&runtime.block_on(append::run(args))?),
        Scenario::Backlog(args) => print_line(&runtime.block_on(backlog::run(args))?),
    }
}

#[expect(clippy::print_stdout, reason = "the report is the output")]
fn print_line(report: &impl Serialize) -> Result<(), BenchError> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}
