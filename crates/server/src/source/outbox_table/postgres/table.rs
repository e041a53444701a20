//! What the table is like: its columns and their types, as far as a source names them.

use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::super::port::Finding;
use super::statement::{literal, quoted};
use super::trouble;
use crate::config::OutboxTableConfig;
use crate::config::source::outbox_table::{AfterAccept, TableName};
use crate::source::outbox_table::Trouble;

/// The identity column of our own layout: rows are read in its order where nothing else is configured.
const POSITION: &str = "position";

/// A table as it is now.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Its number in this database.
    pub(super) oid: u32,
    /// Its name, with its schema, quoted.
    pub(super) name: String,
    /// The same, as they are.
    schema: String,
    relname: String,
    /// Kind of relation, as the catalogue has it; `r` is a plain table.
    pub(super) relation: String,
    columns: Vec<ColumnOf>,
    /// The column that rows are read in the order of.
    pub(super) order_by: Option<String>,
}

#[derive(Clone, Debug)]
struct ColumnOf {
    name: String,
    kind: ColumnKind,
    /// The type by its name in SQL.
    sql: String,
}

/// Types as far as they are read differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    /// A point in time.
    Instant,
    /// A time of no zone, taken as UTC, and days.
    Local,
    /// A whole number.
    Integer,
    /// Another number.
    Number,
    /// True or false.
    Boolean,
    /// `json` or `jsonb`.
    Json,
    /// Bytes.
    Bytes,
    /// Text that is filled up with blanks, which are no part of it.
    Padded,
    /// Anything with a text form.
    Other,
}

impl ColumnKind {
    /// Whether JSON has a form of its own for its values.
    pub(super) fn is_of_json(self) -> bool {
        matches!(
            self,
            Self::Integer | Self::Number | Self::Boolean | Self::Json
        )
    }

    fn of(name: &str) -> Self {
        match name {
            "timestamptz" => Self::Instant,
            "timestamp" | "date" => Self::Local,
            "int2" | "int4" | "int8" => Self::Integer,
            "float4" | "float8" | "numeric" => Self::Number,
            "bool" => Self::Boolean,
            "json" | "jsonb" => Self::Json,
            "bytea" => Self::Bytes,
            "bpchar" => Self::Padded,
            _ => Self::Other,
        }
    }
}

impl Table {
    /// Looks at the configured table; a finding where there is none.
    pub(super) async fn look(
        connection: &mut PgConnection,
        config: &OutboxTableConfig,
    ) -> Result<Result<Self, Finding>, Trouble> {
        let row = sqlx::query(
            "SELECT c.oid::int8, quote_ident(n.nspname) || '.' || quote_ident(c.relname), \
                    c.relkind::text, n.nspname::text, c.relname::text \
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.oid = to_regclass($1)::oid",
        )
        .bind(sql_name(&config.table))
        .fetch_optional(&mut *connection)
        .await
        .map_err(trouble)?;
        let Some(row) = row else {
            return Ok(Err(missing_table(config)));
        };
        let oid: i64 = row.try_get(0).map_err(trouble)?;
        let columns = sqlx::query(
            "SELECT a.attname::text, \
                    CASE WHEN t.typtype = 'd' THEN b.typname ELSE t.typname END::text, \
                    format_type(a.atttypid, -1) \
             FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
             LEFT JOIN pg_type b ON b.oid = t.typbasetype \
             WHERE a.attrelid = $1::int8::oid AND a.attnum > 0 AND NOT a.attisdropped",
        )
        .bind(oid)
        .fetch_all(&mut *connection)
        .await
        .map_err(trouble)?;
        let columns = columns.iter().map(|row| {
            let kind: String = row.try_get(1)?;
            Ok(ColumnOf {
                name: row.try_get(0)?,
                kind: ColumnKind::of(&kind),
                sql: row.try_get(2)?,
            })
        });
        let columns: Vec<_> = columns.collect::<Result<_, _>>().map_err(trouble)?;
        let has_position = columns.iter().any(|one| one.name == POSITION);
        let usual = has_position.then(|| POSITION.to_owned());
        Ok(Ok(Self {
            oid: u32::try_from(oid).unwrap_or_default(),
            name: row.try_get(1).map_err(trouble)?,
            relation: row.try_get(2).map_err(trouble)?,
            schema: row.try_get(3).map_err(trouble)?,
            relname: row.try_get(4).map_err(trouble)?,
            columns,
            order_by: config.order_by.clone().or(usual),
        }))
    }

    /// Whether this is the table's schema and name.
    pub(super) fn is_called(&self, schema: &str, name: &str) -> bool {
        self.schema == schema && self.relname == name
    }

    /// The type of a column by its name in SQL.
    pub(super) fn type_of(&self, column: &str) -> &str {
        let found = self.columns.iter().find(|one| one.name == column);
        found.map_or("text", |one| &one.sql)
    }

    /// The type of a column; `None` where there is none of the name.
    pub(super) fn kind_of(&self, column: &str) -> Option<ColumnKind> {
        let found = self.columns.iter().find(|one| one.name == column);
        found.map(|one| one.kind)
    }
}

/// Every column that a source names, and the key that names it.
pub(super) fn wanted_columns(config: &OutboxTableConfig) -> Vec<(&'static str, &str)> {
    let router = &config.router;
    let mut wanted = vec![
        ("table.field.event.id", router.id.as_str()),
        ("route.by.field", router.route_by.as_str()),
        ("table.field.event.key", router.key.as_str()),
        ("table.field.event.type", router.kind.as_str()),
        ("table.field.event.payload", router.payload.as_str()),
    ];
    let optional = [
        ("table.field.event.timestamp", &router.timestamp),
        ("table.field.event.schema.version", &router.schema_version),
        ("order_by", &config.order_by),
    ];
    let optional = optional.into_iter();
    wanted.extend(optional.filter_map(|(key, name)| Some((key, name.as_deref()?))));
    let placed = router.additional.iter();
    wanted.extend(placed.map(|one| ("table.fields.additional.placement", one.column.as_str())));
    if let AfterAccept::Mark(column) = &config.after {
        wanted.push(("mark_column", column));
    }
    wanted
}

/// The table's name as a statement has it.
pub(super) fn sql_name(table: &TableName) -> String {
    match &table.schema {
        Some(schema) => format!("{}.{}", quoted(schema), quoted(&table.name)),
        None => quoted(&table.name),
    }
}

fn missing_table(config: &OutboxTableConfig) -> Finding {
    let table = &config.table;
    Finding {
        problem: format!("there is no table {table} that this user may see"),
        remedy: Some(format!(
            "-- wayhold outbox-table sql --for postgres --table {table} prints it; or, for one that is \
             there already:\nSELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON \
             n.oid = c.relnamespace WHERE c.relname = {};",
            literal(&table.name)
        )),
        advice: false,
    }
}
