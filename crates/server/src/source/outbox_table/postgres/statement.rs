//! The statements for one table, made of its configuration and of what its columns are. Pure.

use std::fmt::Write as _;

use super::super::row::Place;
use super::table::{ColumnKind, Table};
use crate::config::OutboxTableConfig;
use crate::config::source::outbox_table::AfterAccept;

/// Most rows of a sweep. While it lasts, PostgreSQL keeps what is deleted for its snapshot, so it should
/// not last long; and a table without an index on its order is sorted once for each.
pub(super) const SWEEP_ROWS: usize = 50_000;

/// The cursor that a sweep goes by.
pub(super) const CURSOR: &str = "wayhold_sweep";

/// Columns of a sweep before those that the configuration names.
pub(super) mod at {
    pub(in super::super) const PLACE: usize = 0;
    pub(in super::super) const XID: usize = 1;
    pub(in super::super) const OPEN: usize = 2;
    pub(in super::super) const ID: usize = 3;
    pub(in super::super) const ROUTE: usize = 4;
    pub(in super::super) const KEY: usize = 5;
    pub(in super::super) const KIND: usize = 6;
    pub(in super::super) const PAYLOAD: usize = 7;
    pub(in super::super) const TIMESTAMP: usize = 8;
    pub(in super::super) const SCHEMA_VERSION: usize = 9;
    pub(in super::super) const ADDITIONAL: usize = 10;
}

/// Statements of one table.
#[derive(Clone, Debug)]
pub(super) struct Statements {
    /// Opens a sweep; `$1` are keys that are left out.
    pub(super) sweep: String,
    /// The same of rows that were committed before a snapshot, `$2`.
    pub(super) sweep_before: String,
    /// Id and key of rows that wait and were committed before a snapshot, `$1`, in order; `$2` of them at most.
    pub(super) left_over: String,
    /// Id and key of those of these rows, `$1`, that wait, in this order.
    pub(super) keys_of: String,
    /// Those of these rows, `$1`, that wait, in this order.
    pub(super) rows_of: String,
    /// Counts what waits, and how many seconds ago the oldest is from.
    pub(super) lag: String,
    /// Type of the payload.
    pub(super) payload: ColumnKind,
    /// Types of the additional columns.
    pub(super) additional: Vec<ColumnKind>,
    /// Settles rows by their events' ids, `$1`; `None` where rows stay as they are.
    pub(super) settle_by_id: Option<String>,
    /// `DELETE FROM ...` or `UPDATE ...`, up to its condition.
    settle: String,
}

impl Statements {
    /// The statements of a table whose configured columns are all there.
    pub(super) fn new(config: &OutboxTableConfig, table: &Table) -> Self {
        let router = &config.router;
        let kind_of = |column: &str| table.kind_of(column).unwrap_or(ColumnKind::Other);
        let text = |column: &str| format!("t.{}::text", quoted(column));
        let optional = |column: &Option<String>, of: &dyn Fn(&str) -> String| {
            column.as_deref().map_or("NULL::text".to_owned(), of)
        };
        let payload = kind_of(&router.payload);
        let mut columns = vec![
            "t.ctid::text".to_owned(),
            "t.xmin::text::int8".to_owned(),
            OPEN.to_owned(),
            text(&router.id),
            text(&router.route_by),
            text(&router.key),
            text(&router.kind),
            match payload {
                ColumnKind::Bytes => format!("t.{}", quoted(&router.payload)),
                _ => text(&router.payload),
            },
            optional(&router.timestamp, &|column| {
                time_of(column, kind_of(column))
            }),
            optional(&router.schema_version, &text),
        ];
        let additional = router.additional.iter();
        columns.extend(additional.map(|one| value_of(&one.column, kind_of(&one.column))));
        let (waits, settle) = match &config.after {
            AfterAccept::Mark(column) => mark(&table.name, column, kind_of(column)),
            AfterAccept::Delete | AfterAccept::Keep => (
                "true".to_owned(),
                format!("DELETE FROM ONLY {} t", table.name),
            ),
        };
        let order = match &table.order_by {
            Some(column) => format!("t.{}", quoted(column)),
            // Oldest transaction first: how far back it lies, which goes on when numbers begin anew.
            None => format!(
                "((SELECT high FROM horizon) - t.xmin::text::int8) & 4294967295 DESC, t.{}",
                quoted(&router.id)
            ),
        };
        let name = &table.name;
        let sweep = |before: &str| {
            format!(
                "DECLARE {CURSOR} NO SCROLL CURSOR FOR {HORIZON} SELECT {} FROM ONLY {name} t \
                 WHERE {waits} AND ({key} IS NULL OR {key} <> ALL($1)){before} \
                 ORDER BY {order} LIMIT {SWEEP_ROWS}",
                columns.join(", "),
                key = text(&router.key),
            )
        };
        let of_ids = |columns: &str| {
            format!(
                "{HORIZON} SELECT {columns} FROM unnest($1::text[]) WITH ORDINALITY wanted (id, number) \
                 JOIN ONLY {name} t ON t.{} = wanted.id::{} WHERE {waits} ORDER BY wanted.number",
                quoted(&router.id),
                table.type_of(&router.id),
            )
        };
        Self {
            sweep: sweep(""),
            sweep_before: sweep(&format!(" AND {}", committed_before("$2"))),
            left_over: format!(
                "{HORIZON} SELECT {id}, {key} FROM ONLY {name} t WHERE {waits} AND {} \
                 ORDER BY {order} LIMIT $2",
                committed_before("$1"),
                id = text(&router.id),
                key = text(&router.key),
            ),
            keys_of: of_ids(&format!("{}, {}", text(&router.id), text(&router.key))),
            rows_of: of_ids(&columns.join(", ")),
            lag: lag(config, table, &waits),
            payload,
            additional: router
                .additional
                .iter()
                .map(|one| kind_of(&one.column))
                .collect(),
            settle_by_id: (config.after != AfterAccept::Keep).then(|| {
                format!(
                    "{settle} WHERE t.{} = ANY ($1::text[]::{}[])",
                    quoted(&router.id),
                    table.type_of(&router.id)
                )
            }),
            settle,
        }
    }

    /// Deletes or marks exactly these rows: those of these places that these transactions put in. A place may
    /// have gone to another row meanwhile, but none of these transactions can have put that one in, for all
    /// of them had ended.
    /// `None` where none is such a place.
    pub(super) fn settle(&self, places: &[Place]) -> Option<String> {
        let (mut tuples, mut xids) = (String::new(), String::new());
        let mut last = None;
        for place in places {
            let Place::Tuple { block, offset, xid } = place else {
                continue;
            };
            let between = if tuples.is_empty() { "" } else { "," };
            // Writing to a String cannot fail.
            write!(tuples, "{between}\"({block},{offset})\"").ok();
            // Rows of a transaction follow each other more often than not.
            if last != Some(xid) {
                write!(xids, "{between}{xid}").ok();
                last = Some(xid);
            }
        }
        (!tuples.is_empty()).then(|| {
            format!(
                "{} WHERE t.ctid = ANY ('{{{tuples}}}'::tid[]) AND t.xmin = ANY ('{{{xids}}}'::xid[])",
                self.settle
            )
        })
    }
}

/// The oldest transaction that is open, and how many numbers have been given since. Made once a statement.
const HORIZON: &str = "WITH horizon AS MATERIALIZED (\
     SELECT pg_snapshot_xmin(s)::text::int8 AS low, pg_snapshot_xmax(s)::text::int8 AS high \
     FROM pg_current_snapshot() s)";

/// Whether a row's transaction is not older than every open one. Rows carry only the lower half of the
/// number, so it is the distance that counts: it is small for those that began since, whatever the number.
const OPEN: &str = "((t.xmin::text::int8 - (SELECT low FROM horizon)) & 4294967295) \
     < (SELECT high - low FROM horizon)";

/// Whether a row that is there was committed before a snapshot. Rows carry only the lower half of the number.
fn committed_before(snapshot: &str) -> String {
    const HIGH: &str = "(SELECT high FROM horizon)";
    format!(
        "pg_visible_in_snapshot(({HIGH} - (({HIGH} - t.xmin::text::int8) & 4294967295))::text::xid8, \
         {snapshot}::text::pg_snapshot)"
    )
}

fn mark(table: &str, column: &str, kind: ColumnKind) -> (String, String) {
    let column = quoted(column);
    match kind {
        ColumnKind::Boolean => (
            format!("t.{column} IS NOT TRUE"),
            format!("UPDATE ONLY {table} t SET {column} = true"),
        ),
        _ => (
            format!("t.{column} IS NULL"),
            format!("UPDATE ONLY {table} t SET {column} = now()"),
        ),
    }
}

fn lag(config: &OutboxTableConfig, table: &Table, waits: &str) -> String {
    let max = crate::source::outbox_table::port::LAG_ROWS_MAX;
    let seconds = match &config.router.timestamp {
        Some(column) => age_of(column, table.kind_of(column)),
        None => None,
    };
    let seconds = seconds.unwrap_or("NULL::float8".to_owned());
    format!(
        "SELECT count(*), max(age) FROM (SELECT {seconds} AS age FROM ONLY {} t WHERE {waits} \
         LIMIT {max}) counted",
        table.name
    )
}

fn age_of(column: &str, kind: Option<ColumnKind>) -> Option<String> {
    let column = format!("t.{}", quoted(column));
    let at = match kind? {
        ColumnKind::Instant => column,
        ColumnKind::Local => format!("({column}::timestamp AT TIME ZONE 'UTC')"),
        ColumnKind::Integer => format!("to_timestamp({column} / 1000.0)"),
        _ => return None,
    };
    Some(format!("extract(epoch FROM now() - {at})::float8"))
}

/// A time as RFC 3339. A whole number counts milliseconds since 1970, as Debezium has it.
fn time_of(column: &str, kind: ColumnKind) -> String {
    let name = format!("t.{}", quoted(column));
    let local = match kind {
        ColumnKind::Instant => format!("{name} AT TIME ZONE 'UTC'"),
        ColumnKind::Local => format!("{name}::timestamp"),
        ColumnKind::Integer => format!("to_timestamp({name} / 1000.0) AT TIME ZONE 'UTC'"),
        _ => return format!("{name}::text"),
    };
    format!("to_char({local}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
}

/// An additional column: what JSON has a form for is in that form.
fn value_of(column: &str, kind: ColumnKind) -> String {
    let name = format!("t.{}", quoted(column));
    match kind {
        ColumnKind::Instant | ColumnKind::Local => time_of(column, kind),
        // Not every number is one in JSON.
        ColumnKind::Number => format!("to_json({name})::text"),
        // In one line: lines are the encoding's own idea.
        ColumnKind::Bytes => format!("translate(encode({name}, 'base64'), E'\\n', '')"),
        _ => format!("{name}::text"),
    }
}

/// A name as a statement has it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as a statement has it.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
