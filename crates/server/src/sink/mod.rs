//! The sink port: what speaks a destination's protocol. One folder per protocol with the same file
//! names: `config`, `request`, `classify`, `sink`.
//!
//! A sink MUST finish every attempt it was given exactly once, as soon as its outcome is known, and
//! must say `Delivered` only on the destination's own positive acknowledgement. It MUST NOT retry,
//! sleep between tries, reorder what it was handed for one ordering key, or touch the store: policy
//! and order belong to dispatch. It SHOULD pipeline attempts. Every implementation runs the suite in
//! `contract`.

pub mod cloudevents;

pub mod file;
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod null;
pub mod wayhold;
pub mod webhook;

mod build;
mod known;
mod meaning;
mod preview;

#[cfg(test)]
pub(crate) mod contract;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::http::HeaderName;
use tokio::sync::{mpsc, oneshot};
use wayhold_model::quota::Quota;
use wayhold_model::{Event, Failure, FailureClass, Outcome, Receipt, StoredEvent, Timestamp};

pub use build::{BuildError, build};
pub use known::Known;
pub use meaning::meaning;
pub use preview::{MASK, Preview};

/// The header of HTTP that tells which replay a request belongs to.
pub const REPLAY_HEADER: HeaderName = HeaderName::from_static("wayhold-replay");

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Speaks one destination's protocol.
pub trait Sink: Send + Sync + 'static {
    /// Begins these attempts, in order, and drains `attempts`. Returns without waiting for the
    /// destination; each attempt is finished later (or here) through `Attempt::finish`. At most the
    /// lane's concurrency is unfinished at any time, and never two of one ordering key unless the
    /// destination's kind or configuration says so: then they come in order, each after the one before, and
    /// `Attempt::is_informed` tells whether the lane knew what became of those.
    fn submit(&self, attempts: &mut Vec<Attempt>);

    /// Checks that the destination can be reached, without delivering anything: what
    /// `destinations test` prints. One sentence either way.
    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>>;

    /// Whether the destination takes one writer at a time: then a newer version of this sink begins only
    /// once the older one was stopped.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// What would be sent for this event, or why nothing can be; `None` where the protocol has no request
    /// to show.
    fn preview(&self, _: &Event) -> Option<Result<Preview, Failure>> {
        None
    }

    /// Lets go of connections and threads within `grace`; unfinished attempts end as `Unknown` or
    /// `NotExecuted`. Nothing is submitted afterwards.
    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()>;
}

/// One try of one delivery. Dropping it unfinished reports `Unknown`, so no delivery is ever forgotten.
#[derive(Debug)]
pub struct Attempt {
    /// The event to send.
    pub event: Arc<StoredEvent>,
    /// Number of the attempt, from 1.
    pub number: u32,
    /// How long the destination may take to answer, from submission.
    pub timeout: Duration,
    known: Option<Known>,
    /// The replay that it is made for; `None` for the event's own delivery. Where the protocol has a place for it,
    /// the destination is told.
    pub replay: Option<u64>,
    /// Whether whoever waits for it wants the answer itself.
    pub keeps_answer: bool,
    done: Option<Done>,
}

#[derive(Debug)]
struct Done {
    token: u64,
    finished: mpsc::Sender<Finished>,
}

/// An attempt that ended.
#[derive(Debug)]
pub struct Finished {
    /// The token given to `Attempt::new`.
    pub token: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What the receiver said besides.
    pub said: Said,
}

/// What a receiver said besides how the attempt ended; mostly nothing.
#[derive(Debug, Default)]
pub struct Said {
    /// Of its quotas.
    pub quotas: Vec<Quota>,
    /// What it calls what it took.
    pub receipt: Option<Receipt>,
    /// How its answer begins, where the attempt asked for that.
    pub answer: Option<Answer>,
    /// Nothing was sent, and nothing ever will be: a stated rule has ended the delivery.
    pub withdrawn: bool,
    /// Whoever wants to know what the lane makes of it.
    pub fate: Option<oneshot::Sender<Fate>>,
}

/// How an answer begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Its first bytes, at most so many as a sink reads.
    pub bytes: Vec<u8>,
    /// Whether there was more.
    pub cut: bool,
}

/// What a lane makes of an attempt's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The delivery is resolved.
    Resolved,
    /// It is tried again, not before this time.
    Again(Timestamp),
    /// It is a dead letter.
    Dead,
}

impl Attempt {
    /// An attempt that reports to `finished`, whose capacity must be at least the number of attempts
    /// ever unfinished at once.
    pub fn new(
        event: Arc<StoredEvent>,
        number: u32,
        timeout: Duration,
        token: u64,
        finished: mpsc::Sender<Finished>,
    ) -> Self {
        Self {
            event,
            number,
            timeout,
            known: None,
            replay: None,
            keeps_answer: false,
            done: Some(Done { token, finished }),
        }
    }

    /// The same of a lane that has several of a key in flight, with what it knows now.
    #[must_use]
    pub fn knowing(mut self, known: &Known) -> Self {
        self.known = Some(known.clone());
        self
    }

    /// Whether its lane had taken every failure that was reported so far when it handed this over. If not, it
    /// may have taken an earlier event of the key for sent that is not.
    pub fn is_informed(&self) -> bool {
        self.known.as_ref().is_none_or(Known::is_whole)
    }

    /// The same, made for a replay.
    #[must_use]
    pub fn of_replay(mut self, replay: u64) -> Self {
        self.replay = Some(replay);
        self
    }

    /// The same, with the answer kept.
    #[must_use]
    pub fn keeping_answer(mut self) -> Self {
        self.keeps_answer = true;
        self
    }

    /// Reports how the attempt ended. Never blocks, callable from any thread.
    pub fn finish(mut self, outcome: Outcome) {
        self.report(outcome, Said::default());
    }

    /// The same, with what the receiver said besides.
    pub fn finish_with(mut self, outcome: Outcome, said: Said) {
        self.report(outcome, said);
    }

    fn report(&mut self, outcome: Outcome, said: Said) {
        if let Some(Done { token, finished }) = self.done.take() {
            if let Some(known) = &self.known {
                known.reports(&outcome);
            }
            // Fails only when the lane is gone, which then re-reads its deliveries from the store.
            drop(finished.try_send(Finished {
                token,
                outcome,
                said,
            }));
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // Nearly always it has ended: then nothing is made up for it.
        if self.done.is_some() {
            let outcome = Outcome::Unknown(match std::thread::panicking() {
                true => Failure::new(FailureClass::Crashed, "handling the event panicked"),
                false => Failure::new(
                    FailureClass::Interrupted,
                    "the attempt was abandoned before it ended",
                ),
            });
            self.report(outcome, Said::default());
        }
    }
}
