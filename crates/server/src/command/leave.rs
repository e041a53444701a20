//! How commands leave: a decorator of a destination's sink. Events pass through it untouched. A command is looked at
//! first, in the same change that puts its attempt on record: what was cancelled, expired or halted does not leave,
//! what succeeded is not sent again, and what may have been executed by a target that would do it twice is asked for
//! first. Its outcome is on record before the lane hears of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use wayhold_model::command::{CommandId, SOURCE};
use wayhold_model::{Event, Failure, FailureClass, Outcome, StoredEvent};

use super::desk::CommandDesk;
use super::sendable::Sendable;
use super::track::Begun;
use crate::sink::{Answer, Attempt, BoxFuture, Fate, Finished, Preview, Said, Sink};

/// A target is asked and sent to at most so often within one turn of the lane.
const ROUNDS_MAX: usize = 2;

/// A destination's sink, with its commands on record.
pub struct CommandSink {
    inner: Arc<dyn Sink>,
    desk: CommandDesk,
    runtime: Handle,
    tasks: Mutex<JoinSet<()>>,
}

impl CommandSink {
    /// Decorates a sink. Call it inside a Tokio runtime.
    pub fn around(inner: Arc<dyn Sink>, desk: CommandDesk) -> Arc<dyn Sink> {
        Arc::new(Self {
            inner,
            desk,
            runtime: Handle::current(),
            tasks: Mutex::default(),
        })
    }
}

impl Sink for CommandSink {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        if !attempts.iter().any(is_command) {
            return self.inner.submit(attempts);
        }
        let (commands, mut events): (Vec<_>, Vec<_>) = attempts.drain(..).partition(is_command);
        if !events.is_empty() {
            self.inner.submit(&mut events);
        }
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        for attempt in commands {
            let (desk, inner) = (self.desk.clone(), Arc::clone(&self.inner));
            tasks.spawn_on(leave(desk, inner, attempt), &self.runtime);
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        self.inner.probe()
    }

    fn is_exclusive(&self) -> bool {
        self.inner.is_exclusive()
    }

    fn preview(&self, event: &Event) -> Option<Result<Preview, Failure>> {
        self.inner.preview(event)
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        let mut tasks = {
            let mut held = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *held)
        };
        Box::pin(async move {
            // What the sink itself ends is put on record by these tasks.
            self.inner.stop(grace).await;
            let all_ended = async { while tasks.join_next().await.is_some() {} };
            if tokio::time::timeout(grace, all_ended).await.is_err() {
                tasks.shutdown().await;
            }
        })
    }
}

fn is_command(attempt: &Attempt) -> bool {
    attempt.event.event.source() == SOURCE
}

/// One turn of a command.
async fn leave(desk: CommandDesk, inner: Arc<dyn Sink>, attempt: Attempt) {
    let refused = |reason: &str| Outcome::Refused(Failure::new(FailureClass::Invalid, reason));
    if attempt.replay.is_some() {
        return attempt.finish(refused(
            "a command is done again as a new command, with its own approval: commands replay",
        ));
    }
    let Ok(id) = attempt.event.event.id().parse::<CommandId>() else {
        return attempt.finish(refused("no command has such an id"));
    };
    let mut rounds = 0;
    loop {
        rounds += 1;
        match desk.begin(id, inner.as_ref(), &attempt).await {
            Begun::Ended(outcome) => return attempt.finish(outcome),
            Begun::Withdrawn => {
                let said = Said {
                    withdrawn: true,
                    ..Said::default()
                };
                let outcome = Outcome::NotExecuted(Failure::new(
                    FailureClass::Interrupted,
                    "the command is not wanted any more",
                ));
                return attempt.finish_with(outcome, said);
            }
            Begun::Ask(sendable) => {
                let again = desk.reconcile_on_the_way(id, &sendable, &attempt).await;
                match again {
                    // It was not executed: it is sent now.
                    None if rounds < ROUNDS_MAX => {}
                    None => return attempt.finish(not_now("the target was asked")),
                    Some(outcome) => {
                        return conclude(desk, id, attempt, outcome, Said::default()).await;
                    }
                }
            }
            Begun::Send(sendable) => {
                wayhold_store::failpoint!("commands.attempt-recorded");
                let (outcome, mut said) = send(inner.as_ref(), &sendable, &attempt).await;
                wayhold_store::failpoint!("commands.attempt-answered");
                let answer = said.answer.take().unwrap_or_default();
                if let Err(failure) = desk.finish(id, &sendable, &outcome, &answer).await {
                    // The outcome is not on record, so nobody may rely on it.
                    return attempt.finish(Outcome::Unknown(failure));
                }
                wayhold_store::failpoint!("commands.outcome-recorded");
                return conclude(desk, id, attempt, outcome, said).await;
            }
        }
    }
}

/// Tells the lane, and puts on record what it makes of a failure.
async fn conclude(
    desk: CommandDesk,
    id: CommandId,
    attempt: Attempt,
    outcome: Outcome,
    mut said: Said,
) {
    let Some(reason) = outcome.failure().map(|failure| failure.reason.clone()) else {
        return attempt.finish_with(outcome, said);
    };
    let (tell, fate) = oneshot::channel();
    said.fate = Some(tell);
    attempt.finish_with(outcome, said);
    if fate.await == Ok(Fate::Dead) {
        desk.given_up(id, reason).await;
    }
}

/// Sends once, through the destination's own sink.
async fn send(inner: &dyn Sink, sendable: &Sendable, attempt: &Attempt) -> (Outcome, Said) {
    let (finished, mut ended) = mpsc::channel(1);
    let event = Arc::clone(&sendable.event);
    let number = attempt.number;
    let one = Attempt::new(event, number, attempt.timeout, 0, finished).keeping_answer();
    inner.submit(&mut vec![one]);
    match ended.recv().await {
        Some(Finished { outcome, said, .. }) => (outcome, said),
        None => {
            let failure = Failure::new(FailureClass::Interrupted, "the attempt was abandoned");
            (Outcome::Unknown(failure), Said::default())
        }
    }
}

/// Asks a question through a sink that is made for that, in words that are made of an event.
pub(super) async fn ask_about(
    asks: &dyn Sink,
    event: &Arc<StoredEvent>,
    timeout: Duration,
) -> (Outcome, Answer) {
    let (finished, mut ended) = mpsc::channel(1);
    let event = Arc::clone(event);
    let one = Attempt::new(event, 1, timeout, 0, finished).keeping_answer();
    asks.submit(&mut vec![one]);
    match ended.recv().await {
        Some(Finished { outcome, said, .. }) => (outcome, said.answer.unwrap_or_default()),
        None => {
            let failure = Failure::new(FailureClass::Interrupted, "the question was abandoned");
            (Outcome::Unknown(failure), Answer::default())
        }
    }
}

/// Nothing was sent, and the lane tries again; it says nothing of the destination.
pub(super) fn not_now(reason: &str) -> Outcome {
    Outcome::NotExecuted(Failure::new(FailureClass::Interrupted, reason).of_part())
}
