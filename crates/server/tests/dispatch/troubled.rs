//! A sink in front of another one that fails by chance: it does not hand an attempt on, or hands it on and loses the
//! answer that it arrived. So every kind of sink meets both, whatever stands behind it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use wayhold::clock::Entropy as _;
use wayhold::sink::{Attempt, BoxFuture, Finished, Sink};
use wayhold_model::{Failure, FailureClass, Outcome};

use crate::hand::Seeded;

/// Of so many attempts one is not handed on, and of one the answer is lost.
const ONE_IN: u64 = 12;

/// Most attempts of a lane at once.
const WINDOW: usize = 1_024;

pub(crate) struct Troubled {
    inner: Arc<dyn Sink>,
    random: Arc<Seeded>,
    counts: Arc<Counts>,
    open: Arc<Mutex<HashMap<u64, (Attempt, bool)>>>,
    tokens: AtomicU64,
    ended: mpsc::Sender<Finished>,
}

/// What it did.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Attempts that were not handed on.
    pub(crate) kept_back: AtomicU64,
    /// Answers that something had arrived, and that were lost.
    pub(crate) lost: AtomicU64,
}

impl Troubled {
    pub(crate) fn before(inner: Arc<dyn Sink>) -> (Arc<Self>, Arc<Counts>) {
        let (ended, mut answers) = mpsc::channel::<Finished>(WINDOW);
        let counts = Arc::<Counts>::default();
        let open = Arc::<Mutex<HashMap<u64, (Attempt, bool)>>>::default();
        let (told, waiting) = (Arc::clone(&counts), Arc::clone(&open));
        tokio::spawn(async move {
            while let Some(Finished {
                token,
                outcome,
                said,
            }) = answers.recv().await
            {
                let attempt = waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(&token);
                let (attempt, is_lost) = attempt.expect("each ends once");
                if is_lost && outcome == Outcome::Delivered {
                    told.lost.fetch_add(1, Ordering::Relaxed);
                    attempt.finish(Outcome::Unknown(Failure::new(
                        FailureClass::ConnectionLost,
                        "the answer was lost",
                    )));
                } else {
                    attempt.finish_with(outcome, said);
                }
            }
        });
        let sink = Arc::new(Self {
            inner,
            random: Seeded::new(3),
            counts: Arc::clone(&counts),
            open,
            tokens: AtomicU64::new(0),
            ended,
        });
        (sink, counts)
    }
}

impl Sink for Troubled {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        let mut handed = Vec::with_capacity(attempts.len());
        for attempt in attempts.drain(..) {
            let chance = self.random.next() % ONE_IN;
            if chance == 0 {
                self.counts.kept_back.fetch_add(1, Ordering::Relaxed);
                attempt.finish(Outcome::NotExecuted(Failure::new(
                    FailureClass::Unavailable,
                    "not now",
                )));
                continue;
            }
            let token = self.tokens.fetch_add(1, Ordering::Relaxed);
            handed.push(Attempt::new(
                Arc::clone(&attempt.event),
                attempt.number,
                attempt.timeout,
                token,
                self.ended.clone(),
            ));
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.insert(token, (attempt, chance == 1));
        }
        self.inner.submit(&mut handed);
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        self.inner.probe()
    }

    fn is_exclusive(&self) -> bool {
        self.inner.is_exclusive()
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        self.inner.stop(grace)
    }
}
