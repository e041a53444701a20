//! How long and how much.

/// Lengths of one comparison.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Seconds before each measurement, and of it.
    pub warmup: f64,
    pub seconds: f64,
    /// Pending events before a drain.
    pub backlog: u64,
    /// The same of the classic outbox, which drains one row a transaction.
    pub backlog_classic: u64,
}

impl Plan {
    /// For figures.
    pub fn full(rounds: usize) -> Self {
        Self {
            rounds,
            warmup: 1.0,
            seconds: 3.0,
            backlog: 1_000_000,
            backlog_classic: 40_000,
        }
    }

    /// For showing that everything runs.
    pub fn smoke() -> Self {
        Self {
            rounds: 1,
            warmup: 0.2,
            seconds: 0.5,
            backlog: 20_000,
            backlog_classic: 2_000,
        }
    }
}
