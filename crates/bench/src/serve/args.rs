//! Which server, where it listens and where it keeps its data.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::net::TcpListener;

use super::bare;
use crate::BenchError;

/// The one destination of the Wayhold server.
pub const DESTINATION: &str = "sink";

/// Arguments of `serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What stands behind the listener.
    pub kind: Kind,
    /// Where to listen.
    #[arg(long)]
    pub listen: SocketAddr,
    /// The data directory; made when absent.
    #[arg(long)]
    pub data: PathBuf,
    /// Deliver to nothing at once, instead of to a paused destination.
    #[arg(long)]
    pub deliver: bool,
}

/// What stands behind the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    /// Reads the body and answers: what HTTP itself costs here.
    Bare,
    /// Our whole front without a store.
    Noop,
    /// The classic outbox behind our front.
    Classic,
    /// Wayhold with its defaults.
    Wayhold,
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
    runtime.block_on(async {
        match args.kind {
            Kind::Bare => Ok(bare::serve(TcpListener::bind(args.listen).await?).await?),
            Kind::Noop | Kind::Classic | Kind::Wayhold => Err("not built yet".into()),
        }
    })
}
