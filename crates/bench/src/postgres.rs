//! A PostgreSQL that is measured with and beside: by its own client, and by what the kernel says that its processes
//! cost.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::BenchError;
use crate::payload::{KEYS, bodies, key};
use crate::store::kernel::cpu_of_family;

/// The table, as in Debezium's layout and with a column that counts up.
const TABLE: &str = "
    DROP TABLE IF EXISTS outboxevent;
    CREATE TABLE outboxevent (
        position bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
        id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
        type varchar(255) NOT NULL, payload jsonb);
    DROP TABLE IF EXISTS bodies;
    CREATE TABLE bodies (number bigint PRIMARY KEY, body jsonb NOT NULL);";

/// A server, and the database in it.
pub struct Postgres {
    url: String,
    process: u32,
}

impl Postgres {
    /// The server of this URL; it must be on this machine, and the user one who may ask for its process.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn at(url: &str) -> Result<Self, BenchError> {
        let postgres = Self {
            url: url.to_owned(),
            process: 0,
        };
        let process =
            postgres.ask("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1);")?;
        Ok(Self {
            process: process.trim().parse()?,
            ..postgres
        })
    }

    /// Keeps its URL where a server reads it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn url_in(&self, folder: &Path) -> Result<PathBuf, BenchError> {
        let file = folder.join("database-url");
        std::fs::write(&file, &self.url)?;
        Ok(file)
    }

    /// Makes the table with so many events of 1 KiB each, of as many aggregates as loads have keys, tidy as after a
    /// quiet while.
    ///
    /// # Errors
    /// When a statement fails.
    pub fn fill(&self, rows: u64) -> Result<(), BenchError> {
        let mut sql = TABLE.to_owned();
        for (number, body) in bodies().iter().enumerate() {
            write!(sql, "INSERT INTO bodies VALUES ({number}, '{body}');")?;
        }
        let (bodies, prefix) = (bodies().len(), key(0));
        let (prefix, digits) = prefix.rsplit_once('-').ok_or("a key without a number")?;
        let digits = digits.len();
        write!(
            sql,
            "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload)
             SELECT gen_random_uuid(), 'order', '{prefix}-' || lpad((n % {KEYS})::text, {digits}, '0'),
                    'com.example.order.changed', body
             FROM generate_series(0, {rows} - 1) AS n JOIN bodies ON number = n % {bodies} ORDER BY n;
             VACUUM ANALYZE outboxevent; CHECKPOINT;"
        )?;
        self.ask(&sql).map(drop)
    }

    /// How many rows there are.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn rows(&self) -> Result<u64, BenchError> {
        Ok(self
            .ask("SELECT count(*) FROM outboxevent;")?
            .trim()
            .parse()?)
    }

    /// How long its client takes to copy the table to nowhere.
    ///
    /// # Errors
    /// When the client fails, or does not say how long.
    pub fn copy(&self) -> Result<Duration, BenchError> {
        let said = self.ask("\\timing on\n\\copy outboxevent TO '/dev/null'")?;
        let time = said.lines().find_map(|line| line.strip_prefix("Time: "));
        let milliseconds = time.and_then(|time| time.split_whitespace().next());
        let milliseconds: f64 = milliseconds.ok_or("psql says no time")?.parse()?;
        Ok(Duration::from_secs_f64(milliseconds / 1_000.0))
    }

    /// Deletes all rows and takes them, in batches, each a transaction of its own.
    ///
    /// # Errors
    /// When a statement fails.
    pub fn take(&self, rows: u64, batch: u64) -> Result<(), BenchError> {
        let one = format!(
            "DELETE FROM outboxevent WHERE position IN \
             (SELECT position FROM outboxevent ORDER BY position LIMIT {batch}) RETURNING *;\n"
        );
        let batches = usize::try_from(rows.div_ceil(batch))?;
        self.ask(&format!("\\o /dev/null\n{}", one.repeat(batches)))?;
        match self.rows()? {
            0 => Ok(()),
            left => Err(format!("{left} rows are left after taking all").into()),
        }
    }

    /// User and system time of all of its processes so far.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu(&self) -> Result<Duration, BenchError> {
        cpu_of_family(self.process)
    }

    /// What the client prints.
    fn ask(&self, sql: &str) -> Result<String, BenchError> {
        let mut client = Command::new("psql")
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", &self.url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut input = client.stdin.take().ok_or("a client without input")?;
        let settings = "SET client_min_messages = warning;\n";
        let written = input.write_all(format!("{settings}{sql}\n").as_bytes());
        drop(input);
        let output = client.wait_with_output()?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            return Err(format!("psql: {}", words.trim()).into());
        }
        written?;
        Ok(String::from_utf8(output.stdout)?)
    }
}
