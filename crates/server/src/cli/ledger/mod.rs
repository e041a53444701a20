//! `wayhold ledger`: the record of commands and decisions, shown, exported and checked.

mod export;
mod prove;
mod show;
mod verify;

use clap::Subcommand;

use super::block_on;
use super::exit::Failure;
use super::output::Output;

/// The record of commands and decisions, which can be proven unchanged.
#[derive(Debug, clap::Args)]
pub struct Ledger {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Show(show::Show),
    Export(export::Export),
    Prove(prove::Prove),
    Verify(verify::Verify),
}

impl Ledger {
    /// Carries out the verb.
    ///
    /// # Errors
    /// What the verb answers.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self.verb {
            Verb::Show(show) => block_on(show.run(output)),
            Verb::Export(export) => block_on(export.run(output)),
            Verb::Prove(prove) => block_on(prove.run(output)),
            Verb::Verify(verify) => verify.run(output),
        }
    }
}
