//! What the table is like: whether it can be read, and the statements that read it.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _};

use super::super::cells;
use super::super::port::{Finding, LAG_ROWS_MAX, Trouble};
use super::super::row::Place;
use super::trouble;
use crate::config::OutboxTableConfig;
use crate::config::source::outbox_table::{AfterAccept, TableName};

/// The column of our own layout that rows are numbered in.
const POSITION: &str = "position";

/// The statements for one table.
#[derive(Debug)]
pub(super) struct Layout {
    /// Up to what keeps certain keys out.
    select: String,
    /// The column of the keys.
    key: String,
    order: String,
    /// Settles the row at a place, which is bound to it.
    pub(super) settle: String,
    /// Counts what waits: rows, and the age of the oldest in seconds.
    pub(super) lag: String,
    /// Whether each wanted column is declared as JSON.
    pub(super) is_json: Vec<bool>,
    by_number: bool,
}

/// A column as the table declares it.
struct Declared {
    name: String,
    kind: String,
    in_key: i64,
}

impl Layout {
    /// Looks at the table. There is a layout when nothing that is found stands in the way.
    pub(super) fn find(
        connection: &Connection,
        config: &OutboxTableConfig,
    ) -> Result<(Option<Self>, Vec<Finding>), Trouble> {
        let mut findings = Vec::new();
        let declared = declared(connection, &config.table)?;
        if declared.is_empty() {
            findings.push(Finding {
                problem: format!("there is no table {}", config.table),
                remedy: Some(format!(
                    "wayhold outbox-table sql --for sqlite --table {} | sqlite3 FILE",
                    config.table
                )),
                advice: false,
            });
            return Ok((None, findings));
        }
        if connection.is_readonly("main").map_err(trouble)? {
            findings.push(missing("the file may not be written", None));
        }
        let column = |name: &str| {
            declared
                .iter()
                .find(|one| one.name.eq_ignore_ascii_case(name))
        };
        let wanted = cells::wanted(&config.router);
        let mark = match &config.after {
            AfterAccept::Mark(mark) => Some(mark.as_str()),
            AfterAccept::Delete | AfterAccept::Keep => None,
        };
        let needed = wanted.iter().copied().chain(mark);
        for name in needed.chain(config.order_by.as_deref()) {
            if column(name).is_none() {
                let problem = format!("the table {} has no column {name}", config.table);
                findings.push(missing(&problem, None));
            }
        }
        let numbered = numbered(connection, &config.table, &declared)?;
        let by_number = numbered == Numbered::Once;
        if !by_number && !is_unique(connection, config, &declared)? {
            findings.push(missing(
                "the table has neither an INTEGER PRIMARY KEY AUTOINCREMENT nor a unique id, so that no row \
                 can be deleted without another",
                Some(format!(
                    "CREATE UNIQUE INDEX {}.{} ON {} ({})",
                    quoted(schema(&config.table)),
                    quoted(&format!("{}_id", config.table.name)),
                    quoted(&config.table.name),
                    quoted(&config.router.id)
                )),
            ));
        }
        advise(connection, &numbered, config, &mut findings)?;
        if findings.iter().any(|finding| !finding.advice) {
            return Ok((None, findings));
        }
        let is_json = wanted
            .iter()
            .map(|name| column(name).is_some_and(|c| c.kind.to_ascii_lowercase().contains("json")))
            .collect();
        let flag = |name: &str| {
            let kind = column(name).map_or("", |c| c.kind.as_str());
            let kind = kind.to_ascii_lowercase();
            kind.contains("int") || kind.contains("bool")
        };
        let mark = mark.map(|mark| (quoted(mark), flag(mark)));
        // An id that is kept as bytes is a text as a place.
        let is_bytes =
            column(&config.router.id).is_some_and(|c| c.kind.eq_ignore_ascii_case("blob"));
        let bound = match is_bytes && !by_number {
            true => "unhex(replace(?, '-', ''))",
            false => "?",
        };
        let layout = Self::new(config, &numbered, mark, bound, is_json);
        Ok((Some(layout), findings))
    }

    fn new(
        config: &OutboxTableConfig,
        numbered: &Numbered,
        mark: Option<(String, bool)>,
        bound: &str,
        is_json: Vec<bool>,
    ) -> Self {
        let router = &config.router;
        let table = quoted_table(&config.table);
        let id = quoted(&router.id);
        let by_number = *numbered == Numbered::Once;
        let place = if by_number { "rowid" } else { &id };
        let waiting = match &mark {
            None => "1".to_owned(),
            Some((mark, true)) => format!("({mark} IS NULL OR {mark} = 0)"),
            Some((mark, false)) => format!("{mark} IS NULL"),
        };
        let settle = match &mark {
            None => format!("DELETE FROM {table} WHERE {place} = {bound}"),
            Some((mark, flag)) => {
                let now = match flag {
                    true => "1",
                    false => "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
                };
                format!("UPDATE {table} SET {mark} = {now} WHERE {place} = {bound} AND {waiting}")
            }
        };
        let tie = match numbered {
            Numbered::Once | Numbered::Again => "rowid",
            Numbered::Not => &id,
        };
        let order = match &config.order_by {
            Some(column) => format!("{}, {tie}", quoted(column)),
            None => tie.to_owned(),
        };
        let columns = cells::wanted(router);
        let columns: Vec<_> = columns.iter().map(|name| quoted(name)).collect();
        let oldest = router.timestamp.as_ref().map_or("NULL".to_owned(), |name| {
            let oldest = format!("min({})", quoted(name));
            format!(
                "CASE typeof({oldest}) WHEN 'integer' THEN unixepoch('now', 'subsec') - {oldest} / 1000.0 \
                 ELSE (julianday('now') - julianday({oldest})) * 86400 END"
            )
        });
        let time = router
            .timestamp
            .as_ref()
            .map_or("1".to_owned(), |name| quoted(name));
        Self {
            select: format!(
                "SELECT {place}, {} FROM {table} WHERE {waiting}",
                columns.join(", ")
            ),
            key: quoted(&router.key),
            order,
            settle,
            lag: format!(
                "SELECT count(*), {oldest} FROM (SELECT {time} FROM {table} WHERE {waiting} LIMIT {LAG_ROWS_MAX})"
            ),
            is_json,
            by_number,
        }
    }

    /// The statement of a sweep that leaves out this many keys, which are bound to it.
    pub(super) fn select(&self, without: usize) -> String {
        let Self {
            select, key, order, ..
        } = self;
        if without == 0 {
            return format!("{select} ORDER BY {order}");
        }
        let places = vec!["?"; without].join(", ");
        format!(
            "{select} AND ({key} IS NULL OR CAST({key} AS TEXT) NOT IN ({places})) ORDER BY {order}"
        )
    }

    /// The place that a row's first value is.
    pub(super) fn place(&self, value: ValueRef<'_>) -> Place {
        match value {
            ValueRef::Integer(number) if self.by_number => Place::Number(number),
            other => Place::Id(cells::text(super::cell(other, false)).unwrap_or_default()),
        }
    }
}

/// How the table numbers its rows.
#[derive(Debug, PartialEq, Eq)]
enum Numbered {
    /// Each number is given once (`AUTOINCREMENT`).
    Once,
    /// The number of a row that is gone may be given again.
    Again,
    /// Not at all (`WITHOUT ROWID`).
    Not,
}

fn numbered(
    connection: &Connection,
    table: &TableName,
    declared: &[Declared],
) -> Result<Numbered, Trouble> {
    let schema = schema(table);
    let select = "SELECT wr FROM pragma_table_list WHERE schema = ? COLLATE NOCASE AND name = ? COLLATE NOCASE";
    let found = connection.query_row(select, (schema, &table.name), |row| row.get(0));
    let without_rowid: bool = found.optional().map_err(trouble)?.unwrap_or(false);
    if without_rowid {
        return Ok(Numbered::Not);
    }
    let select = format!(
        "SELECT sql FROM {}.sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE",
        quoted(schema)
    );
    let found = connection.query_row(&select, [&table.name], |row| row.get(0));
    let sql: String = found.optional().map_err(trouble)?.unwrap_or_default();
    let is_key = |one: &Declared| one.in_key > 0 && one.kind.eq_ignore_ascii_case("integer");
    let once = declared.iter().any(is_key) && sql.to_ascii_uppercase().contains("AUTOINCREMENT");
    Ok(if once {
        Numbered::Once
    } else {
        Numbered::Again
    })
}

fn declared(connection: &Connection, table: &TableName) -> Result<Vec<Declared>, Trouble> {
    let select = "SELECT name, type, pk FROM pragma_table_info(?, ?)";
    let mut statement = connection.prepare(select).map_err(trouble)?;
    let found = statement.query_map((&table.name, schema(table)), |row| {
        Ok(Declared {
            name: row.get(0)?,
            kind: row.get(1)?,
            in_key: row.get(2)?,
        })
    });
    let found = found.map_err(trouble)?;
    found.collect::<Result<_, _>>().map_err(trouble)
}

/// Whether no two rows can have one id.
fn is_unique(
    connection: &Connection,
    config: &OutboxTableConfig,
    declared: &[Declared],
) -> Result<bool, Trouble> {
    let id = &config.router.id;
    let key: Vec<_> = declared.iter().filter(|one| one.in_key > 0).collect();
    if let [only] = key.as_slice()
        && only.name.eq_ignore_ascii_case(id)
    {
        return Ok(true);
    }
    let select = "SELECT 1 FROM pragma_index_list(?1, ?2) AS list, pragma_index_info(list.name, ?2) AS info \
                  WHERE list.\"unique\" AND NOT list.partial \
                  GROUP BY list.name HAVING count(*) = 1 AND max(info.name) = ?3 COLLATE NOCASE";
    let table = &config.table;
    let found = connection
        .query_row(select, (&table.name, schema(table), id), |_| Ok(()))
        .optional();
    Ok(found.map_err(trouble)?.is_some())
}

fn advise(
    connection: &Connection,
    numbered: &Numbered,
    config: &OutboxTableConfig,
    findings: &mut Vec<Finding>,
) -> Result<(), Trouble> {
    let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get(0));
    let mode: String = mode.map_err(trouble)?;
    if !mode.eq_ignore_ascii_case("wal") {
        findings.push(advice(
            format!("the file's journal is {mode}: reading and writing wait for each other"),
            "PRAGMA journal_mode = WAL",
        ));
    }
    if *numbered == Numbered::Not && config.order_by.is_none() {
        findings.push(advice(
            "the table is WITHOUT ROWID: rows are read in the order of their ids".to_owned(),
            &format!(
                "add {POSITION} INTEGER PRIMARY KEY AUTOINCREMENT, or name the column: order_by"
            ),
        ));
    }
    Ok(())
}

fn missing(problem: &str, remedy: Option<String>) -> Finding {
    Finding {
        problem: problem.to_owned(),
        remedy,
        advice: false,
    }
}

fn advice(problem: String, remedy: &str) -> Finding {
    Finding {
        problem,
        remedy: Some(remedy.to_owned()),
        advice: true,
    }
}

fn schema(table: &TableName) -> &str {
    table.schema.as_deref().unwrap_or("main")
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn quoted_table(table: &TableName) -> String {
    format!("{}.{}", quoted(schema(table)), quoted(&table.name))
}

/// The table's name as a part of a file's.
pub(super) fn file_name(table: &TableName) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    table.to_string().chars().map(plain).collect()
}
