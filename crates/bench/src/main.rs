//! The command line of the bench.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;
#[cfg(feature = "kafka")]
use wayhold_bench::kafka;
use wayhold_bench::webhook::post;
use wayhold_bench::{BenchError, load, run, serve, store, window};

/// The allocator of the shipped binary, so that all servers here have it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Measures what a durable accept costs, against a bare server and the classic outbox.
#[derive(Parser)]
#[command(name = "wayhold-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts one of the servers; it listens only when it is ready.
    Serve(serve::Args),
    /// Sends events to a server, all of them alike, and prints what it took as one line of JSON.
    Load(load::Args),
    /// Produces to Kafka as a service does that waits for each report, and prints what it took as one
    /// line of JSON.
    #[cfg(feature = "kafka")]
    Produce(kafka::Args),
    /// Posts to a receiver with the HTTP client of webhooks alone, and prints what it took as one line of JSON.
    Post(post::Args),
    /// Measures the store alone and prints what it took as one line of JSON.
    Store(store::Args),
    /// Sets accepting with a long idempotency window in little memory against the ordinary one. As root.
    Window(window::Args),
    /// Runs every comparison in interleaved rounds and prints medians and spreads.
    Run(run::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(args) => serve::main(&args),
        Command::Load(args) => load::main(&args),
        #[cfg(feature = "kafka")]
        Command::Produce(args) => kafka::main(&args),
        Command::Post(args) => post::main(&args),
        Command::Store(args) => store::main(&args),
        Command::Window(args) => window::main(&args),
        Command::Run(args) => run::main(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "a tool of the terminal")]
fn complain(error: &BenchError) {
    eprintln!("wayhold-bench: {error}");
}
