//! Commands as rows: made once, moved from state to state, found again.

use std::sync::Arc;

use rusqlite::{OptionalExtension, Row, params, params_from_iter};
use wayhold_model::Timestamp;
use wayhold_model::command::{CommandId, Reversibility, Risk, State};

use super::change::{Change, View};
use super::error::CommandsError;

/// What was said of a command lies beside it, by its number: it is large, and the row is written with every step.
pub(super) const SCHEMA: &str = "
CREATE TABLE commands(
    number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, kind TEXT NOT NULL, kind_version TEXT NOT NULL,
    destination TEXT NOT NULL, principal TEXT NOT NULL, state TEXT NOT NULL, ended INTEGER NOT NULL,
    handed_over INTEGER NOT NULL, reason TEXT, proposed_at INTEGER NOT NULL, changed_at INTEGER NOT NULL,
    expires_at INTEGER, not_before INTEGER, risk TEXT NOT NULL, reversibility TEXT NOT NULL,
    order_key TEXT, digest BLOB NOT NULL, result TEXT, compensates BLOB, replays BLOB
) STRICT;
CREATE TABLE proposals(
    number INTEGER PRIMARY KEY, arguments TEXT NOT NULL, detail TEXT NOT NULL
) STRICT;
CREATE INDEX commands_to_hand_over ON commands(number) WHERE state = 'ready' AND handed_over = 0;
CREATE INDEX commands_to_expire ON commands(expires_at) WHERE expires_at IS NOT NULL AND ended = 0;
CREATE INDEX commands_on_the_way ON commands(changed_at) WHERE handed_over = 1 AND ended = 0;
CREATE INDEX commands_compensating ON commands(compensates) WHERE compensates IS NOT NULL;
CREATE TABLE dependencies(
    command BLOB NOT NULL, needs BLOB NOT NULL, PRIMARY KEY(command, needs)
) STRICT, WITHOUT ROWID;
CREATE INDEX dependencies_needs ON dependencies(needs);
";

/// What stands for arguments that were erased. No command is proposed with it, for arguments are an object.
const ERASED: &str = "null";

/// A command as it is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCommand {
    /// Its id, which no other command has.
    pub id: CommandId,
    /// Its kind, as configured.
    pub kind: String,
    /// Which version of the kind's configuration it was proposed under.
    pub kind_version: String,
    /// The destination that it is for.
    pub destination: String,
    /// Who proposed it.
    pub principal: String,
    /// Harm that a wrong one may do.
    pub risk: Risk,
    /// Whether it can be taken back.
    pub reversibility: Reversibility,
    /// What its order is kept by; `None` for none.
    pub order_key: Option<String>,
    /// SHA-256 of the canonical command: what an approval is bound to.
    pub digest: [u8; 32],
    /// Its arguments, as canonical JSON.
    pub arguments: String,
    /// Everything else that was said of it, as JSON.
    pub detail: String,
    /// Not sent for the first time after this.
    pub expires_at: Option<Timestamp>,
    /// Commands that must have succeeded before.
    pub needs: Vec<CommandId>,
    /// The command that it makes up for.
    pub compensates: Option<CommandId>,
    /// The command that it does again.
    pub replays: Option<CommandId>,
}

impl NewCommand {
    /// Whether its arguments were erased: then it is neither done again nor made up for.
    pub fn is_erased(&self) -> bool {
        self.arguments == ERASED
    }
}

/// A command as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its place in lists: later ones have higher numbers.
    pub number: u64,
    /// What was proposed; without what it needs, see `View::needs`.
    pub new: NewCommand,
    /// Where it stands.
    pub state: State,
    /// Why it stands there.
    pub reason: Option<String>,
    /// Whether its event was handed to the outbox.
    pub handed_over: bool,
    /// When it was accepted.
    pub proposed_at: Timestamp,
    /// When it came into its state.
    pub changed_at: Timestamp,
    /// Not handed over before this.
    pub not_before: Option<Timestamp>,
    /// What the target answered to it, as JSON.
    pub result: Option<String>,
}

/// Which commands are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandFilter {
    /// In one of these states; any where empty.
    pub states: Vec<State>,
    /// Of this kind.
    pub kind: Option<String>,
    /// For this destination.
    pub destination: Option<String>,
    /// Proposed by.
    pub principal: Option<String>,
}

/// A step from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition<'a> {
    /// Where it must stand.
    pub from: State,
    /// Where it goes.
    pub to: State,
    /// Why.
    pub reason: Option<&'a str>,
}

const COLUMNS: &str = "number, id, kind, kind_version, destination, principal, state, handed_over, reason, \
    proposed_at, changed_at, expires_at, not_before, risk, reversibility, order_key, digest, arguments, detail, \
    result, compensates, replays";

const WHOLE: &str = "commands JOIN proposals USING (number)";

impl View<'_> {
    /// A command by its id.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn command(&self, id: CommandId) -> Result<Option<Command>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(&format!("SELECT {COLUMNS} FROM {WHOLE} WHERE id = ?1"))?
                .query_row([id.to_bytes()], command)
                .optional()
        })
    }

    /// Where a command stands.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn state(&self, id: CommandId) -> Result<Option<State>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("SELECT state FROM commands WHERE id = ?1")?
                .query_row([id.to_bytes()], |row| state_of(row, 0))
                .optional()
        })
    }

    /// The command that this one makes up for.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn compensates(&self, id: CommandId) -> Result<Option<CommandId>, CommandsError> {
        let id = id.to_bytes();
        let query = "SELECT compensates FROM commands WHERE id = ?1 AND compensates IS NOT NULL";
        Ok(self.ids(query, [id])?.pop())
    }

    /// At most so many commands, the newest first, older than `before` where given.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn commands(
        &self,
        filter: &CommandFilter,
        before: Option<u64>,
        max: u32,
    ) -> Result<Vec<Command>, CommandsError> {
        let mut wanted = vec!["number < ?".to_owned()];
        let before = before.map_or(i64::MAX, |n| i64::try_from(n).unwrap_or(i64::MAX));
        let mut values: Vec<rusqlite::types::Value> = vec![before.into()];
        if !filter.states.is_empty() {
            let marks = vec!["?"; filter.states.len()].join(", ");
            wanted.push(format!("state IN ({marks})"));
            let names = filter.states.iter().map(|state| state.name().to_owned());
            values.extend(names.map(Into::into));
        }
        let fields = [
            ("kind", &filter.kind),
            ("destination", &filter.destination),
            ("principal", &filter.principal),
        ];
        for (column, value) in fields {
            if let Some(value) = value {
                wanted.push(format!("{column} = ?"));
                values.push(value.clone().into());
            }
        }
        let wanted = wanted.join(" AND ");
        self.run(|connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM {WHOLE} WHERE {wanted} ORDER BY number DESC LIMIT {max}"
                ))?
                .query_map(params_from_iter(values), command)?
                .collect()
        })
    }

    /// Commands that are ready and not handed over, after a number and up to another, in the order in which they were
    /// proposed; also those that still wait for their time or for others.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn to_hand_over(
        &self,
        (after, to): (u64, u64),
        max: u32,
    ) -> Result<Vec<Command>, CommandsError> {
        let to = i64::try_from(to).unwrap_or(i64::MAX);
        self.run(|connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM {WHOLE}
                     WHERE state = 'ready' AND handed_over = 0 AND number > ?1 AND number <= ?2
                     ORDER BY number LIMIT ?3"
                ))?
                .query_map(params![after.cast_signed(), to, max], command)?
                .collect()
        })
    }

    /// Whether every command from a number up to another is ready and not handed over.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn are_to_hand_over(&self, (from, to): (u64, u64)) -> Result<bool, CommandsError> {
        let to = i64::try_from(to).unwrap_or(i64::MAX);
        self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT NOT EXISTS (SELECT 1 FROM commands WHERE number >= ?1 AND number <= ?2
                         AND NOT (state = 'ready' AND handed_over = 0))",
                )?
                .query_row(params![from.cast_signed(), to], |row| row.get(0))
        })
    }

    /// Commands whose time is over and that have not ended.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn to_expire(&self, now: Timestamp, max: u32) -> Result<Vec<CommandId>, CommandsError> {
        let now = now.as_micros().cast_signed();
        self.ids(
            "SELECT id FROM commands WHERE expires_at <= ?1 AND expires_at IS NOT NULL AND ended = 0
             ORDER BY expires_at LIMIT ?2",
            params![now, max],
        )
    }

    /// Commands that were handed over, have not ended and came into their state between two times, the first included,
    /// with that time.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn on_the_way(
        &self,
        (from, until): (Timestamp, Timestamp),
        max: u32,
    ) -> Result<Vec<(CommandId, Timestamp)>, CommandsError> {
        let [from, until] = [from, until].map(|time| time.as_micros().cast_signed());
        self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT id, changed_at FROM commands
                     WHERE handed_over = 1 AND ended = 0 AND changed_at >= ?1 AND changed_at < ?2
                     ORDER BY changed_at LIMIT ?3",
                )?
                .query_map(params![from, until, max], |row| {
                    Ok((CommandId::from_bytes(row.get(0)?), at(row.get(1)?)))
                })?
                .collect()
        })
    }

    /// What a command needs, and where that stands; `None` for a command that is not there.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn needs(&self, id: CommandId) -> Result<Vec<(CommandId, Option<State>)>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT needs, state FROM dependencies LEFT JOIN commands ON commands.id = needs
                     WHERE command = ?1",
                )?
                .query_map([id.to_bytes()], |row| {
                    let state: Option<String> = row.get(1)?;
                    let state = state.as_deref().and_then(State::named);
                    Ok((CommandId::from_bytes(row.get(0)?), state))
                })?
                .collect()
        })
    }

    /// Commands that need this one.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn needed_by(&self, id: CommandId) -> Result<Vec<CommandId>, CommandsError> {
        let id = id.to_bytes();
        self.ids("SELECT command FROM dependencies WHERE needs = ?1", [id])
    }

    /// Commands that make up for this one, the newest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn compensating(&self, id: CommandId) -> Result<Vec<CommandId>, CommandsError> {
        let id = id.to_bytes();
        self.ids(
            "SELECT id FROM commands WHERE compensates = ?1 ORDER BY number DESC",
            [id],
        )
    }

    fn ids(
        &self,
        query: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<CommandId>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(query)?
                .query_map(values, |row| Ok(CommandId::from_bytes(row.get(0)?)))?
                .collect()
        })
    }
}

impl Change<'_> {
    /// Keeps a new command in a state that it may begin in.
    ///
    /// # Errors
    /// There is one of that id, or the file takes no change.
    pub fn add_command(
        &mut self,
        new: &NewCommand,
        state: State,
        (reason, not_before): (Option<&str>, Option<Timestamp>),
    ) -> Result<(), CommandsError> {
        let now = self.now().as_micros().cast_signed();
        let micros = |time: Option<Timestamp>| time.map(|time| time.as_micros().cast_signed());
        let number = self.run(|connection| {
            connection
                .prepare_cached(
                    "INSERT INTO commands(id, kind, kind_version, destination, principal, state, ended,
                         handed_over, reason, proposed_at, changed_at, expires_at, not_before, risk,
                         reversibility, order_key, digest, compensates, replays)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, ?9, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
                )?
                .execute(params![
                    new.id.to_bytes(),
                    new.kind,
                    new.kind_version,
                    new.destination,
                    new.principal,
                    state.name(),
                    state.is_ended(),
                    reason,
                    now,
                    micros(new.expires_at),
                    micros(not_before),
                    new.risk.name(),
                    new.reversibility.name(),
                    new.order_key,
                    new.digest,
                    new.compensates.map(CommandId::to_bytes),
                    new.replays.map(CommandId::to_bytes),
                ])?;
            let number = connection.last_insert_rowid();
            connection
                .prepare_cached("INSERT INTO proposals VALUES (?1, ?2, ?3)")?
                .execute(params![number, new.arguments, new.detail])?;
            for needs in &new.needs {
                connection
                    .prepare_cached("INSERT INTO dependencies VALUES (?1, ?2)")?
                    .execute(params![new.id.to_bytes(), needs.to_bytes()])?;
            }
            Ok(number)
        })?;
        self.deltas.move_one(None, Some(state));
        self.touched.push((new.id, state));
        self.last_added = Some((new.id, number));
        if state == State::Ready && new.needs.is_empty() && not_before.is_none() {
            let now = self.now();
            self.ready.push(Arc::new(Command {
                number: number.cast_unsigned(),
                new: new.clone(),
                state,
                reason: reason.map(str::to_owned),
                handed_over: false,
                proposed_at: now,
                changed_at: now,
                not_before,
                result: None,
            }));
        }
        Ok(())
    }

    /// The number of a command.
    pub(super) fn number_of(&self, id: CommandId) -> Result<i64, CommandsError> {
        match self.last_added {
            Some((added, number)) if added == id => Ok(number),
            _ => self.run(|connection| {
                connection
                    .prepare_cached("SELECT number FROM commands WHERE id = ?1")?
                    .query_row([id.to_bytes()], |row| row.get(0))
            }),
        }
    }

    /// Takes a command from one state to another; `false` where it does not stand in the first, and nothing was
    /// changed.
    ///
    /// # Errors
    /// There is no such way, or the file takes no change.
    pub fn move_command(
        &mut self,
        id: CommandId,
        Transition { from, to, reason }: Transition<'_>,
    ) -> Result<bool, CommandsError> {
        if !from.may_become(to) {
            return Err(CommandsError::Unfit {
                reason: format!(
                    "a command does not go from {} to {}",
                    from.name(),
                    to.name()
                ),
            });
        }
        let now = self.now().as_micros().cast_signed();
        let moved = self.run(|connection| {
            connection
                .prepare_cached(
                    "UPDATE commands SET state = ?3, ended = ?4, reason = ?5, changed_at = ?6
                     WHERE id = ?1 AND state = ?2",
                )?
                .execute(params![
                    id.to_bytes(),
                    from.name(),
                    to.name(),
                    to.is_ended(),
                    reason,
                    now
                ])
        })?;
        if moved > 0 {
            self.deltas.move_one(Some(from), Some(to));
            self.touched.push((id, to));
        }
        Ok(moved > 0)
    }

    /// Says not before when a ready command is handed over.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn hold_until(
        &mut self,
        id: CommandId,
        not_before: Option<Timestamp>,
    ) -> Result<(), CommandsError> {
        let not_before = not_before.map(|time| time.as_micros().cast_signed());
        self.run(|connection| {
            connection
                .prepare_cached("UPDATE commands SET not_before = ?2 WHERE id = ?1")?
                .execute(params![id.to_bytes(), not_before])
        })?;
        Ok(())
    }

    /// The event of the command with this number is in the outbox, synced.
    ///
    /// # Errors
    /// The file takes no change: it will be handed over again, which stores nothing new.
    pub fn handed_over(&mut self, number: u64) -> Result<(), CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("UPDATE commands SET handed_over = 1 WHERE number = ?1")?
                .execute([number.cast_signed()])
        })?;
        Ok(())
    }

    /// Keeps what the target answered, as JSON.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn keep_result(&mut self, id: CommandId, result: &str) -> Result<(), CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("UPDATE commands SET result = ?2 WHERE id = ?1")?
                .execute(params![id.to_bytes(), result])
        })?;
        Ok(())
    }

    /// Forgets these arguments, of a command and of its edits; and what its target answered, where `answer`. Their
    /// digests stay.
    ///
    /// # Errors
    /// The file takes no change.
    pub(super) fn forget(
        &mut self,
        id: CommandId,
        arguments: &str,
        answer: bool,
    ) -> Result<(), CommandsError> {
        let id = id.to_bytes();
        self.run(|connection| {
            for sql in [
                "UPDATE proposals SET arguments = ?3
                 WHERE number = (SELECT number FROM commands WHERE id = ?1) AND arguments = ?2",
                "UPDATE edits SET arguments = ?3 WHERE command = ?1 AND arguments = ?2",
            ] {
                connection
                    .prepare_cached(sql)?
                    .execute(params![id, arguments, ERASED])?;
            }
            if answer {
                connection
                    .prepare_cached("UPDATE commands SET result = NULL WHERE id = ?1")?
                    .execute([id])?;
            }
            Ok(())
        })
    }
}

fn command(row: &Row<'_>) -> rusqlite::Result<Command> {
    let time = |index| row.get::<_, i64>(index).map(at);
    let some_time = |index| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(index)?.map(at));
    let id = |index| {
        Ok::<_, rusqlite::Error>(row.get::<_, Option<_>>(index)?.map(CommandId::from_bytes))
    };
    Ok(Command {
        number: row.get::<_, i64>(0)?.cast_unsigned(),
        new: NewCommand {
            id: CommandId::from_bytes(row.get(1)?),
            kind: row.get(2)?,
            kind_version: row.get(3)?,
            destination: row.get(4)?,
            principal: row.get(5)?,
            risk: Risk::named(&row.get::<_, String>(13)?).ok_or_else(|| unknown(13))?,
            reversibility: Reversibility::named(&row.get::<_, String>(14)?)
                .ok_or_else(|| unknown(14))?,
            order_key: row.get(15)?,
            digest: row.get(16)?,
            arguments: row.get(17)?,
            detail: row.get(18)?,
            expires_at: some_time(11)?,
            needs: Vec::new(),
            compensates: id(20)?,
            replays: id(21)?,
        },
        state: state_of(row, 6)?,
        reason: row.get(8)?,
        handed_over: row.get(7)?,
        proposed_at: time(9)?,
        changed_at: time(10)?,
        not_before: some_time(12)?,
        result: row.get(19)?,
    })
}

fn state_of(row: &Row<'_>, index: usize) -> rusqlite::Result<State> {
    State::named(&row.get::<_, String>(index)?).ok_or_else(|| unknown(index))
}

/// A word that this version does not know.
fn unknown(index: usize) -> rusqlite::Error {
    rusqlite::Error::InvalidColumnType(
        index,
        "a known name".to_owned(),
        rusqlite::types::Type::Text,
    )
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros.cast_unsigned())
}
