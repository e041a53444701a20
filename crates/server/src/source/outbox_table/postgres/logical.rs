//! PostgreSQL's log, by a replication slot: rows in the order of their commits, whatever the table has of it.
//!
//! The log is read by ordinary statements: a sweep peeks at what lies behind the slot's place, and the slot is
//! moved on at the beginning of the next one, past transactions all of whose rows are durable here. What was
//! committed before there was a slot is read in the table first, and nothing else there. Where a row was refused the slot moves on without it: such a row stays in the table, and from then on the table is
//! read as in poll mode until nothing in it is left over. Whether that is so is noted at the publication
//! (`slot::Note`), so that a restart, or another reader, knows it too.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use super::super::port::{Batch, End, Reader, Trouble};
use super::super::row::{Column, Payload, Place, Row};
use super::pgoutput::Message;
use super::slot::{self, Note};
use super::sweep::PostgresReader;
use super::table::{ColumnKind, Table};
use super::text::{column_text, plain_text};
use super::{run, trouble};
use crate::config::OutboxTableConfig;
use crate::config::source::outbox_table::AfterAccept;
use crate::config::source::router::{InvalidOperation, RouterConfig};

/// The cursor that a sweep of the log goes by.
const CURSOR: &str = "wayhold_log";

/// Changes of a sweep, as far as whole transactions allow: PostgreSQL decodes the log anew for each.
const SWEEP_CHANGES: i32 = 10_000;

/// How often the slot follows a log in which nothing concerns this table, so that none of it is kept.
const FOLLOW_EVERY: Duration = Duration::from_secs(10);

/// Reads the table until nothing is left over in it, then the log.
pub(super) struct LogicalReader {
    /// Reads the table; its connection holds the lock.
    table: PostgresReader,
    layout: Layout,
    slot: String,
    publication: String,
    /// Whether rows stay whatever becomes of them: then there is no table to come back to.
    keeps: bool,
    way: Way,
    /// What had been committed when reading the table began: what came since is in the log as well.
    until: Option<String>,
    /// What was given in this sweep, and what of it is settled.
    handed: u64,
    settled: Arc<AtomicU64>,
    /// Rows of this sweep that were left out, since earlier ones of their key are refused.
    left_out: u64,
    /// How the last sweep ended.
    ended: Option<End>,
    sweep: Option<LogSweep>,
    /// Where the slot may move to once everything before is settled.
    read_to: Option<u64>,
    followed: Instant,
}

/// Where rows are read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In the table, until nothing is left over in it.
    Table,
    /// In the log.
    Log,
    /// In the log, while the slot stays where it is for a refused row.
    HeldUp,
}

/// A sweep of the log.
#[derive(Default)]
struct LogSweep {
    relations: HashMap<u32, Option<Vec<String>>>,
    changes: usize,
    /// Where the log ended before anything was read.
    before: u64,
}

/// Which columns are what.
struct Layout {
    router: RouterConfig,
    table: Table,
    ignores_updates: bool,
}

impl LogicalReader {
    pub(super) fn new(
        mut table: PostgresReader,
        config: &OutboxTableConfig,
        columns: &Table,
        note: Note,
        settled: Arc<AtomicU64>,
    ) -> Self {
        let keeps = config.after == AfterAccept::Keep;
        let until = match &note {
            Note::Before(snapshot) => Some(snapshot.clone()),
            Note::Nothing | Note::Table | Note::Log => None,
        };
        table.before.clone_from(&until);
        Self {
            table,
            layout: Layout {
                router: config.router.clone(),
                table: columns.clone(),
                ignores_updates: matches!(config.after, AfterAccept::Mark(_)),
            },
            slot: config.slot.clone(),
            publication: config.publication.clone(),
            keeps,
            way: match note {
                Note::Log => Way::Log,
                _ if keeps => Way::Log,
                Note::Nothing | Note::Before(_) | Note::Table => Way::Table,
            },
            until,
            handed: 0,
            settled,
            left_out: 0,
            ended: None,
            sweep: None,
            read_to: None,
            followed: Instant::now(),
        }
    }

    async fn read(&mut self, without: &[String]) -> Result<Batch, Trouble> {
        if let Some(ended) = self.ended.take() {
            self.between_sweeps(ended, without).await?;
        }
        let batch = match self.way {
            Way::Table => {
                if self.until.is_none() {
                    self.until = Some(self.table.snapshot().await?);
                }
                self.table.next(without).await?
            }
            Way::Log | Way::HeldUp => self.read_log(without).await?,
        };
        self.handed += batch.rows.len() as u64;
        if batch.end != End::More {
            self.ended = Some(batch.end);
        }
        Ok(batch)
    }

    /// What the last sweep came to: the slot moves on, or the other way of reading begins.
    async fn between_sweeps(&mut self, ended: End, without: &[String]) -> Result<(), Trouble> {
        let settled = self.settled.swap(0, Ordering::Relaxed);
        let is_clean = settled >= self.handed && self.left_out == 0;
        (self.handed, self.left_out) = (0, 0);
        if self.way == Way::Table {
            // One that was given up met a limit here: the same again.
            if ended == End::More {
                return Ok(());
            }
            if !is_clean || !without.is_empty() {
                // What was refused may wait for long, and what comes since must not.
                if self.table.before.take().is_some() {
                    self.note(Note::Table).await?;
                }
                return Ok(());
            }
            let is_left_over = match &self.until {
                Some(until) => self.table.is_left_over(until).await?,
                None => true,
            };
            if !is_left_over {
                self.note(Note::Log).await?;
                self.way = Way::Log;
                (self.until, self.table.before) = (None, None);
            }
            return Ok(());
        }
        self.way = match !is_clean && self.keeps {
            true => Way::HeldUp,
            false => Way::Log,
        };
        // A sweep that was given up met a limit here: the same again.
        if self.way == Way::HeldUp || (!is_clean && ended == End::More) {
            self.read_to = None;
            return Ok(());
        }
        if !is_clean {
            self.note(Note::Table).await?;
            self.way = Way::Table;
        }
        if let Some(end) = self.read_to.take() {
            slot::advance(&mut self.table.connection, &self.slot, end).await?;
        }
        Ok(())
    }

    async fn note(&mut self, note: Note) -> Result<(), Trouble> {
        let publication = self.publication.clone();
        note.write(self.connection(), &publication).await
    }

    fn connection(&mut self) -> &mut PgConnection {
        &mut self.table.connection
    }

    async fn read_log(&mut self, without: &[String]) -> Result<Batch, Trouble> {
        let mut sweep = match self.sweep.take() {
            Some(sweep) => sweep,
            None => self.begin().await?,
        };
        let wanted = self.table.batch_rows;
        let fetch = format!("FETCH FORWARD {wanted} FROM {CURSOR}");
        let fetched = sqlx::query(sqlx::AssertSqlSafe(fetch))
            .fetch_all(self.connection())
            .await
            .map_err(trouble)?;
        let mut rows = Vec::new();
        for message in &fetched {
            let data: &[u8] = message.try_get(0).map_err(trouble)?;
            let row = self.take(&mut sweep, data)?;
            let waits = |row: &Row| row.key.as_ref().is_some_and(|key| without.contains(key));
            match row {
                Some(row) if waits(&row) => self.left_out += 1,
                Some(row) => rows.push(row),
                None => {}
            }
        }
        sweep.changes += fetched.len();
        if fetched.len() == wanted {
            self.sweep = Some(sweep);
            return Ok(Batch {
                rows,
                end: End::More,
            });
        }
        run(self.connection(), "COMMIT".to_owned()).await?;
        if sweep.changes == 0 && self.followed.elapsed() >= FOLLOW_EVERY {
            self.read_to = Some(sweep.before);
            self.followed = Instant::now();
        }
        // What is held up by a refused row comes again each time: there is no hurry for that.
        let end = match sweep.changes == 0 || self.way == Way::HeldUp {
            true => End::Empty,
            false => End::Again,
        };
        Ok(Batch { rows, end })
    }

    async fn begin(&mut self) -> Result<LogSweep, Trouble> {
        let before: String = sqlx::query_scalar("SELECT pg_current_wal_flush_lsn()::text")
            .fetch_one(self.connection())
            .await
            .map_err(trouble)?;
        run(self.connection(), "BEGIN READ ONLY".to_owned()).await?;
        let (slot, publication) = (self.slot.clone(), self.publication.clone());
        let declare = format!(
            "DECLARE {CURSOR} NO SCROLL CURSOR FOR SELECT data FROM pg_logical_slot_peek_binary_changes(\
             $1, NULL, {SWEEP_CHANGES}, 'proto_version', '1', 'publication_names', $2)"
        );
        sqlx::query(sqlx::AssertSqlSafe(declare))
            .bind(slot)
            .bind(super::statement::quoted(&publication))
            .execute(self.connection())
            .await
            .map_err(trouble)?;
        Ok(LogSweep {
            before: slot::parse_lsn(&before).unwrap_or_default(),
            ..LogSweep::default()
        })
    }

    /// Takes one message; a row where it is one of this table's.
    fn take(&mut self, sweep: &mut LogSweep, data: &[u8]) -> Result<Option<Row>, Trouble> {
        let message = Message::parse(data).map_err(|_| {
            Trouble::Unreachable("the log holds what is no message of pgoutput 1".to_owned())
        })?;
        match message {
            Message::Commit { end } => self.read_to = Some(end),
            Message::Relation {
                id,
                schema,
                name,
                columns,
            } => {
                let columns = self.layout.table.is_called(schema, name).then(|| {
                    let columns = columns.into_iter();
                    columns.map(str::to_owned).collect()
                });
                sweep.relations.insert(id, columns);
            }
            Message::Insert { id, values } => {
                if let Some(Some(columns)) = sweep.relations.get(&id) {
                    return Ok(Some(self.layout.row(columns, &values)));
                }
            }
            Message::Update { id } => {
                if let Some(Some(_)) = sweep.relations.get(&id) {
                    self.layout.changed()?;
                }
            }
            Message::Begin | Message::Other => {}
        }
        Ok(None)
    }

    async fn give_up(&mut self) -> Result<(), Trouble> {
        self.ended = Some(End::More);
        if self.sweep.take().is_some() {
            run(self.connection(), "COMMIT".to_owned()).await?;
        }
        self.table.abandon().await
    }
}

impl Layout {
    fn row(&self, columns: &[String], values: &[Option<&str>]) -> Row {
        let kind_of = |name: &str| self.table.kind_of(name).unwrap_or(ColumnKind::Other);
        let value = |name: &str| {
            let place = columns.iter().position(|column| column == name)?;
            *values.get(place)?
        };
        let text = |name: &str| value(name).map(|text| plain_text(kind_of(name), text));
        let named = |name: &Option<String>| {
            let name = name.as_deref()?;
            Some(column_text(kind_of(name), value(name)?))
        };
        let router = &self.router;
        let id = text(&router.id);
        let payload = match (value(&router.payload), kind_of(&router.payload)) {
            (None, _) => Payload::Null,
            (Some(text), ColumnKind::Json) => Payload::Json(text.to_owned()),
            (Some(text), ColumnKind::Bytes) => Payload::Binary(super::text::bytes_of(text)),
            (Some(text), kind) => Payload::Text(plain_text(kind, text)),
        };
        let additional = router.additional.iter().map(|one| {
            let kind = kind_of(&one.column);
            match value(&one.column) {
                None => Column::Null,
                Some(text) => Column::of(column_text(kind, text), kind.is_of_json()),
            }
        });
        Row {
            place: Place::Logged {
                id: id.clone().unwrap_or_default(),
            },
            route: text(&router.route_by),
            key: text(&router.key),
            kind: text(&router.kind),
            payload,
            timestamp: router
                .timestamp
                .as_deref()
                .and_then(|name| Some(super::text::time_text(kind_of(name), value(name)?))),
            schema_version: named(&router.schema_version),
            additional: additional.collect(),
            id,
        }
    }

    /// A row was changed, which an outbox never is.
    fn changed(&self) -> Result<(), Trouble> {
        if self.ignores_updates {
            return Ok(());
        }
        let table = self.table.name.as_str();
        match self.router.invalid {
            InvalidOperation::Warn => {
                tracing::warn!(table, "a row was changed; it is read as it was");
            }
            InvalidOperation::Error => {
                tracing::error!(table, "a row was changed; it is read as it was");
            }
            InvalidOperation::Fatal => {
                return Err(Trouble::Lost {
                    problem: format!("a row of {table} was changed"),
                    remedy:
                        "find out who changes rows of an outbox; with table.op.invalid.behavior = \
                             \"warn\" the source reads on"
                            .to_owned(),
                });
            }
        }
        Ok(())
    }
}

impl Reader for LogicalReader {
    fn next<'a>(&'a mut self, without: &'a [String]) -> BoxFuture<'a, Result<Batch, Trouble>> {
        Box::pin(self.read(without))
    }

    fn abandon(&mut self) -> BoxFuture<'_, Result<(), Trouble>> {
        Box::pin(self.give_up())
    }
}
