//! Rules at work: a sink of its own kind, to which events are delivered that a rule may want, and which proposes what
//! the rules make of them. An event counts as delivered once everything that came of it is on the disk, so that a
//! crash in between proposes it again, under the same ids, and nothing new.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use wayhold_model::ledger::{Actor, ActorKind};
use wayhold_model::rule::{Rule, Wanted};
use wayhold_model::{Clock, Event, Failure, FailureClass, Outcome};
use wayhold_store::CommandsError;

use super::desk::{CommandDesk, CommandError};
use super::leave::CommandSink;
use super::proposal::{EventRef, Proposal, Rationale, Trigger};
use super::propose::Proposer;
use crate::config::{DestinationConfig, SinkConfig};
use crate::sink::{self, Attempt, BoxFuture, BuildError, Sink};

/// What speaks to a destination: the rules to theirs, to every other its own sink, with commands on record. Call it
/// inside a Tokio runtime.
///
/// # Errors
/// As of [`sink::build`].
pub fn sink_of(
    destination: &DestinationConfig,
    rules: &Arc<[Rule]>,
    clock: &Arc<dyn Clock>,
    desk: &CommandDesk,
) -> Result<Arc<dyn Sink>, BuildError> {
    if matches!(destination.sink, SinkConfig::Rules) {
        let (rules, desk) = (Arc::clone(rules), desk.clone());
        return Ok(Arc::new(RulesSink::new(rules, desk)));
    }
    let sink = sink::build(destination, clock)?;
    Ok(CommandSink::around(sink, desk.clone()))
}

/// What proposes.
pub struct RulesSink {
    rules: Arc<[Rule]>,
    desk: CommandDesk,
    runtime: Handle,
    tasks: Mutex<JoinSet<()>>,
}

impl RulesSink {
    /// A sink for these rules. Call it inside a Tokio runtime.
    pub fn new(rules: Arc<[Rule]>, desk: CommandDesk) -> Self {
        Self {
            rules,
            desk,
            runtime: Handle::current(),
            tasks: Mutex::default(),
        }
    }
}

impl Sink for RulesSink {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        for attempt in attempts.drain(..) {
            let (rules, desk) = (Arc::clone(&self.rules), self.desk.clone());
            let turn = async move {
                let outcome = propose_all(&rules, &desk, &attempt.event.event).await;
                attempt.finish(outcome);
            };
            tasks.spawn_on(turn, &self.runtime);
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        let rules = self.rules.len();
        Box::pin(async move { Ok(format!("{rules} rules propose commands")) })
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        let mut tasks = {
            let mut held = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *held)
        };
        Box::pin(async move {
            let all_ended = async { while tasks.join_next().await.is_some() {} };
            if tokio::time::timeout(grace, all_ended).await.is_err() {
                tasks.shutdown().await;
            }
        })
    }
}

/// Proposes what every rule makes of an event, in the order of their names. What was proposed before is known again
/// by its id.
async fn propose_all(rules: &[Rule], desk: &CommandDesk, event: &Event) -> Outcome {
    for rule in rules {
        let wanted = match rule.propose(event) {
            Ok(Some(wanted)) => wanted,
            Ok(None) => continue,
            Err(unfit) => return refused(rule, &unfit.to_string()),
        };
        let by = Proposer {
            actor: actor_of(rule, &wanted),
            labels: Vec::new(),
        };
        let id = wanted.id;
        match desk
            .propose(&by, proposal_of(rule, wanted, event), None)
            .await
        {
            // One of that id with other content came of an earlier version of the rule: it stands.
            Ok(_) | Err(CommandError::Exists { .. }) => {
                tracing::debug!(rule = rule.name, %id, "a rule proposed a command");
            }
            Err(error) => return outcome_of(rule, &error),
        }
    }
    Outcome::Delivered
}

fn actor_of(rule: &Rule, wanted: &Wanted) -> Actor {
    Actor {
        kind: ActorKind::Rule,
        id: rule.name.clone(),
        on_behalf_of: wanted.on_behalf_of.clone(),
        auth: None,
    }
}

fn proposal_of(rule: &Rule, wanted: Wanted, event: &Event) -> Proposal {
    Proposal {
        id: Some(wanted.id),
        on_behalf_of: wanted.on_behalf_of,
        rationale: wanted.rationale.map(Rationale::Summary),
        trigger: Trigger {
            events: vec![EventRef {
                source: event.source().to_owned(),
                id: event.id().to_owned(),
            }],
        },
        ..Proposal::of(rule.propose.clone(), wanted.arguments)
    }
}

/// What the lane does with it: what cannot be proposed as it is becomes a dead letter, everything else comes again.
fn outcome_of(rule: &Rule, error: &CommandError) -> Outcome {
    match error {
        CommandError::Invalid(_)
        | CommandError::Arguments { .. }
        | CommandError::NoSuchKind { .. }
        | CommandError::NotFound { .. }
        | CommandError::OtherBody
        | CommandError::WrongState { .. }
        | CommandError::Store(CommandsError::Unfit { .. }) => refused(rule, &error.to_string()),
        CommandError::KeyInUse
        | CommandError::Exists { .. }
        | CommandError::NoSpace
        | CommandError::Closed(_)
        | CommandError::Store(
            CommandsError::Busy
            | CommandsError::NoSpace
            | CommandsError::Closed { .. }
            | CommandsError::Stopping,
        ) => Outcome::NotExecuted(Failure::new(FailureClass::Unavailable, error.to_string())),
    }
}

fn refused(rule: &Rule, why: &str) -> Outcome {
    let reason = format!("rules.{}: {why}", rule.name);
    Outcome::Refused(Failure::new(FailureClass::Invalid, reason))
}
