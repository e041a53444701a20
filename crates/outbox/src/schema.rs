//! The table's definition for each database: Debezium's layout, so that either reads it, and `position`
//! for the order of rows. Every statement can be run again.

use crate::table::{Column, Table};

/// The channel that PostgreSQL's trigger notifies, with the table's name (`schema.table`) as payload.
pub const CHANNEL: &str = "wayhold_outbox";

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    /// PostgreSQL 14 or newer.
    Postgres,
    /// MySQL 8 and MariaDB 10.6, or newer.
    MySql,
    /// SQLite 3.
    Sqlite,
}

impl Database {
    /// A name as a statement has it. Names of a [`Table`] are plain, so nothing needs escaping.
    pub(crate) fn quoted(self, name: &str) -> String {
        match self {
            Self::Postgres | Self::Sqlite => format!("\"{name}\""),
            Self::MySql => format!("`{name}`"),
        }
    }
}

impl Table {
    /// The script that makes the table where there is none, with an index for its order and, in
    /// PostgreSQL, the trigger that wakes the reader. For a migration, or for `create_table` of the
    /// library in use.
    pub fn create_script(&self, database: Database) -> String {
        let table = self.quoted(database);
        let mut script = match database {
            Database::Postgres => format!(
                "CREATE TABLE IF NOT EXISTS {table} (\n{}\n);\n",
                self.columns(
                    database,
                    ["uuid PRIMARY KEY", "varchar(255) NOT NULL", "jsonb"]
                )
            ),
            // Clustered by position: inserts go to the end and the reader reads from the front.
            // Without regard to a language, so that no two ids are the same that differ.
            Database::MySql => format!(
                "CREATE TABLE IF NOT EXISTS {table} (\n{},\n    PRIMARY KEY ({}),\n    UNIQUE KEY ({})\n) \
                 ENGINE = InnoDB, CHARACTER SET = utf8mb4, COLLATE = utf8mb4_bin;\n",
                self.columns(
                    database,
                    ["char(36) NOT NULL", "varchar(255) NOT NULL", "json"]
                ),
                database.quoted(self.column(Column::Position)),
                database.quoted(self.column(Column::Id)),
            ),
            Database::Sqlite => format!(
                "CREATE TABLE IF NOT EXISTS {table} (\n{}\n);\n",
                self.columns(database, ["TEXT NOT NULL UNIQUE", "TEXT NOT NULL", "TEXT"])
            ),
        };
        if database == Database::Postgres {
            script.push_str(&self.postgres_index_and_trigger());
        }
        script
    }

    /// The script that adds what is missing to a table that was made for Debezium: the column
    /// `position`, its index, the trigger. PostgreSQL and MySQL write the table anew for it, which is
    /// quick while it is nearly empty; MySQL refuses it when the column is there. SQLite numbers rows of
    /// its own accord, so there is nothing to add.
    pub fn upgrade_script(&self, database: Database) -> String {
        let table = self.quoted(database);
        let position = database.quoted(self.column(Column::Position));
        match database {
            Database::Postgres => format!(
                "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {position} {};\n{}",
                position_type(database),
                self.postgres_index_and_trigger()
            ),
            Database::MySql => format!(
                "ALTER TABLE {table} ADD COLUMN {position} {}, ADD UNIQUE KEY ({position});\n",
                position_type(database)
            ),
            Database::Sqlite => String::new(),
        }
    }

    /// The lines of the columns, given the types of id, names and payload.
    fn columns(&self, database: Database, [id, name, payload]: [&str; 3]) -> String {
        let attribute = match database {
            Database::Postgres | Database::MySql => "text",
            Database::Sqlite => "TEXT",
        };
        let position = position_type(database);
        let mut columns = vec![
            (self.column(Column::Id), id),
            (self.column(Column::AggregateType), name),
            (self.column(Column::AggregateId), name),
            (self.column(Column::Type), name),
            (self.column(Column::Payload), payload),
        ];
        columns.extend(
            self.attributes
                .iter()
                .map(|name| (name.as_str(), attribute)),
        );
        match database {
            Database::Postgres | Database::MySql => {
                columns.push((self.column(Column::Position), position));
            }
            Database::Sqlite => columns.insert(0, (self.column(Column::Position), position)),
        }
        let lines = columns
            .iter()
            .map(|(name, kind)| format!("    {} {kind}", database.quoted(name)));
        lines.collect::<Vec<_>>().join(",\n")
    }

    fn postgres_index_and_trigger(&self) -> String {
        let database = Database::Postgres;
        let table = self.quoted(database);
        // In the table's schema, wherever that is.
        let function = match &self.schema {
            Some(schema) => format!("{}.", database.quoted(schema)),
            None => String::new(),
        } + &database.quoted(&short(&self.name, "_notify"));
        let trigger = database.quoted(&short(&self.name, "_notify"));
        let index = database.quoted(&short(&self.name, "_position"));
        let position = database.quoted(self.column(Column::Position));
        format!(
            "CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {table} ({position});
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('{CHANNEL}', TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME);
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {function}();
"
        )
    }
}

fn position_type(database: Database) -> &'static str {
    match database {
        Database::Postgres => "bigint GENERATED ALWAYS AS IDENTITY",
        Database::MySql => "bigint NOT NULL AUTO_INCREMENT",
        Database::Sqlite => "INTEGER PRIMARY KEY AUTOINCREMENT",
    }
}

/// A name made of another that PostgreSQL keeps whole (63 bytes).
fn short(name: &str, suffix: &str) -> String {
    let kept: String = name.chars().take(63 - suffix.len()).collect();
    kept + suffix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_debeziums_and_a_position() {
        let script = Table::default().create_script(Database::Postgres);
        let table = script.split_inclusive(";\n").next().unwrap();
        assert_eq!(
            table,
            r#"CREATE TABLE IF NOT EXISTS "outboxevent" (
    "id" uuid PRIMARY KEY,
    "aggregatetype" varchar(255) NOT NULL,
    "aggregateid" varchar(255) NOT NULL,
    "type" varchar(255) NOT NULL,
    "payload" jsonb,
    "position" bigint GENERATED ALWAYS AS IDENTITY
);
"#
        );
    }

    #[test]
    fn made_names_stay_within_what_postgresql_keeps() {
        let table = Table::new(&"x".repeat(63)).unwrap();
        assert!(
            !table
                .create_script(Database::Postgres)
                .contains(&"x".repeat(64))
        );
        assert!(
            table
                .create_script(Database::Postgres)
                .contains(&format!("{}_position", "x".repeat(54)))
        );
    }

    #[test]
    fn attributes_have_columns() {
        let table = Table::default().with_attribute("traceparent").unwrap();
        for database in [Database::Postgres, Database::MySql, Database::Sqlite] {
            let script = table.create_script(database).to_lowercase();
            let column = database.quoted("traceparent") + " text";
            assert!(script.contains(&column), "{script}");
        }
    }
}
