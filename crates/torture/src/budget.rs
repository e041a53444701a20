//! How much is tried.

use std::time::{Duration, Instant};

use clap::Args;

/// What every kind is asked with.
#[derive(Clone, Debug, Args)]
pub struct Budget {
    /// How many cases are tried: points, faults, cuts or kills.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,

    /// Begins no further episode after this many minutes.
    #[arg(long, value_name = "M")]
    pub minutes: Option<u64>,

    /// Seed of the first episode; the next ones count up from it.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,

    /// Runs with a planted fault, which must be found: exit code 1.
    #[arg(long)]
    pub control: bool,
}

impl Budget {
    /// So many cases, from the first seed on, for as long as they take.
    pub fn of(count: u64) -> Self {
        Self {
            count: Some(count),
            minutes: None,
            seed: 1,
            control: false,
        }
    }

    /// When no further episode begins.
    pub fn deadline(&self) -> Option<Instant> {
        let minutes = self.minutes?;
        Instant::now().checked_add(Duration::from_secs(minutes.saturating_mul(60)))
    }
}
