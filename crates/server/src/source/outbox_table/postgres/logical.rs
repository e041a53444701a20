//! PostgreSQL's log, by a replication slot: rows in the order of their commits, whatever the table has of it.
//!
//! The log is read by ordinary statements: a sweep peeks at what lies behind the slot's place, and the slot is
//! moved on at the beginning of the next one, past transactions all of whose rows are durable here or left behind. What
//! was committed before there was a slot is read in the table first, and nothing else there.
//!
//! A row that is refused stays in the table, and so do later ones of its aggregate, while the slot moves on: they are
//! *left* (`left::Left`), in the order of their commits, and are read again in that order, a sweep of their own, once they
//! may be tried. Meanwhile rows of their aggregates are left, too, and all others come by the log. Only where more are
//! left than can be kept is the table read as in poll mode, until few enough are left over in it. Which of these it is
//! is noted at the publication (`slot::Note`), so that a restart, or another reader, knows it too.

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
use super::left::{LEFT_MAX, Left, LeftRow};
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

/// How often rows without a key that were left are read again; those with one are as soon as their keys may be.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Reads the table until little enough is left over in it, then the log.
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
    /// Rows that are left in the table while the log is read.
    left: Left,
    /// Those of them that this sweep reads; otherwise it is one of `way`.
    look: Option<Look>,
    looked: Instant,
    /// Rows that this sweep found, and how many of them are settled.
    found: u64,
    settled: Arc<AtomicU64>,
    /// Rows that this sweep found and that stay.
    stay: Stay,
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

/// A sweep of rows that were left.
struct Look {
    /// Which ones, in order.
    ids: Vec<String>,
    /// How many of them were looked for.
    done: usize,
}

/// Rows of one sweep that stay, by their numbers within it.
#[derive(Default)]
struct Stay {
    rows: Vec<(u64, LeftRow)>,
    count: u64,
}

impl Stay {
    fn push(&mut self, row: &Row) {
        self.count += 1;
        // More of them cannot be kept anyway.
        if self.rows.len() > LEFT_MAX {
            return;
        }
        let at = match &row.place {
            Place::Logged { at, .. } => *at,
            _ => self.count,
        };
        let row = LeftRow {
            id: row.id.clone().unwrap_or_default(),
            key: row.key.clone().filter(|key| !key.is_empty()),
        };
        self.rows.push((at, row));
    }

    /// The rows in their order. They are told of in another: some are left out while earlier ones are in hand.
    fn in_order(mut self) -> Vec<LeftRow> {
        self.rows.sort_by_key(|(at, _)| *at);
        self.rows.into_iter().map(|(_, row)| row).collect()
    }
}

/// A sweep of the log.
#[derive(Default)]
struct LogSweep {
    relations: HashMap<u32, Option<Vec<String>>>,
    changes: usize,
    /// Rows that were put into the table.
    inserted: u64,
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
    /// A reader that goes on by a note.
    pub(super) async fn open(
        mut table: PostgresReader,
        config: &OutboxTableConfig,
        columns: &Table,
        note: Note,
        settled: Arc<AtomicU64>,
    ) -> Result<Self, Trouble> {
        let keeps = config.after == AfterAccept::Keep;
        let (way, until, ids) = match note {
            Note::Log { left } => (Way::Log, None, left),
            _ if keeps => (Way::Log, None, Vec::new()),
            Note::Before(snapshot) => (Way::Table, Some(snapshot), Vec::new()),
            Note::Nothing | Note::Table => (Way::Table, None, Vec::new()),
        };
        table.before.clone_from(&until);
        let left = match ids.is_empty() {
            true => Some(Left::default()),
            false => Left::of(table.keys_of(&ids).await?),
        };
        Ok(Self {
            table,
            layout: Layout {
                router: config.router.clone(),
                table: columns.clone(),
                ignores_updates: matches!(config.after, AfterAccept::Mark(_)),
            },
            slot: config.slot.clone(),
            publication: config.publication.clone(),
            keeps,
            way: match left {
                Some(_) => way,
                None => Way::Table,
            },
            until,
            left: left.unwrap_or_default(),
            look: None,
            looked: Instant::now(),
            found: 0,
            settled,
            stay: Stay::default(),
            ended: None,
            sweep: None,
            read_to: None,
            followed: Instant::now(),
        })
    }

    async fn read(&mut self, without: &[String]) -> Result<Batch, Trouble> {
        if let Some(ended) = self.ended.take() {
            self.between_sweeps(ended, without).await?;
        }
        if self.sweep.is_none() && self.look.is_none() && self.way == Way::Log {
            self.look = self.begin_look(without);
        }
        let batch = match self.way {
            Way::Table => {
                if self.until.is_none() {
                    self.until = Some(self.table.snapshot().await?);
                }
                self.table.next(without).await?
            }
            Way::Log | Way::HeldUp => match self.look.take() {
                Some(look) => self.read_left(look).await?,
                None => self.read_log(without).await?,
            },
        };
        self.found += batch.rows.len() as u64;
        if batch.end != End::More {
            self.ended = Some(batch.end);
        }
        Ok(batch)
    }

    /// What the last sweep came to: the slot moves on, or the other way of reading begins.
    async fn between_sweeps(&mut self, ended: End, without: &[String]) -> Result<(), Trouble> {
        let settled = self.settled.swap(0, Ordering::Relaxed);
        let found = std::mem::take(&mut self.found);
        let stay = std::mem::take(&mut self.stay);
        // One that was given up met a limit here: the same again, unless all that it found is settled.
        let is_whole = ended != End::More && settled + stay.count >= found;
        let is_clean = settled >= found;
        if let Some(look) = self.look.take() {
            if is_whole {
                self.left.looked_at(&look.ids, stay.in_order());
                if self.left.is_empty() {
                    self.note_left().await?;
                }
            }
            return Ok(());
        }
        if self.way == Way::Table {
            let is_clean = is_clean && without.is_empty();
            return self.after_table(ended, is_clean).await;
        }
        self.way = match !is_clean && self.keeps {
            true => Way::HeldUp,
            false => Way::Log,
        };
        if self.way == Way::HeldUp || !(is_clean || is_whole) {
            self.read_to = None;
            return Ok(());
        }
        if !is_clean {
            match self.left.add(stay.in_order()) {
                true => self.note_left().await?,
                false => {
                    let table = self.layout.table.name.as_str();
                    tracing::warn!(
                        table,
                        "more rows wait for refused ones than are kept in order; the table is read in that of poll mode"
                    );
                    self.note(Note::Table).await?;
                    (self.way, self.left) = (Way::Table, Left::default());
                }
            }
        }
        if let Some(end) = self.read_to.take() {
            slot::advance(&mut self.table.connection, &self.slot, end).await?;
        }
        Ok(())
    }

    /// The log begins as soon as what is left over in the table can be kept in order.
    async fn after_table(&mut self, ended: End, is_clean: bool) -> Result<(), Trouble> {
        if matches!(ended, End::More | End::Again) {
            return Ok(());
        }
        if let Some(until) = &self.until {
            let left = self.table.left_over(until, LEFT_MAX + 1).await?;
            if let Some(left) = Left::of(left) {
                self.left = left;
                self.note_left().await?;
                self.way = Way::Log;
                (self.until, self.table.before) = (None, None);
                return Ok(());
            }
        }
        // What was refused may wait for long, and what comes since must not.
        if !is_clean && self.table.before.take().is_some() {
            self.note(Note::Table).await?;
        }
        Ok(())
    }

    async fn note_left(&mut self) -> Result<(), Trouble> {
        let left = self.left.ids();
        self.note(Note::Log { left }).await
    }

    async fn note(&mut self, note: Note) -> Result<(), Trouble> {
        let publication = self.publication.clone();
        note.write(self.connection(), &publication).await
    }

    fn connection(&mut self) -> &mut PgConnection {
        &mut self.table.connection
    }

    /// Rows that were left and may be tried again, where there are any.
    fn begin_look(&mut self, without: &[String]) -> Option<Look> {
        if self.left.is_empty() {
            return None;
        }
        let keyless = self.left.has_keyless() && self.looked.elapsed() >= LOOK_EVERY;
        let ids = self.left.due(without, keyless);
        if keyless {
            self.looked = Instant::now();
        }
        (!ids.is_empty()).then_some(Look { ids, done: 0 })
    }

    async fn read_left(&mut self, mut look: Look) -> Result<Batch, Trouble> {
        let rest = look.ids.get(look.done..).unwrap_or_default();
        let (rows, looked_for) = self.table.rows_of(rest).await?;
        look.done += looked_for;
        let end = match look.done < look.ids.len() {
            true => End::More,
            // The log has more.
            false => End::Again,
        };
        self.look = Some(look);
        Ok(Batch { rows, end })
    }

    async fn read_log(&mut self, without: &[String]) -> Result<Batch, Trouble> {
        let mut sweep = match self.sweep.take() {
            Some(sweep) => sweep,
            None => self.begin().await?,
        };
        let wanted = self.table.wanted();
        let fetch = format!("FETCH FORWARD {wanted} FROM {CURSOR}");
        let fetched = sqlx::query(sqlx::AssertSqlSafe(fetch))
            .fetch_all(self.connection())
            .await
            .map_err(trouble)?;
        let mut rows = Vec::new();
        for message in &fetched {
            let data: &[u8] = message.try_get(0).map_err(trouble)?;
            let row = self.take(&mut sweep, data)?;
            let Some(row) = row else { continue };
            let waits = |key: &String| without.contains(key) || self.left.holds(key);
            if row.key.as_ref().is_some_and(waits) {
                self.found += 1;
                self.stay.push(&row);
            } else {
                rows.push(row);
            }
        }
        self.table.learn_size(&rows);
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
                    sweep.inserted += 1;
                    return Ok(Some(self.layout.row(columns, &values, sweep.inserted)));
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
    fn row(&self, columns: &[String], values: &[Option<&str>], at: u64) -> Row {
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
                at,
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

    fn stays(&mut self, row: &Row) {
        self.stay.push(row);
    }

    fn abandon(&mut self) -> BoxFuture<'_, Result<(), Trouble>> {
        Box::pin(self.give_up())
    }
}
