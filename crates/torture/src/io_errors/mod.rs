//! The n-th call to the disk fails.

use clap::Args;

use crate::{Budget, Verdict};

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Verdict {
    let _budget = &arguments.budget;
    Verdict::Invalid("this build has no workload for it".to_owned())
}
