//! Asking targets on a schedule: every so often, about each command of a kind that the ledger says moved since the last
//! pass, and for what the target did that the ledger never sent. A pass begins where the last one on record ended, and
//! with what that had no answer about, so that neither a restart nor a target that is away leaves anything out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::warn;
use wayhold_model::command::{CommandId, SOURCE, State};
use wayhold_model::{Event, EventParts, Outcome, Timestamp};
use wayhold_store::CommandsError;
use wayhold_store::commands::View;

use super::answer::Finding;
use super::desk::{CommandDesk, CommandError};
use super::kinds::Kind;
use super::leave::ask_about;
use super::proposal::read_time;
use super::reconcile::UNEXPECTED;
use super::records::{append, ourselves};
use super::sendable::stored;

/// How often it is looked whether a pass is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Records looked through at once.
const PAGE: u32 = 1_000;

/// Questions without an answer, one after the other, after which a target counts as away: the pass ends there, and the
/// next one goes on from there.
const UNREACHABLE_MAX: u32 = 3;

/// Commands without an answer that one pass leaves to the next, on record with it: once there are so many, the target is as
/// good as away.
const UNANSWERED_MAX: usize = 100;

/// Longest name of something unknown that is put on record, in characters: enough to find it, and no place for payloads.
const STRANGER_CHARS_MAX: usize = 100;

/// What the streams of commands begin with.
const COMMANDS: &str = "cmd:";

/// Where the passes of one kind have come to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pass {
    /// When the last one began.
    begun: Timestamp,
    /// The first record that it did not look at.
    until: u64,
    /// When what the target did was listed last.
    listed: Timestamp,
    /// Commands about which it had no answer.
    unanswered: Vec<CommandId>,
}

/// The questions of one pass.
#[derive(Debug, Default)]
struct Asked {
    tally: Tally,
    ids: BTreeSet<CommandId>,
    unanswered: Vec<CommandId>,
    /// Questions without an answer since the last one that had one.
    in_a_row: u32,
}

impl Asked {
    fn note(&mut self, id: CommandId, result: &'static str) {
        self.tally.count(result);
        self.ids.insert(id);
        match result == "unreachable" {
            true => {
                self.unanswered.push(id);
                self.in_a_row += 1;
            }
            false => self.in_a_row = 0,
        }
    }

    /// The target is not asked any more in this pass.
    fn is_over(&self) -> bool {
        self.in_a_row >= UNREACHABLE_MAX || self.unanswered.len() >= UNANSWERED_MAX
    }
}

/// What a pass found, by result.
#[derive(Debug, Default)]
struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    fn count(&mut self, result: &'static str) {
        *self.0.entry(result).or_default() += 1;
    }

    fn of(&self, result: &str) -> u64 {
        self.0.get(result).copied().unwrap_or(0)
    }
}

impl CommandDesk {
    /// Asks what is due until `stop` says so.
    pub async fn reconcile_on_schedule(self, mut stop: watch::Receiver<bool>) {
        let mut passes: BTreeMap<String, Pass> = BTreeMap::new();
        loop {
            // At once: what moves from the start on is asked about.
            for kind in self.kinds().iter() {
                let due = tokio::select! {
                    _ = stop.changed() => return,
                    due = self.pass_if_due(kind, &mut passes) => due,
                };
                if let Err(error) = due {
                    warn!(kind = kind.config.name, %error, "a target is not asked on schedule; trying again");
                }
            }
            tokio::select! {
                _ = stop.changed() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if *stop.borrow() {
                return;
            }
        }
    }

    async fn pass_if_due(
        &self,
        kind: &Arc<Kind>,
        passes: &mut BTreeMap<String, Pass>,
    ) -> Result<(), CommandError> {
        let reconcile = kind.config.reconcile.as_ref();
        let Some(every) = reconcile.and_then(|reconcile| reconcile.every) else {
            return Ok(());
        };
        let name = &kind.config.name;
        let last = match passes.get(name) {
            Some(last) => last.clone(),
            None => self.last_pass(name.clone()).await?,
        };
        let now = self.0.clock.now();
        let is_due = now.since(last.begun) >= every;
        // Should it fail, it is tried again when the next one is due.
        let begun = if is_due { now } else { last.begun };
        let last_or_begun = Pass {
            begun,
            ..last.clone()
        };
        passes.insert(name.clone(), last_or_begun);
        if !is_due {
            return Ok(());
        }
        let pass = self.pass(kind, last, now).await?;
        passes.insert(name.clone(), pass);
        Ok(())
    }

    /// The last pass on record; without any the first one looks at what comes from now on.
    async fn last_pass(&self, kind: String) -> Result<Pass, CommandError> {
        let now = self.0.clock.now();
        self.look(move |view| {
            let last = view.last_record_of(&stream(&kind))?;
            let pass = last.and_then(|row| {
                let record: Value = serde_json::from_slice(&row.record).ok()?;
                let body = record.get("body")?;
                let said = |name: &str| body.get(name)?.as_u64();
                let unanswered = body.get("unanswered").and_then(Value::as_array);
                let ids = unanswered.into_iter().flatten();
                let ids = ids.filter_map(|id| id.as_str()?.parse().ok());
                Some(Pass {
                    begun: row.at.before(Duration::from_millis(said("took_ms")?)),
                    until: said("until")?,
                    listed: read_time(body.get("listed")?.as_str()?).ok()?,
                    unanswered: ids.collect(),
                })
            });
            match pass {
                Some(pass) => Ok(pass),
                None => Ok(Pass {
                    begun: now,
                    until: view.ledger_size()?,
                    listed: now,
                    unanswered: Vec::new(),
                }),
            }
        })
        .await
    }

    async fn pass(
        &self,
        kind: &Arc<Kind>,
        last: Pass,
        now: Timestamp,
    ) -> Result<Pass, CommandError> {
        let mut asked = Asked::default();
        let listed = match self
            .look_for_strangers(kind, last.listed, &mut asked.tally)
            .await?
        {
            true => now,
            false => last.listed,
        };
        let until = self.ask_about_all(kind, &last, &mut asked).await?;
        let Asked {
            tally, unanswered, ..
        } = asked;
        let names: Vec<_> = unanswered.iter().map(ToString::to_string).collect();
        let pass = Pass {
            begun: now,
            until,
            listed,
            unanswered,
        };
        // Of a pass that found nothing to ask about there is nothing to say, and the next one loses nothing.
        if tally.0.is_empty() {
            return Ok(pass);
        }
        let name = kind.config.name.clone();
        let took = self.0.clock.now().since(now);
        let body = json!({
            "kind": name,
            "from": last.until,
            "until": until,
            "took_ms": u64::try_from(took.as_millis()).unwrap_or(0),
            "listed": listed.to_string(),
            "confirmed": tally.of("confirmed"),
            "absent": tally.of("absent"),
            "different": tally.of("different"),
            "unexpected": tally.of(UNEXPECTED),
            "unreachable": tally.of("unreachable"),
            "unanswered": names,
        });
        let done = self.commands()?.change(move |change| {
            append(change, stream(&name), "reconcile.run", &ourselves(), &body)
        });
        done.await?;
        Ok(pass)
    }

    /// Asks about each command that the last pass had no answer about, and each of the kind that moved since it; the first
    /// record that was not looked at.
    async fn ask_about_all(
        &self,
        kind: &Arc<Kind>,
        last: &Pass,
        asked: &mut Asked,
    ) -> Result<u64, CommandError> {
        for (at, id) in last.unanswered.iter().enumerate() {
            if asked.is_over() {
                let rest = last.unanswered.get(at..).unwrap_or_default();
                asked.unanswered.extend(rest);
                return Ok(last.until);
            }
            self.ask_about_one(*id, asked).await?;
        }
        let end = self.look(|view| view.ledger_size()).await?;
        let mut from = last.until;
        while from < end {
            let name = kind.config.name.clone();
            let page = self.look(move |view| moved_in(view, (from, end), &name));
            let (moved, next) = page.await?;
            for (idx, id) in moved {
                if asked.is_over() {
                    return Ok(idx);
                }
                if !asked.ids.contains(&id) {
                    self.ask_about_one(id, asked).await?;
                }
            }
            from = next;
        }
        Ok(end)
    }

    async fn ask_about_one(&self, id: CommandId, asked: &mut Asked) -> Result<(), CommandError> {
        let found = match self.reconcile(id, None, ourselves()).await {
            Ok(found) => found,
            // It has gone on since, and will be on record again.
            Err(CommandError::WrongState { .. } | CommandError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        asked.note(id, found.result);
        if !found.as_expected {
            let (kind, result) = (found.kind, found.result);
            warn!(%id, kind, result, "a target has a command otherwise than the ledger says");
        }
        Ok(())
    }

    /// Has the target list what it did since a time, and finds what the ledger never sent. `false` where it gave no
    /// list, so that the next pass asks for the same again.
    async fn look_for_strangers(
        &self,
        kind: &Arc<Kind>,
        since: Timestamp,
        tally: &mut Tally,
    ) -> Result<bool, CommandError> {
        let config = kind.config.reconcile.as_ref();
        let list = config.and_then(|config| config.list.as_ref());
        let Some((list, lists)) = list.zip(kind.lists.as_ref()) else {
            return Ok(true);
        };
        let event =
            question(&kind.config.name, since).map_err(|reason| CommandsError::Unfit { reason })?;
        let (outcome, answer) =
            ask_about(lists.as_ref(), &Arc::new(stored(event)), kind.timeout).await;
        let listed = match outcome {
            Outcome::Delivered if answer.cut => Err("it is too long; ask more often".to_owned()),
            Outcome::Delivered => list.ids_in(&answer.bytes),
            other => Err(other
                .failure()
                .map_or_else(String::new, |failure| failure.reason.clone())),
        };
        let listed = match listed {
            Ok(listed) => listed,
            Err(reason) => {
                warn!(
                    kind = kind.config.name,
                    reason, "a target gives no list of what it did"
                );
                tally.count("unreachable");
                return Ok(false);
            }
        };
        for one in listed {
            if self.is_accounted_for(&one).await? {
                continue;
            }
            tally.count(UNEXPECTED);
            warn!(
                kind = kind.config.name,
                id = one,
                "a target did what the ledger never sent"
            );
            self.note_stranger(kind, &one).await?;
        }
        Ok(true)
    }

    /// Whether the ledger has sent what is called that.
    async fn is_accounted_for(&self, name: &str) -> Result<bool, CommandError> {
        let Ok(id) = name.parse::<CommandId>() else {
            return Ok(false);
        };
        self.look(move |view| Ok(!view.attempts(id, 1)?.is_empty()))
            .await
    }

    /// Puts on record what a target did: in the stream of the command where there is one, else in that of its kind.
    async fn note_stranger(&self, kind: &Arc<Kind>, name: &str) -> Result<(), CommandError> {
        if let Ok(id) = name.parse::<CommandId>()
            && self.look(move |view| view.state(id)).await?.is_some()
        {
            let said = ("list", Value::Null);
            self.note(id, Finding::Confirmed, said, ourselves()).await?;
            return Ok(());
        }
        self.0.answers.count(&kind.config.name, UNEXPECTED);
        let of = kind.config.name.clone();
        let name: String = name.chars().take(STRANGER_CHARS_MAX).collect();
        let done = self.commands()?.change(move |change| {
            let body =
                json!({ "method": "list", "result": UNEXPECTED, "by": ourselves().id, "id": name });
            append(change, stream(&of), "reconcile.result", &ourselves(), &body)
        });
        Ok(done.await?)
    }
}

/// The stream of a kind's passes.
fn stream(kind: &str) -> String {
    format!("reconcile:{kind}")
}

/// The event that asks for a list: `{time}` is since when.
fn question(kind: &str, since: Timestamp) -> Result<Event, String> {
    Event::new(&EventParts {
        id: "list",
        source: SOURCE,
        kind,
        time: &since.to_string(),
        ..EventParts::default()
    })
    .map_err(|error| error.to_string())
}

/// Commands of a kind that came into a state between two records, one page, each with the last record that says so and in
/// that order; and where the next page begins. Those that are on the way are left to whoever is at work on them, and come
/// again.
fn moved_in(
    view: &View<'_>,
    (from, end): (u64, u64),
    kind: &str,
) -> Result<(Vec<(u64, CommandId)>, u64), CommandsError> {
    let rows = view.records(from, PAGE)?;
    let next = rows.last().map_or(end, |row| row.idx + 1).min(end);
    let mut moved = BTreeMap::new();
    for row in rows.iter().filter(|row| row.idx < end) {
        let record: Value = serde_json::from_slice(&row.record).unwrap_or_default();
        let said = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default();
        let id = said("stream").strip_prefix(COMMANDS);
        let moves = matches!(said("type"), "command.accepted" | "command.state");
        let id = id
            .filter(|_| moves)
            .and_then(|id| id.parse::<CommandId>().ok());
        moved.extend(id.map(|id| (id, row.idx)));
    }
    let mut asked = Vec::new();
    for (id, idx) in moved {
        let command = view.command(id)?;
        let is_meant = command.is_some_and(|command| {
            let on_the_way = [
                State::Accepted,
                State::Sending,
                State::RetryWait,
                State::Reconciling,
            ];
            command.new.kind == kind && !on_the_way.contains(&command.state)
        });
        if is_meant {
            asked.push((idx, id));
        }
    }
    asked.sort_unstable();
    Ok((asked, next))
}
