//! The hand-over: a command that is ready becomes an event with source `/commands` and its own id, owed to its
//! destination alone. Idempotent acceptance makes that happen once: what a crash leaves unmarked is handed over again
//! and found stored.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};
use wayhold_model::command::{CommandId, SOURCE, State};
use wayhold_model::{DestinationId, DestinationSet, Event, EventParts, InvalidEvent, Timestamp};
use wayhold_store::commands::{Command, Fresh, Transition, View};
use wayhold_store::{AppendError, Commands, CommandsError, NewEvent};

use super::desk::{CommandDesk, CommandError};
use super::gate::may_leave;
use super::records::{moved, ourselves};

/// Commands handed over together: one group of a shard, and memory for as many arguments.
const BATCH: u16 = 256;

/// How long others are gathered after some were handed over: one sync of the outbox then serves many, and a command that
/// comes alone does not wait.
const GATHER: Duration = Duration::from_millis(10);

/// How often commands are looked at that wait for a time or for others.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A failure is told once in so many looks.
const TOLD_EVERY: u32 = 40;

/// What is done about a ready command now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is handed over.
    Now,
    /// It waits: for its time, for others, or because it is halted.
    Later,
    /// It never can be: what it needs will not come.
    Never(String),
}

/// Decides what is done about a ready command, by where those stand that it needs.
pub fn turn_of(command: &Command, needs: &[(CommandId, Option<State>)], now: Timestamp) -> Turn {
    let mut turn = Turn::Now;
    for (id, state) in needs {
        match state {
            Some(State::Succeeded) => {}
            // A person may still have a dead one done.
            Some(
                State::Accepted
                | State::PendingApproval
                | State::Ready
                | State::Sending
                | State::RetryWait
                | State::Unknown
                | State::Reconciling
                | State::Dead,
            ) => turn = Turn::Later,
            Some(state) => return Turn::Never(format!("it needs {id}, which is {}", state.name())),
            None => return Turn::Never(format!("it needs {id}, which is not there")),
        }
    }
    match command.not_before {
        Some(at) if at > now => Turn::Later,
        _ => turn,
    }
}

/// The event that a command is in the outbox.
///
/// # Errors
/// Its words cannot be those of an event, which its bounds exclude.
pub fn event_of(command: &Command, arguments: &str) -> Result<Event, InvalidEvent> {
    let (id, time) = (command.new.id.to_string(), command.proposed_at.to_string());
    Event::new(&EventParts {
        id: &id,
        source: SOURCE,
        kind: &command.new.kind,
        subject: &id,
        time: &time,
        content_type: "application/json",
        key: command.new.order_key.as_deref().unwrap_or_default(),
        data: arguments.to_owned().into(),
        ..EventParts::default()
    })
}

/// What whoever hands over knows of the commands that are ready.
#[derive(Debug, Default)]
struct Known {
    /// The last one that came from memory or was looked at in the file: those before it that are not handed over wait.
    last: u64,
    /// What is looked at in the file.
    look: Look,
}

/// Which commands are looked at in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Look {
    /// None: what is ready is in memory, and it is not the time for those that wait.
    Nothing,
    /// Those that wait for a time or for others.
    Waiting,
    /// All.
    #[default]
    All,
}

impl Known {
    /// Takes what became ready and was not looked at in the file already; nothing where all of that is to be looked at, so
    /// that all goes in the order in which it was proposed.
    fn take(&mut self, fresh: Fresh) -> Vec<Arc<Command>> {
        self.look = self.look.max(match (fresh.has_others, fresh.has_ended) {
            (true, _) => Look::All,
            (false, true) => Look::Waiting,
            (false, false) => Look::Nothing,
        });
        if self.look == Look::All {
            return Vec::new();
        }
        let mut commands = fresh.commands;
        commands.retain(|command| command.number > self.last);
        if let Some(newest) = commands.last() {
            self.last = newest.number;
        }
        commands
    }
}

impl CommandDesk {
    /// Hands over what is ready until `stop` says so.
    pub async fn hand_over(self, mut stop: watch::Receiver<bool>) {
        let Ok(commands) = self.commands().cloned() else {
            return;
        };
        let mut ready = commands.ready();
        let mut waiting = interval(LOOK_EVERY);
        waiting.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failures: u32 = 0;
        let mut known = Known::default();
        loop {
            ready.mark_unchanged();
            match self.hand_over_all(&commands, &mut known).await {
                Ok(any) => {
                    failures = 0;
                    if any {
                        sleep(GATHER).await;
                    }
                }
                Err(error) => {
                    if failures.is_multiple_of(TOLD_EVERY) {
                        warn!(%error, "commands are not handed over; trying again");
                    }
                    failures += 1;
                    // Those that were in hand are in the file.
                    known.look = Look::All;
                    sleep(LOOK_EVERY).await;
                }
            }
            tokio::select! {
                _ = stop.changed() => return,
                changed = ready.changed() => if changed.is_err() { return },
                _ = waiting.tick() => known.look = Look::Waiting.max(known.look),
            }
            if *stop.borrow() {
                return;
            }
        }
    }

    /// Hands over everything that is due; whether there was any.
    async fn hand_over_all(
        &self,
        commands: &Commands,
        known: &mut Known,
    ) -> Result<bool, CommandError> {
        let mut fresh = known.take(commands.take_fresh());
        let mut any = false;
        while !fresh.is_empty() {
            let rest = fresh.split_off(fresh.len().min(usize::from(BATCH)));
            let batch = std::mem::replace(&mut fresh, rest);
            let batch = self.look(move |view| turns_of_fresh(view, batch));
            any |= self.hand_over_batch(batch.await?).await?;
        }
        any |= match known.look {
            Look::Nothing => false,
            Look::Waiting => self.hand_over_what_is_kept(known.last).await?.1,
            Look::All => {
                let (last, found) = self.hand_over_what_is_kept(u64::MAX).await?;
                known.last = known.last.max(last);
                found
            }
        };
        known.look = Look::Nothing;
        Ok(any)
    }

    /// Hands over what is due in the file, up to a number; the last that was looked at, and whether there was any.
    async fn hand_over_what_is_kept(&self, to: u64) -> Result<(u64, bool), CommandError> {
        let (mut from, mut any) = (0, false);
        loop {
            let now = self.0.clock.now();
            let batch = self.look(move |view| {
                let mut batch = Vec::new();
                let nothing_halted = view.halts()?.is_empty();
                for command in view.to_hand_over((from, to), u32::from(BATCH))? {
                    let needs = view.needs(command.new.id)?;
                    let turn = match nothing_halted || may_leave(view, &command)?.is_none() {
                        true => turn_of(&command, &needs, now),
                        false => Turn::Later,
                    };
                    batch.push((Arc::new(command), turn));
                }
                Ok(batch)
            });
            let batch = batch.await?;
            let Some((last, _)) = batch.last() else {
                return Ok((from, any));
            };
            from = last.number;
            any |= self.hand_over_batch(batch).await?;
        }
    }

    async fn hand_over_batch(
        &self,
        batch: Vec<(Arc<Command>, Turn)>,
    ) -> Result<bool, CommandError> {
        let mut events = Vec::new();
        let mut numbers = Vec::new();
        let known = self.0.store.catalog().destinations();
        let destination = |name: &str| {
            let found = known.iter().find(|record| record.name == name);
            found.map(|record| record.id)
        };
        for (command, turn) in batch {
            let id = command.new.id;
            match turn {
                Turn::Later => {}
                Turn::Never(reason) => self.give_up_unsent(id, reason).await?,
                Turn::Now => match new_event(&command, &destination) {
                    Some(event) => {
                        events.push(event);
                        numbers.push(command.number);
                    }
                    None => {
                        let reason = "its destination is not known any more".to_owned();
                        self.give_up_unsent(id, reason).await?;
                    }
                },
            }
        }
        if events.is_empty() {
            return Ok(false);
        }
        wayhold_store::failpoint!("commands.before-hand-over");
        self.0.store.append(events).await.map_err(not_appended)?;
        wayhold_store::failpoint!("commands.in-the-outbox");
        let done = self.commands()?.change_once_checked(move |change| {
            let mut numbers = numbers.into_iter();
            numbers.try_for_each(|number| change.handed_over(number))
        });
        done.await?;
        wayhold_store::failpoint!("commands.handed-over");
        Ok(true)
    }

    async fn give_up_unsent(&self, id: CommandId, reason: String) -> Result<(), CommandError> {
        info!(%id, reason, "command given up before it was sent");
        let done = self.commands()?.change(move |change| {
            let step = Transition {
                from: State::Ready,
                to: State::Dead,
                reason: Some(&reason),
            };
            moved(change, id, step, &ourselves())
        });
        done.await?;
        Ok(())
    }
}

/// What is done about commands that were ready a moment ago and wait for nothing.
fn turns_of_fresh(
    view: &View<'_>,
    batch: Vec<Arc<Command>>,
) -> Result<Vec<(Arc<Command>, Turn)>, CommandsError> {
    let (Some(first), Some(last)) = (batch.first(), batch.last()) else {
        return Ok(Vec::new());
    };
    // Nearly always; one by one otherwise: somebody may have cancelled one meanwhile, and had its arguments erased.
    let is_plain =
        view.halts()?.is_empty() && view.are_to_hand_over((first.number, last.number))?;
    let turn = |command: Arc<Command>| {
        let goes = is_plain
            || view.are_to_hand_over((command.number, command.number))?
                && may_leave(view, &command)?.is_none();
        Ok((command, if goes { Turn::Now } else { Turn::Later }))
    };
    batch.into_iter().map(turn).collect()
}

fn new_event(
    command: &Command,
    destination: &dyn Fn(&str) -> Option<DestinationId>,
) -> Option<NewEvent> {
    let destination = destination(&command.new.destination)?;
    let event = event_of(command, &command.new.arguments).ok()?;
    Some(NewEvent {
        event: Arc::new(event),
        destinations: Arc::new(DestinationSet::new([destination])),
        identified: true,
        set_aside: None,
    })
}

/// The outbox does not take it now.
fn not_appended(error: AppendError) -> CommandError {
    match error {
        AppendError::NoSpace { .. } => CommandsError::NoSpace.into(),
        AppendError::Stopping => CommandsError::Stopping.into(),
        AppendError::Busy => CommandsError::Busy.into(),
        error => CommandError::Closed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use wayhold_model::command::{Reversibility, Risk};
    use wayhold_store::commands::NewCommand;

    use super::*;

    fn ready(not_before: Option<u64>) -> Command {
        Command {
            number: 1,
            new: NewCommand {
                id: CommandId::from_bytes([1; 16]),
                kind: "po_create".to_owned(),
                kind_version: "1".to_owned(),
                destination: "erp".to_owned(),
                principal: "ada".to_owned(),
                risk: Risk::Low,
                reversibility: Reversibility::Reversible,
                order_key: Some("sku-1".to_owned()),
                digest: [0; 32],
                arguments: r#"{"sku":"1"}"#.to_owned(),
                detail: "{}".to_owned(),
                expires_at: None,
                needs: Vec::new(),
                compensates: None,
                replays: None,
            },
            state: State::Ready,
            reason: None,
            handed_over: false,
            proposed_at: Timestamp::from_micros(1),
            changed_at: Timestamp::from_micros(1),
            not_before: not_before.map(Timestamp::from_micros),
            result: None,
        }
    }

    #[test]
    fn a_command_goes_when_its_time_has_come_and_all_that_it_needs_has_succeeded() {
        let (one, two) = (
            CommandId::from_bytes([2; 16]),
            CommandId::from_bytes([3; 16]),
        );
        let turn = |needs: &[(CommandId, Option<State>)], not_before| {
            turn_of(&ready(not_before), needs, Timestamp::from_micros(10))
        };
        assert_eq!(turn(&[], None), Turn::Now);
        assert_eq!(turn(&[], Some(10)), Turn::Now);
        assert_eq!(turn(&[], Some(11)), Turn::Later);
        for state in State::ALL {
            let needs = [(one, Some(State::Succeeded)), (two, Some(state))];
            let found = turn(&needs, None);
            match state {
                State::Succeeded => assert_eq!(found, Turn::Now),
                // What may still come to be is waited for, and so is what a person may still have done.
                _ if !state.is_ended() && state != State::Compensating || state == State::Dead => {
                    assert_eq!(found, Turn::Later, "{state:?}");
                }
                _ => assert!(matches!(found, Turn::Never(_)), "{state:?}"),
            }
        }
        assert!(matches!(turn(&[(one, None)], None), Turn::Never(_)));
    }

    #[test]
    fn what_was_looked_at_in_the_file_is_not_taken_again_and_what_is_elsewhere_is_looked_for() {
        let fresh = |numbers: &[u64]| Fresh {
            commands: numbers
                .iter()
                .map(|number| {
                    Arc::new(Command {
                        number: *number,
                        ..ready(None)
                    })
                })
                .collect(),
            ..Fresh::default()
        };
        let mut known = Known::default();
        let numbers = |known: &mut Known, fresh| -> Vec<u64> {
            known.take(fresh).iter().map(|one| one.number).collect()
        };
        // Those of an earlier run come first.
        assert!(numbers(&mut known, fresh(&[3, 4])).is_empty());
        assert_eq!((known.last, known.look), (0, Look::All));
        // The file was looked at, up to a later one than is in memory.
        (known.last, known.look) = (6, Look::Nothing);
        assert_eq!(numbers(&mut known, fresh(&[5, 6, 8])), [8]);
        assert_eq!((known.last, known.look), (8, Look::Nothing));
        for (has_others, has_ended, look) in [
            (false, true, Look::Waiting),
            (true, false, Look::All),
            (false, true, Look::All),
            (false, false, Look::All),
        ] {
            let others = Fresh {
                has_others,
                has_ended,
                ..fresh(&[])
            };
            assert!(numbers(&mut known, others).is_empty());
            assert_eq!((known.last, known.look), (8, look));
        }
        assert!(numbers(&mut known, fresh(&[9])).is_empty());
        known.look = Look::Waiting;
        assert_eq!(numbers(&mut known, fresh(&[9])), [9]);
    }

    #[test]
    fn its_event_is_known_by_its_id_and_ordered_by_its_key() {
        let command = ready(None);
        let event = event_of(&command, &command.new.arguments).unwrap();
        assert_eq!((event.source(), event.kind()), (SOURCE, "po_create"));
        assert_eq!(event.id(), command.new.id.to_string());
        assert_eq!(
            (event.key(), &event.data()[..]),
            (Some("sku-1"), &br#"{"sku":"1"}"#[..])
        );
    }
}
