//! How fast a replay goes: an estimate for who waits for its end.

use std::time::Duration;

use tokio::time::Instant;

/// Counts what is resolved, by spans of a few seconds.
#[derive(Debug, Default)]
pub(super) struct Speed {
    began: Option<Instant>,
    count: u64,
    before: f64,
}

impl Speed {
    const SPAN: Duration = Duration::from_secs(5);

    /// An event was resolved.
    pub(super) fn resolved(&mut self, now: Instant) {
        self.turn(now);
        self.count += 1;
    }

    /// Begins a new span where the last one is over.
    fn turn(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let took = now.saturating_duration_since(began);
        if took >= Self::SPAN {
            self.before = self.rate(took);
            self.count = 0;
            self.began = Some(now);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn rate(&self, took: Duration) -> f64 {
        self.count as f64 / took.as_secs_f64().max(0.001)
    }

    /// Events a second.
    pub(super) fn per_second(&mut self, now: Instant) -> f64 {
        self.turn(now);
        let took = self
            .began
            .map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        match took >= Duration::from_secs(1) {
            true => self.rate(took),
            false => self.before,
        }
    }
}
