//! Which server, where it listens and where it keeps its data.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use hyper::StatusCode;
use tokio::net::TcpListener;

use super::bare;
use super::classic::Outbox;
use super::front;
use super::keepers::{Classic, Nothing};
use super::settings::settings;
use super::wayhold::{self, Beginning};
use crate::BenchError;
use crate::webhook::receiver;

/// Arguments of `serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What stands behind the listener.
    pub kind: Kind,
    /// Where to listen.
    #[arg(long)]
    pub listen: SocketAddr,
    /// A folder for its data; made when absent.
    #[arg(long)]
    pub data: PathBuf,
    /// Wayhold delivers to nothing at once, instead of holding all for a paused destination.
    #[arg(long)]
    pub deliver: bool,
    /// Wayhold's destination is a topic of this Kafka (`host:port`) instead of nothing.
    #[cfg(feature = "kafka")]
    #[arg(long, requires = "topic")]
    pub kafka: Option<String>,
    /// The topic of `--kafka`.
    #[cfg(feature = "kafka")]
    #[arg(long, requires = "kafka")]
    pub topic: Option<String>,
    /// Wayhold's destination is this webhook instead of nothing.
    #[arg(long)]
    pub webhook: Option<String>,
    /// Attempts that may start in a time at `--webhook`, such as `100/s`.
    #[arg(long, requires = "webhook")]
    pub rate: Option<String>,
    /// What fails at `--webhook` waits for an hour, and everything else is tried all the same.
    #[arg(long, requires = "webhook")]
    pub patient: bool,
    /// So many destinations at `--webhook` instead of one, each with a key of its own.
    #[arg(long, requires = "webhook")]
    pub crowd: Option<u64>,
    /// So many of the crowd are bad.
    #[arg(long, default_value_t = 0)]
    pub bad: u64,
    /// Wayhold's destination is one where nobody listens, and takes commands of this kind without anybody's word.
    #[arg(long, conflicts_with = "webhook")]
    pub commands: Option<String>,
    /// Wayhold reads the table `outboxevent` of the database whose URL this file holds.
    #[arg(long)]
    pub outbox: Option<PathBuf>,
    /// What the receiver answers.
    #[arg(long, default_value_t = 204)]
    pub status: u16,
    /// Wayhold keeps this much of what was delivered, instead of what it keeps by default.
    #[arg(long)]
    pub retention_bytes: Option<u64>,
    /// Wayhold's store has this many shards instead of as many as suit the machine.
    #[arg(long)]
    pub shards: Option<u16>,
    /// Wayhold's idempotency window begins with this many ids instead of full.
    #[arg(long)]
    pub window_ids: Option<u64>,
    /// Wayhold's idempotency window takes this many ids instead of the usual number.
    #[arg(long)]
    pub window_reach: Option<u64>,
}

/// What stands behind the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Reads the body and answers: what HTTP itself costs here.
    Bare,
    /// Our whole front without a store.
    Noop,
    /// The classic outbox behind our front.
    Classic,
    /// Wayhold with its defaults and a full idempotency window.
    Wayhold,
    /// The other end of a webhook.
    Receiver,
}

/// Runs one server until it is told to stop.
///
/// # Errors
/// When it cannot listen or open its data.
pub fn main(args: &Args) -> Result<(), BenchError> {
    std::fs::create_dir_all(&args.data)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<(), BenchError> {
    match args.kind {
        Kind::Bare => Ok(bare::serve(TcpListener::bind(args.listen).await?).await?),
        Kind::Receiver => {
            let status = StatusCode::from_u16(args.status)?;
            Ok(receiver::serve(TcpListener::bind(args.listen).await?, status).await?)
        }
        Kind::Noop => front::serve(&settings(args)?.config, Arc::new(Nothing::default())).await,
        Kind::Classic => {
            let outbox = Classic::new(Outbox::open(&args.data)?);
            front::serve(&settings(args)?.config, Arc::new(outbox)).await
        }
        Kind::Wayhold => {
            let beginning = Beginning {
                deliver: args.deliver,
                window_ids: args.window_ids,
            };
            wayhold::serve(settings(args)?, beginning).await
        }
    }
}
