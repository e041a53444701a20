//! What the table is like: whether it can be read, and the statements that read it.

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::super::cells::{self, Cell};
use super::super::port::{Finding, LAG_ROWS_MAX, Trouble};
use super::durable::quoted_user;
use super::trouble;
use crate::config::OutboxTableConfig;
use crate::config::source::outbox_table::AfterAccept;

/// The column of our own layout that rows are numbered in.
const POSITION: &str = "position";

/// The statements for one table.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// `database.table`.
    pub(super) full_name: String,
    /// Whether rows have a number that no other row has: it is their place then, and their id otherwise.
    pub(super) has_number: bool,
    /// What the wanted columns are, in their order.
    pub(super) kinds: Vec<Kind>,
    table: String,
    columns: String,
    place: String,
    /// What is bound as a place, as the column has it.
    bound: &'static str,
    /// What is true of rows that are neither deleted nor marked.
    waiting: String,
    /// Sets the mark; `None` where rows are deleted.
    mark: Option<String>,
    /// The aggregate's id as a text that is compared letter by letter.
    key: String,
    order: String,
    /// Whether rows are read in the order of their numbers.
    by_number: bool,
    oldest: String,
}

/// A column as the table declares it.
#[derive(Clone, Debug)]
struct Declared {
    name: String,
    kind: Kind,
    is_integer: bool,
    counts_up: bool,
}

/// How a column's values are asked for and what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// A text that the server has checked to be JSON (MariaDB), or JSON itself.
    JsonText,
    Json,
    Number,
    Bits,
    Time,
    Bytes,
}

impl Kind {
    fn of(data_type: &str, column_type: &str) -> Self {
        match data_type {
            // Leading zeros are no number in JSON.
            _ if column_type.contains("zerofill") => Self::Text,
            "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "decimal" | "float"
            | "double" => Self::Number,
            "bit" => Self::Bits,
            "timestamp" | "datetime" => Self::Time,
            "json" => Self::Json,
            "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => Self::Bytes,
            _ => Self::Text,
        }
    }

    /// The column as it is asked for. Long texts and bytes come as they are: a cast of one that is longer
    /// than the server's packets would be NULL.
    fn asked(self, column: &str, is_long: bool) -> String {
        match self {
            Self::Text | Self::JsonText if is_long => column.to_owned(),
            Self::Bytes => column.to_owned(),
            Self::Bits => format!("CAST({column} + 0 AS CHAR)"),
            Self::Text | Self::JsonText | Self::Json | Self::Number | Self::Time => {
                format!("CAST({column} AS CHAR)")
            }
        }
    }

    /// The value of a row in one of its columns.
    pub(super) fn cell(self, row: &MySqlRow, index: usize) -> Result<Cell, sqlx::Error> {
        // What it is follows from how it was asked for; names of types differ between servers.
        let text = || row.try_get_unchecked::<Option<String>, _>(index);
        let made = |make: fn(String) -> Cell| Ok(text()?.map_or(Cell::Null, make));
        match self {
            Self::Text | Self::Time => made(Cell::Text),
            Self::Number | Self::Bits => made(Cell::Number),
            Self::Json | Self::JsonText => made(Cell::Json),
            Self::Bytes => {
                let bytes = row.try_get_unchecked::<Option<Vec<u8>>, _>(index)?;
                Ok(bytes.map_or(Cell::Null, Cell::Bytes))
            }
        }
    }
}

impl Layout {
    /// Looks at the table. There is a layout when nothing that is found stands in the way.
    pub(super) async fn find(
        connection: &mut MySqlConnection,
        config: &OutboxTableConfig,
    ) -> Result<(Option<Self>, Vec<Finding>), Trouble> {
        let seen = Seen::of(connection, config).await?;
        let findings = seen.findings(config);
        let stands = findings.iter().all(|finding| finding.advice);
        Ok((stands.then(|| seen.layout(config)), findings))
    }

    /// What this user may not do and must.
    pub(super) async fn privileges(
        &self,
        connection: &mut MySqlConnection,
    ) -> Result<Vec<Finding>, Trouble> {
        // Explaining needs what doing needs, and does nothing.
        let explained = format!("EXPLAIN {}", self.settle(1));
        let explained = sqlx::query(AssertSqlSafe(explained)).bind(None::<i64>);
        let Err(error) = explained.fetch_all(&mut *connection).await else {
            return Ok(Vec::new());
        };
        let user: String = sqlx::query_scalar("SELECT CURRENT_USER()")
            .fetch_one(&mut *connection)
            .await
            .map_err(trouble)?;
        let privilege = match self.mark {
            None => "DELETE",
            Some(_) => "UPDATE",
        };
        Ok(vec![Finding {
            problem: format!("rows cannot be settled: {}", trouble(error)),
            remedy: Some(format!(
                "GRANT SELECT, {privilege} ON {} TO {}",
                self.table,
                quoted_user(&user)
            )),
            advice: false,
        }])
    }

    /// The first rows without this many keys, which are bound to it.
    pub(super) fn select(&self, without: usize, limit: usize) -> String {
        let Self {
            table,
            columns,
            place,
            waiting,
            key,
            order,
            ..
        } = self;
        let kept_out = match without {
            0 => String::new(),
            _ => format!(
                " AND ({key} IS NULL OR {key} NOT IN ({}))",
                bound("?", without)
            ),
        };
        format!(
            "SELECT {place}, {columns} FROM {table} WHERE {waiting}{kept_out} ORDER BY {order} LIMIT {limit}"
        )
    }

    /// The first row of each key before a number, which is bound first, without `seen` of them; nothing
    /// where rows are read in another order than that of their numbers.
    pub(super) fn between(&self, seen: usize) -> Option<String> {
        let Self {
            table,
            place,
            waiting,
            key,
            ..
        } = self;
        let seen = match seen {
            0 => String::new(),
            _ => format!(" AND {place} NOT IN ({})", bound("?", seen)),
        };
        self.by_number.then(|| {
            format!(
                "SELECT {key}, CAST(MIN({place}) AS SIGNED) FROM {table} \
                 WHERE {place} < ?{seen} AND {waiting} GROUP BY {key}"
            )
        })
    }

    /// Deletes or marks this many rows, whose places are bound to it.
    pub(super) fn settle(&self, places: usize) -> String {
        let Self {
            table,
            place,
            waiting,
            ..
        } = self;
        let places = bound(self.bound, places);
        match &self.mark {
            None => format!("DELETE FROM {table} WHERE {place} IN ({places})"),
            Some(set) => {
                format!("UPDATE {table} SET {set} WHERE {place} IN ({places}) AND {waiting}")
            }
        }
    }

    /// Counts what waits: rows, and the age of the oldest in microseconds.
    pub(super) fn lag(&self) -> String {
        let Self {
            table,
            waiting,
            oldest,
            ..
        } = self;
        let age = match oldest.as_str() {
            "NULL" => "CAST(NULL AS SIGNED)",
            _ => "TIMESTAMPDIFF(MICROSECOND, MIN(oldest), UTC_TIMESTAMP(6))",
        };
        format!(
            "SELECT COUNT(*), {age} FROM \
             (SELECT {oldest} AS oldest FROM {table} WHERE {waiting} LIMIT {LAG_ROWS_MAX}) AS waiting"
        )
    }
}

/// A table as the server describes it.
struct Seen {
    schema: String,
    /// The storage engine; `None`: there is no such table.
    engine: Option<String>,
    columns: Vec<Declared>,
    /// Columns whose values no two rows share.
    unique: Vec<String>,
}

impl Seen {
    async fn of(
        connection: &mut MySqlConnection,
        config: &OutboxTableConfig,
    ) -> Result<Self, Trouble> {
        let name = config.table.name.as_str();
        let schema = match &config.table.schema {
            Some(schema) => schema.clone(),
            None => sqlx::query_scalar("SELECT COALESCE(DATABASE(), '')")
                .fetch_one(&mut *connection)
                .await
                .map_err(trouble)?,
        };
        let engine = texts(
            connection,
            "SELECT engine FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
            [&schema, name],
        );
        let engine = engine.await?.into_iter().flatten().next();
        let described = texts(
            connection,
            "SELECT column_name, data_type, column_type, extra FROM information_schema.columns \
             WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position",
            [&schema, name],
        );
        let mut columns: Vec<_> = described.await?.iter().map(|row| declared(row)).collect();
        let unique = texts(
            connection,
            "SELECT MAX(column_name) FROM information_schema.statistics \
             WHERE table_schema = ? AND table_name = ? AND non_unique = 0 \
             GROUP BY index_name HAVING COUNT(*) = 1",
            [&schema, name],
        );
        let unique = unique.await?.into_iter().flatten().collect();
        for checked in json_checks(connection, &schema, name).await? {
            for column in &mut columns {
                if column.kind == Kind::Text && checked.contains(&quoted(&column.name)) {
                    column.kind = Kind::JsonText;
                }
            }
        }
        Ok(Self {
            schema,
            engine,
            columns,
            unique,
        })
    }

    fn column(&self, name: &str) -> Option<&Declared> {
        let mut columns = self.columns.iter();
        columns.find(|column| column.name.eq_ignore_ascii_case(name))
    }

    fn is_unique(&self, name: &str) -> bool {
        self.unique.iter().any(|one| one.eq_ignore_ascii_case(name))
    }

    /// The column that numbers the rows: ours, or whichever counts up.
    fn number(&self) -> Option<&Declared> {
        let ours = self.column(POSITION);
        let counting = self.columns.iter().find(|column| column.counts_up);
        let number = ours.or(counting)?;
        (number.is_integer && self.is_unique(&number.name)).then_some(number)
    }

    fn findings(&self, config: &OutboxTableConfig) -> Vec<Finding> {
        let table = &config.table;
        let Some(engine) = &self.engine else {
            return vec![Finding {
                problem: format!("there is no table {table}, or the user may not see it"),
                remedy: Some(format!(
                    "wayhold outbox-table sql --for mysql --table {table}"
                )),
                advice: false,
            }];
        };
        let mut findings = Vec::new();
        let mut missing = |problem: String, remedy: Option<String>| {
            findings.push(Finding {
                problem,
                remedy,
                advice: false,
            });
        };
        if !engine.eq_ignore_ascii_case("InnoDB") {
            missing(
                format!("the table's engine is {engine}, which has no transactions"),
                Some(format!(
                    "ALTER TABLE {} ENGINE = InnoDB",
                    self.quoted(config)
                )),
            );
        }
        let mark = match &config.after {
            AfterAccept::Mark(mark) => Some(mark.as_str()),
            AfterAccept::Delete | AfterAccept::Keep => None,
        };
        let wanted = cells::wanted(&config.router);
        for name in wanted
            .into_iter()
            .chain(mark)
            .chain(config.order_by.as_deref())
        {
            if self.column(name).is_none() {
                missing(format!("the table {table} has no column {name}"), None);
            }
        }
        if let Some(mark) = mark.and_then(|mark| self.column(mark))
            && !matches!(mark.kind, Kind::Time | Kind::Number | Kind::Bits)
        {
            let name = &mark.name;
            missing(
                format!("the column {name} is neither a time nor a flag"),
                None,
            );
        }
        if self.number().is_none() && !self.is_unique(&config.router.id) {
            missing(
                "the table has neither a number nor an id that is unique, so that no row can be deleted \
                 without another"
                    .to_owned(),
                Some(format!(
                    "ALTER TABLE {} ADD UNIQUE KEY ({})",
                    self.quoted(config),
                    quoted(&config.router.id)
                )),
            );
        }
        if self.number().is_none() && config.order_by.is_none() {
            findings.push(Finding {
                problem:
                    "the table does not number its rows: they are read in the order of their ids"
                        .to_owned(),
                remedy: Some(format!(
                    "ALTER TABLE {} ADD COLUMN {POSITION} bigint NOT NULL AUTO_INCREMENT, \
                     ADD UNIQUE KEY ({POSITION})",
                    self.quoted(config)
                )),
                advice: true,
            });
        }
        findings
    }

    fn quoted(&self, config: &OutboxTableConfig) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&config.table.name))
    }

    fn layout(&self, config: &OutboxTableConfig) -> Layout {
        let router = &config.router;
        let kind = |name: &str| self.column(name).map_or(Kind::Text, |column| column.kind);
        let wanted = cells::wanted(router);
        let asked = |(index, name): (usize, &&str)| {
            // The payload is the one that may be long.
            kind(name).asked(&quoted(name), index == PAYLOAD)
        };
        let columns: Vec<_> = wanted.iter().enumerate().map(asked).collect();
        let id = (quoted(&router.id), kind(&router.id));
        let number = self.number().map(|column| quoted(&column.name));
        let (place, bound) = match (&number, id.1) {
            (Some(number), _) => (number.clone(), "?"),
            (None, Kind::Bytes) => (id.0.clone(), "UNHEX(REPLACE(?, '-', ''))"),
            (None, _) => (id.0.clone(), "?"),
        };
        let ordered = config.order_by.as_deref().map(quoted);
        let order = match &ordered {
            Some(column) if *column != place => format!("{column}, {place}"),
            _ => place.clone(),
        };
        let (waiting, mark) = match &config.after {
            AfterAccept::Mark(name) => {
                let mark = quoted(name);
                match kind(name) {
                    Kind::Time => (
                        format!("{mark} IS NULL"),
                        Some(format!("{mark} = UTC_TIMESTAMP(6)")),
                    ),
                    _ => (
                        format!("({mark} IS NULL OR {mark} = 0)"),
                        Some(format!("{mark} = 1")),
                    ),
                }
            }
            AfterAccept::Delete | AfterAccept::Keep => ("TRUE".to_owned(), None),
        };
        let timestamp = router.timestamp.as_deref();
        let timestamp = timestamp.filter(|name| kind(name) == Kind::Time);
        Layout {
            full_name: format!("{}.{}", self.schema, config.table.name),
            has_number: number.is_some(),
            kinds: wanted.iter().map(|name| kind(name)).collect(),
            table: self.quoted(config),
            columns: columns.join(", "),
            by_number: number.is_some() && order == place,
            place,
            bound,
            waiting,
            mark,
            key: compared(&quoted(&router.key), kind(&router.key)),
            order,
            oldest: timestamp.map_or("NULL".to_owned(), quoted),
        }
    }
}

/// Where the payload stands among the wanted columns.
const PAYLOAD: usize = 4;

/// A column as `cells::text` writes it, compared letter by letter.
fn compared(column: &str, kind: Kind) -> String {
    let text = match kind {
        Kind::Bytes => format!(
            "LOWER(INSERT(INSERT(INSERT(INSERT(HEX({column}), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'), 24, 0, '-'))"
        ),
        other => other.asked(column, false),
    };
    format!("{text} COLLATE utf8mb4_bin")
}

fn declared(row: &[String]) -> Declared {
    let text = |index: usize| row.get(index).map(String::as_str).unwrap_or_default();
    let data_type = text(1).to_ascii_lowercase();
    Declared {
        name: text(0).to_owned(),
        kind: Kind::of(&data_type, &text(2).to_ascii_lowercase()),
        is_integer: data_type.ends_with("int"),
        counts_up: text(3).to_ascii_lowercase().contains("auto_increment"),
    }
}

/// What MariaDB, whose JSON is a text, checks of the table's texts. MySQL has no such column of checks.
async fn json_checks(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &str,
) -> Result<Vec<String>, Trouble> {
    let select = "SELECT check_clause FROM information_schema.check_constraints \
                  WHERE constraint_schema = ? AND table_name = ? AND check_clause LIKE 'json_valid(%'";
    match texts(connection, select, [schema, table]).await {
        Ok(found) => Ok(found.into_iter().flatten().collect()),
        Err(Trouble::Unreachable(text)) if text.contains("(42S22)") => Ok(Vec::new()),
        Err(trouble) => Err(trouble),
    }
}

/// Rows of texts, whatever the server calls their types; what is NULL is left out.
async fn texts(
    connection: &mut MySqlConnection,
    select: &'static str,
    [schema, table]: [&str; 2],
) -> Result<Vec<Vec<String>>, Trouble> {
    let found = sqlx::query(select)
        .bind(schema)
        .bind(table)
        .fetch_all(connection)
        .await
        .map_err(trouble)?;
    let texts = |row: &MySqlRow| {
        let texts = (0..row.len()).map(|index| row.try_get_unchecked::<Option<String>, _>(index));
        let texts: Result<Vec<_>, _> = texts.collect();
        texts.map(|texts| texts.into_iter().flatten().collect())
    };
    let texts: Result<Vec<_>, sqlx::Error> = found.iter().map(texts).collect();
    texts.map_err(trouble)
}

fn bound(place: &str, count: usize) -> String {
    vec![place; count].join(", ")
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}
