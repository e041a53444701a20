//! `wayhold outbox-table`: the table that an application writes its events into, beside its own rows.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use wayhold_outbox::{Database, Table};

use super::exit::Failure;
use super::output::Output;

/// Make the table that a source of kind outbox_table reads.
#[derive(Debug, Args)]
pub struct OutboxTable {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the SQL that makes the table, for a migration.
    Sql(Sql),
}

/// Which table, and where.
#[derive(Debug, Args)]
struct Sql {
    /// The database.
    #[arg(long = "for", value_name = "DATABASE")]
    database: Kind,
    /// The table, as NAME or SCHEMA.NAME.
    #[arg(long, value_name = "NAME", default_value = "outboxevent")]
    table: String,
    /// A text column for an attribute of the events, such as traceparent; may be repeated.
    #[arg(long = "attribute", value_name = "NAME", conflicts_with = "existing")]
    attributes: Vec<String>,
    /// Print what a table lacks that was made for Debezium.
    #[arg(long)]
    existing: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Postgres,
    /// MariaDB, too.
    Mysql,
    Sqlite,
}

impl OutboxTable {
    /// Does what was asked for.
    ///
    /// # Errors
    /// When a name is none that a table or a column can have.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let Verb::Sql(sql) = self.verb;
        let script = sql.script().map_err(|e| Failure::usage(e.to_string()))?;
        output.json(&json!({ "sql": script }));
        for line in script.lines() {
            output.line(line);
        }
        if script.is_empty() {
            output.note("nothing is missing: SQLite numbers rows of its own accord");
        }
        Ok(())
    }
}

impl Sql {
    fn script(&self) -> Result<String, wayhold_outbox::Invalid> {
        let mut table = Table::new(&self.table)?;
        for attribute in &self.attributes {
            table = table.with_attribute(attribute)?;
        }
        let database = match self.database {
            Kind::Postgres => Database::Postgres,
            Kind::Mysql => Database::MySql,
            Kind::Sqlite => Database::Sqlite,
        };
        Ok(if self.existing {
            table.upgrade_script(database)
        } else {
            table.create_script(database)
        })
    }
}
