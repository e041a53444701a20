//! `wayhold-torture KIND`: tries by force whether the promises hold.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use wayhold_torture::{
    Verdict, commands, crash_points, io_errors, kill, model, mutants, outbox_table, power_cut,
    reshard,
};

/// Tries by force whether the promises hold. Exit code 0: they held; 1: one broke (as it must under
/// `--control`); 2: it could not be told.
#[derive(Debug, Parser)]
#[command(name = "wayhold-torture", version)]
struct Arguments {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Commands go through kills and a target that fails, each executed exactly once.
    Commands(commands::Arguments),
    /// The power fails at each call that changes the disk, under every fate of what was not synced.
    CrashPoints(crash_points::Arguments),
    /// The n-th call to the disk fails.
    IoErrors(io_errors::Arguments),
    /// `kill -9` with many requests in flight.
    Kill(kill::Arguments),
    /// Random sequences of operations against a small reference.
    Model(model::Arguments),
    /// Planted product faults, each of which some harness must find.
    Mutants(mutants::Arguments),
    /// Rows of an outbox table are read while reader, database and the link between them fail.
    OutboxTable(outbox_table::Arguments),
    /// The power of the machine fails under load, on a real filesystem.
    PowerCut(power_cut::Arguments),
    /// The number of shards changes under load, with kills.
    Reshard(reshard::Arguments),
}

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return std::process::Termination::report(wayhold::cli::run());
    }
    let verdict = match Arguments::parse().kind {
        Kind::Commands(arguments) => commands::run(&arguments),
        Kind::CrashPoints(arguments) => crash_points::run(&arguments),
        Kind::IoErrors(arguments) => io_errors::run(&arguments),
        Kind::Kill(arguments) => kill::run(&arguments),
        Kind::Model(arguments) => model::run(&arguments),
        Kind::Mutants(arguments) => mutants::run(&arguments),
        Kind::OutboxTable(arguments) => outbox_table::run(&arguments),
        Kind::PowerCut(arguments) => power_cut::run(&arguments),
        Kind::Reshard(arguments) => reshard::run(&arguments),
    };
    match &verdict {
        Verdict::Held => {}
        Verdict::Broken(what) => eprintln!("broken: {what}"),
        Verdict::Invalid(why) => eprintln!("invalid: {why}"),
    }
    verdict.exit_code()
}
