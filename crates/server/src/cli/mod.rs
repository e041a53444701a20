//! The command line: noun then verb; alone only what is not about a thing. One file per noun. Results
//! go to standard output (with `--json` as JSON and nothing else there), everything else to standard
//! error. Modules in suggested reading order.

pub mod client;
pub mod exit;
pub mod output;
pub mod paging;
pub mod process;
pub mod rehearsal;
pub mod reload_signal;
pub mod stop_signal;

pub mod approvals;
pub mod audit;
pub mod bench;
pub mod brake;
pub mod commands;
pub mod config;
pub mod dead_letters;
pub mod demo;
pub mod destinations;
pub mod drill;
pub mod events;
pub mod evidence;
pub mod health;
pub mod ledger;
pub mod many_approvals;
pub mod outbox_table;
pub mod replays;
pub mod send;
pub mod serve;
pub mod shards;
pub mod sources;
pub mod status;
pub mod store;
pub mod tokens;

use clap::{Parser, Subcommand};

use exit::{Exit, Failure};
use output::Output;

/// Holds your events safe until they arrive.
#[derive(Debug, Parser)]
#[command(
    name = "wayhold",
    version,
    about,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Arguments {
    /// Print the result as JSON on standard output.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Status(status::Status),
    Health(health::Health),
    Where(events::Where),
    Events(events::Events),
    Destinations(destinations::Destinations),
    #[command(alias = "dlq")]
    DeadLetters(dead_letters::DeadLetters),
    Replays(replays::Replays),
    Shards(shards::Shards),
    Sources(sources::Sources),
    Tokens(tokens::Tokens),
    Audit(audit::Audit),
    Commands(commands::Commands),
    Approvals(approvals::Approvals),
    Ledger(ledger::Ledger),
    #[command(subcommand)]
    Config(config::Config),
    Store(store::Store),
    Send(send::SendFiles),
    Demo(demo::Demo),
    Drill(drill::Drill),
    Bench(bench::Bench),
    OutboxTable(outbox_table::OutboxTable),
}

impl Command {
    fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Self::Config(config) => config.run(output),
            Self::Serve(serve) => serve.run(output),
            Self::Bench(bench) => bench.run(output),
            Self::Drill(drill) => drill.run(output),
            Self::Store(store) => store.run(output),
            Self::OutboxTable(table) => table.run(output),
            Self::Ledger(ledger) => ledger.run(output),
            Self::Status(status) => block_on(status.run(output)),
            Self::Health(health) => block_on(health.run(output)),
            Self::Where(r#where) => block_on(r#where.run(output)),
            Self::Events(events) => block_on(events.run(output)),
            Self::Destinations(destinations) => block_on(destinations.run(output)),
            Self::DeadLetters(dead_letters) => block_on(dead_letters.run(output)),
            Self::Replays(replays) => block_on(replays.run(output)),
            Self::Sources(sources) => block_on(sources.run(output)),
            Self::Shards(shards) => block_on(shards.run(output)),
            Self::Tokens(tokens) => block_on(tokens.run(output)),
            Self::Audit(audit) => block_on(audit.run(output)),
            Self::Commands(commands) => block_on(commands.run(output)),
            Self::Approvals(approvals) => block_on(approvals.run(output)),
            Self::Send(send) => block_on(send.run(output)),
            Self::Demo(demo) => block_on(demo.run(output)),
        }
    }
}

/// Runs the command that the process was started with.
pub fn run() -> Exit {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version come as errors too; clap knows which stream each belongs to.
            let code = if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Done
            };
            return if error.print().is_ok() {
                code
            } else {
                Exit::Failed
            };
        }
    };
    let mut output = Output::new(arguments.json);
    match arguments.command.run(&mut output) {
        Ok(()) => Exit::Done,
        Err(failure) => {
            output.failure(&failure);
            failure.exit
        }
    }
}

/// Runs a command's future to its end on this thread.
///
/// # Errors
/// When the future fails, or the operating system has no room for a runtime.
pub fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start a runtime: {error}")))?
        .block_on(future)
}
