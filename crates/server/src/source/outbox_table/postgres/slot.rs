//! The replication slot and the publication of a source in logical mode, and the note of how far it is.

use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::super::port::{Finding, Trouble};
use super::statement::{literal, quoted};
use super::table::Table;
use super::{run, trouble};
use crate::config::OutboxTableConfig;

/// What a source reads by, noted as the publication's comment: it outlives connections and readers, and it
/// tells a slot that was lost from one that was never made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// Nothing was read yet.
    Nothing,
    /// In the table, what was committed before this snapshot, which is younger than the slot; then the log.
    Before(String),
    /// Rows may be left over in the table.
    Table,
    /// The log; and first, in this order, those of these rows that are still in the table, by their ids.
    Log {
        /// Rows that were refused, and those of their aggregates behind them.
        left: Vec<String>,
    },
}

impl Note {
    const BEFORE: &'static str =
        "wayhold: reads the log, and before it of the table what is before ";
    const TABLE: &'static str = "wayhold: reads the table, then the log";
    const LOG: &'static str = "wayhold: reads the log";
    const LEFT: &'static str = "wayhold: reads the log, and was to leave in the table ";

    fn of(comment: Option<&str>) -> Self {
        match comment {
            Some(Self::LOG) => Self::Log { left: Vec::new() },
            Some(Self::TABLE) => Self::Table,
            Some(other) => Self::of_parts(other),
            None => Self::Nothing,
        }
    }

    fn of_parts(comment: &str) -> Self {
        if let Some(snapshot) = comment.strip_prefix(Self::BEFORE) {
            return Self::Before(snapshot.to_owned());
        }
        match comment.strip_prefix(Self::LEFT).map(serde_json::from_str) {
            Some(Ok(left)) => Self::Log { left },
            // Something is left in the table, in whatever order.
            Some(Err(_)) => Self::Table,
            None => Self::Nothing,
        }
    }

    /// Notes it; durable when this returns.
    pub(super) async fn write(
        &self,
        connection: &mut PgConnection,
        publication: &str,
    ) -> Result<(), Trouble> {
        let comment = match self {
            Self::Nothing => "NULL".to_owned(),
            Self::Before(snapshot) => literal(&format!("{}{snapshot}", Self::BEFORE)),
            Self::Table => literal(Self::TABLE),
            Self::Log { left } if left.is_empty() => literal(Self::LOG),
            Self::Log { left } => literal(&format!(
                "{}{}",
                Self::LEFT,
                serde_json::Value::from(left.as_slice())
            )),
        };
        let publication = quoted(publication);
        run(
            connection,
            format!("COMMENT ON PUBLICATION {publication} IS {comment}"),
        )
        .await
    }
}

/// A slot as it is now.
#[derive(Clone, Debug)]
struct Slot {
    plugin: Option<String>,
    is_here: bool,
    is_lost: bool,
    /// Bytes of the log that are kept for it.
    kept: Option<i64>,
}

async fn look(connection: &mut PgConnection, name: &str) -> Result<Option<Slot>, Trouble> {
    let row = sqlx::query(
        "SELECT plugin::text, database = current_database(), wal_status = 'lost', \
                pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 \
         FROM pg_replication_slots WHERE slot_name = $1",
    )
    .bind(name)
    .fetch_optional(connection)
    .await
    .map_err(trouble)?;
    let slot = |row: sqlx::postgres::PgRow| {
        Ok(Slot {
            plugin: row.try_get(0)?,
            is_here: row.try_get::<Option<bool>, _>(1)?.unwrap_or_default(),
            is_lost: row.try_get::<Option<bool>, _>(2)?.unwrap_or_default(),
            kept: row.try_get(3)?,
        })
    };
    row.map(slot).transpose().map_err(trouble)
}

/// How much of the log is kept for a slot.
///
/// # Errors
/// When it is gone, or the log it needs is.
pub(super) async fn kept(
    connection: &mut PgConnection,
    config: &SlotNames,
) -> Result<Option<u64>, Trouble> {
    match look(connection, &config.slot).await? {
        Some(slot) if !slot.is_lost => Ok(slot.kept.and_then(|bytes| u64::try_from(bytes).ok())),
        found => Err(lost(config, found.is_some())),
    }
}

/// What a slot and a publication are called.
#[derive(Clone, Debug)]
pub(super) struct SlotNames {
    slot: String,
    publication: String,
}

impl SlotNames {
    pub(super) fn of(config: &OutboxTableConfig) -> Self {
        Self {
            slot: config.slot.clone(),
            publication: config.publication.clone(),
        }
    }
}

fn lost(names: &SlotNames, is_there: bool) -> Trouble {
    let (slot, publication) = (&names.slot, quoted(&names.publication));
    let drop = format!("SELECT pg_drop_replication_slot({}); ", literal(slot));
    Trouble::Lost {
        problem: match is_there {
            true => format!("the log that slot {slot} needs was removed (max_slot_wal_keep_size)"),
            false => format!("slot {slot} is gone"),
        },
        remedy: format!(
            "rows that are still in the table are read when you let it begin anew, those that were deleted \
             from it since are not: {}COMMENT ON PUBLICATION {publication} IS NULL; then reload or restart",
            if is_there { drop.as_str() } else { "" }
        ),
    }
}

/// Makes what is not there yet, and answers by what to read.
pub(super) async fn prepare(
    connection: &mut PgConnection,
    config: &OutboxTableConfig,
    table: &Table,
) -> Result<Note, Trouble> {
    let publication = quoted(&config.publication);
    let row = sqlx::query(
        "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = $1",
    )
    .bind(&config.publication)
    .fetch_optional(&mut *connection)
    .await
    .map_err(trouble)?;
    let note = match row {
        Some(row) => {
            let comment: Option<String> = row.try_get(0).map_err(trouble)?;
            Note::of(comment.as_deref())
        }
        None => {
            let table = &table.name;
            let create = format!(
                "CREATE PUBLICATION {publication} FOR TABLE ONLY {table} WITH (publish = 'insert')"
            );
            run(connection, create).await?;
            Note::Nothing
        }
    };
    match look(connection, &config.slot).await? {
        Some(slot) if slot.is_lost => Err(lost(&SlotNames::of(config), true)),
        Some(_) if note == Note::Nothing => begin(connection, config).await,
        Some(_) => Ok(note),
        None if note != Note::Nothing => Err(lost(&SlotNames::of(config), false)),
        None => {
            sqlx::query("SELECT pg_create_logical_replication_slot($1, 'pgoutput')")
                .bind(&config.slot)
                .execute(&mut *connection)
                .await
                .map_err(trouble)?;
            begin(connection, config).await
        }
    }
}

/// Notes where the log takes over: whatever is committed from now on is in it, for the slot is there.
async fn begin(connection: &mut PgConnection, config: &OutboxTableConfig) -> Result<Note, Trouble> {
    let snapshot = sqlx::query_scalar("SELECT pg_current_snapshot()::text")
        .fetch_one(&mut *connection)
        .await
        .map_err(trouble)?;
    let note = Note::Before(snapshot);
    note.write(connection, &config.publication).await?;
    Ok(note)
}

/// Moves a slot on: what lies before is durable here.
pub(super) async fn advance(
    connection: &mut PgConnection,
    slot: &str,
    to: u64,
) -> Result<(), Trouble> {
    // One that is there already stays where it is.
    sqlx::query(
        "SELECT pg_replication_slot_advance(slot_name, $2::text::pg_lsn) FROM pg_replication_slots \
         WHERE slot_name = $1 AND confirmed_flush_lsn < $2::text::pg_lsn",
    )
    .bind(slot)
    .bind(format!("{:X}/{:X}", to >> 32, to & 0xffff_ffff))
    .execute(connection)
    .await
    .map_err(trouble)?;
    Ok(())
}

/// A place in the log, as PostgreSQL writes it.
pub(super) fn parse_lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let part = |digits| u64::from_str_radix(digits, 16).ok();
    Some(part(high)? << 32 | part(low)?)
}

/// What logical mode lacks.
pub(super) async fn findings(
    connection: &mut PgConnection,
    config: &OutboxTableConfig,
    table: &Table,
) -> Result<Vec<Finding>, Trouble> {
    let row = sqlx::query(
        "SELECT current_setting('wal_level') = 'logical', quote_ident(current_user), \
                (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user), \
                EXISTS (SELECT FROM pg_publication WHERE pubname = $1), \
                EXISTS (SELECT FROM pg_publication_tables WHERE pubname = $1 \
                        AND format('%I.%I', schemaname, tablename) = $2), \
                (SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = $3::int8::oid) \
                    AND has_database_privilege(current_database(), 'CREATE'), \
                (SELECT count(*) FROM pg_replication_slots) \
                    < current_setting('max_replication_slots')::int8",
    )
    .bind(&config.publication)
    .bind(&table.name)
    .bind(i64::from(table.oid))
    .fetch_one(&mut *connection)
    .await
    .map_err(trouble)?;
    let is = |index: usize| {
        let value: Result<Option<bool>, _> = row.try_get(index);
        value.map(Option::unwrap_or_default).map_err(trouble)
    };
    let user: String = row.try_get(1).map_err(trouble)?;
    let slot = look(connection, &config.slot).await?;
    let (name, publication) = (&table.name, quoted(&config.publication));
    let mut findings = Vec::new();
    let mut missing = |problem: String, remedy: String| {
        findings.push(Finding {
            problem,
            remedy: Some(remedy),
            advice: false,
        });
    };
    if !is(0)? {
        missing(
            "the log holds no rows: wal_level is not logical".to_owned(),
            "ALTER SYSTEM SET wal_level = logical; -- and restart the server".to_owned(),
        );
    }
    if !is(2)? {
        missing(
            format!("{user} may not read the log"),
            format!("ALTER ROLE {user} REPLICATION;"),
        );
    }
    match (is(3)?, is(4)?) {
        (false, _) if !is(5)? => missing(
            format!("there is no publication {publication}, and {user} may not make it"),
            format!(
                "CREATE PUBLICATION {publication} FOR TABLE ONLY {name} WITH (publish = 'insert'); \
                 ALTER PUBLICATION {publication} OWNER TO {user};"
            ),
        ),
        (true, false) => missing(
            format!("publication {publication} does not publish {name}"),
            format!("ALTER PUBLICATION {publication} ADD TABLE ONLY {name};"),
        ),
        _ => {}
    }
    let drop = format!(
        "SELECT pg_drop_replication_slot({});",
        literal(&config.slot)
    );
    match &slot {
        Some(slot) if slot.plugin.as_deref() != Some("pgoutput") || !slot.is_here => missing(
            format!("slot {} is another database's or no pgoutput", config.slot),
            format!("{drop} -- or another name in slot"),
        ),
        None if !is(6)? => missing(
            "the server has no room for another replication slot".to_owned(),
            "ALTER SYSTEM SET max_replication_slots = 20; -- and restart the server".to_owned(),
        ),
        _ => {}
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_is_understood_in_part_has_the_table_read() {
        let left = |text: &str| Note::of(Some(&format!("{}{text}", Note::LEFT)));
        let ids = vec!["a".to_owned(), "it's \"b\"".to_owned()];
        assert_eq!(left(r#"["a","it's \"b\""]"#), Note::Log { left: ids });
        assert_eq!(left(r#"["a","#), Note::Table);
        assert_eq!(Note::of(Some("what somebody else wrote")), Note::Nothing);
    }

    #[test]
    fn a_place_in_the_log_is_two_numbers() {
        assert_eq!(parse_lsn("0/0"), Some(0));
        assert_eq!(parse_lsn("16/B374D848"), Some(0x16_b374_d848));
        assert_eq!(parse_lsn("16"), None);
        assert_eq!(parse_lsn("x/1"), None);
    }
}
