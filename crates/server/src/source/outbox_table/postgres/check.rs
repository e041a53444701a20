//! What a source lacks in its database, with the statement that mends it.

use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::super::port::{Finding, Trouble};
use super::statement::{literal, quoted};
use super::table::{ColumnKind, Table, wanted_columns};
use super::wake::CHANNEL;
use super::{VERSION_MIN, slot, trouble};
use crate::config::source::outbox_table::AfterAccept;
use crate::config::{Mode, OutboxTableConfig};

/// Transactions that have been open for longer are named: every row waits for them.
const OPEN_SECONDS: i32 = 30;

/// What is missing, and what would be better.
pub(super) async fn findings(
    connection: &mut PgConnection,
    config: &OutboxTableConfig,
    table: &Table,
) -> Result<Vec<Finding>, Trouble> {
    let mut findings = columns(config, table);
    findings.extend(server(connection).await?);
    findings.extend(privileges(connection, config, table).await?);
    if config.mode == Mode::Logical {
        findings.extend(slot::findings(connection, config, table).await?);
    }
    if findings.is_empty() {
        findings.extend(order(connection, table).await?);
        findings.extend(trigger(connection, table).await?);
        findings.extend(open_transactions(connection, OPEN_SECONDS).await?);
    }
    Ok(findings)
}

fn missing(problem: String, remedy: String) -> Finding {
    Finding {
        problem,
        remedy: Some(remedy),
        advice: false,
    }
}

fn advice(problem: String, remedy: Option<String>) -> Finding {
    Finding {
        problem,
        remedy,
        advice: true,
    }
}

fn columns(config: &OutboxTableConfig, table: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    if table.relation != "r" {
        findings.push(Finding {
            problem: format!("{} is not a plain table", table.name),
            remedy: Some(
                "-- name the table itself: no view, and of partitions each one".to_owned(),
            ),
            advice: false,
        });
    }
    for (key, column) in wanted_columns(config) {
        if table.kind_of(column).is_none() {
            let kind = match key {
                "mark_column" => "timestamptz",
                "order_by" => "bigint GENERATED ALWAYS AS IDENTITY",
                "table.field.event.payload" => "jsonb",
                "table.field.event.timestamp" => "timestamptz DEFAULT now()",
                _ => "varchar(255)",
            };
            findings.push(missing(
                format!("{} has no column {column}, which {key} names", table.name),
                format!(
                    "ALTER TABLE {} ADD COLUMN {} {kind};",
                    table.name,
                    quoted(column)
                ),
            ));
        }
    }
    if let AfterAccept::Mark(column) = &config.after
        && let Some(kind) = table.kind_of(column)
        && !matches!(
            kind,
            ColumnKind::Boolean | ColumnKind::Instant | ColumnKind::Local
        )
    {
        findings.push(missing(
            format!("mark_column {column} is neither a time nor a boolean"),
            format!(
                "ALTER TABLE {} ADD COLUMN taken_at timestamptz; -- and mark_column = \"taken_at\"",
                table.name
            ),
        ));
    }
    findings
}

async fn server(connection: &mut PgConnection) -> Result<Vec<Finding>, Trouble> {
    let row = sqlx::query(
        "SELECT current_setting('server_version_num')::int4, current_setting('server_version'), \
                pg_is_in_recovery()",
    )
    .fetch_one(connection)
    .await
    .map_err(trouble)?;
    let number: i32 = row.try_get(0).map_err(trouble)?;
    let version: String = row.try_get(1).map_err(trouble)?;
    let is_standby: bool = row.try_get(2).map_err(trouble)?;
    let mut findings = Vec::new();
    if number < VERSION_MIN {
        findings.push(missing(
            format!("the server is PostgreSQL {version}; 14 is the oldest that is read"),
            "-- upgrade the server".to_owned(),
        ));
    }
    if is_standby {
        findings.push(missing(
            "the server is a standby, which deletes and marks nothing".to_owned(),
            "-- name the primary in url, or add target_session_attrs=read-write".to_owned(),
        ));
    }
    Ok(findings)
}

async fn privileges(
    connection: &mut PgConnection,
    config: &OutboxTableConfig,
    table: &Table,
) -> Result<Vec<Finding>, Trouble> {
    let row = sqlx::query(
        "SELECT quote_ident(current_user), has_table_privilege($1::int8::oid, 'SELECT'), \
                has_table_privilege($1::int8::oid, 'DELETE'), \
                has_table_privilege($1::int8::oid, 'UPDATE') \
                    OR has_any_column_privilege($1::int8::oid, 'UPDATE'), \
                row_security_active($1::int8::oid)",
    )
    .bind(i64::from(table.oid))
    .fetch_one(connection)
    .await
    .map_err(trouble)?;
    let user: String = row.try_get(0).map_err(trouble)?;
    let may = |index: usize| row.try_get::<bool, _>(index).map_err(trouble);
    let mut lacking = Vec::new();
    if !may(1)? {
        lacking.push("SELECT");
    }
    match config.after {
        AfterAccept::Delete if !may(2)? => lacking.push("DELETE"),
        AfterAccept::Mark(_) if !may(3)? => lacking.push("UPDATE"),
        _ => {}
    }
    let grant = |what: &&str| {
        missing(
            format!("{user} may not {what} in {}", table.name),
            format!("GRANT {what} ON {} TO {user};", table.name),
        )
    };
    let mut findings: Vec<_> = lacking.iter().map(grant).collect();
    if may(4)? {
        findings.push(missing(
            format!(
                "row-level security may hide rows of {} from {user}",
                table.name
            ),
            format!("ALTER ROLE {user} BYPASSRLS;"),
        ));
    }
    Ok(findings)
}

async fn order(connection: &mut PgConnection, table: &Table) -> Result<Vec<Finding>, Trouble> {
    let Some(column) = &table.order_by else {
        return Ok(vec![advice(
            format!(
                "{} has no column to read in the order of; rows of overlapping transactions come in the \
                 order in which those began to write, and every look sorts the table",
                table.name
            ),
            Some(format!(
                "ALTER TABLE {} ADD COLUMN position bigint GENERATED ALWAYS AS IDENTITY UNIQUE;",
                table.name
            )),
        )]);
    };
    let indexed: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a \
             ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
             WHERE i.indrelid = $1::int8::oid AND a.attname = $2 AND i.indisvalid \
               AND i.indpred IS NULL)",
    )
    .bind(i64::from(table.oid))
    .bind(column)
    .fetch_one(connection)
    .await
    .map_err(trouble)?;
    Ok(match indexed {
        true => Vec::new(),
        false => vec![advice(
            format!("{column} has no index, so that every look sorts the table"),
            Some(format!(
                "CREATE INDEX CONCURRENTLY ON {} ({});",
                table.name,
                quoted(column)
            )),
        )],
    })
}

async fn trigger(connection: &mut PgConnection, table: &Table) -> Result<Vec<Finding>, Trouble> {
    let notifies: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid \
             WHERE t.tgrelid = $1::int8::oid AND t.tgenabled <> 'D' AND p.prosrc LIKE $2)",
    )
    .bind(i64::from(table.oid))
    .bind(format!("%{CHANNEL}%"))
    .fetch_one(connection)
    .await
    .map_err(trouble)?;
    if notifies {
        return Ok(Vec::new());
    }
    let name = &table.name;
    Ok(vec![advice(
        format!("no trigger of {name} notifies {CHANNEL}: new rows wait for poll_interval"),
        Some(format!(
            "CREATE OR REPLACE FUNCTION wayhold_outbox_notify() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_notify({}, TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME); RETURN NULL; \
             END $$;\nCREATE TRIGGER wayhold_outbox_notify AFTER INSERT ON {name} FOR EACH STATEMENT \
             EXECUTE FUNCTION wayhold_outbox_notify();",
            literal(CHANNEL)
        )),
    )])
}

/// Transactions that hold the horizon back. Others than this user's show only with `pg_read_all_stats`.
pub(super) async fn open_transactions(
    connection: &mut PgConnection,
    seconds: i32,
) -> Result<Vec<Finding>, Trouble> {
    let rows = sqlx::query(
        "SELECT pid, extract(epoch FROM now() - xact_start)::int4, state FROM pg_stat_activity \
         WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() \
           AND xact_start < now() - make_interval(secs => $1) ORDER BY xact_start LIMIT 5",
    )
    .bind(f64::from(seconds))
    .fetch_all(connection)
    .await
    .map_err(trouble)?;
    let finding = |row: &sqlx::postgres::PgRow| {
        let pid: i32 = row.try_get(0)?;
        let seconds: Option<i32> = row.try_get(1)?;
        let state: Option<String> = row.try_get(2)?;
        Ok(advice(
            format!(
                "process {pid} has had a writing transaction open for {} s ({}): rows that were \
                 committed since wait for it",
                seconds.unwrap_or_default(),
                state.unwrap_or_default(),
            ),
            Some(format!("SELECT pg_terminate_backend({pid});")),
        ))
    };
    let findings: Result<Vec<_>, sqlx::Error> = rows.iter().map(finding).collect();
    findings.map_err(trouble)
}
