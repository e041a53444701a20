//! The databases that rows are read from, as their own clients see them: what the harness knows of a row is what
//! `psql`, `mariadb` or `sqlite3` say.

use std::fs::File;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use url::Url;

use super::judge::Committed;
use super::session::Session;
use super::transaction::{AGGREGATES, KIND, UNWANTED};
use crate::black_box::ending::invalid;

/// Where `scripts/services` keeps its set: needed to kill a server of it.
const SERVICES: &str = "WAYHOLD_SERVICES_DIR";

/// How long a database may take until it answers again.
const PATIENCE: Duration = Duration::from_secs(60);

/// The slot through which PostgreSQL tells the order of commits, apart from the one that is tried.
const ORACLE: &str = "oracle";

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Postgres,
    Mariadb,
    Sqlite,
}

/// What of a table differs between runs.
#[expect(
    clippy::struct_excessive_bools,
    reason = "four independent facts of one table"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Whether it has the column that counts up.
    pub counts: bool,
    /// Whether rows are marked instead of deleted.
    pub marks: bool,
    /// Whether PostgreSQL is asked for the order of its commits.
    pub tells_commits: bool,
    /// Whether some of its rows are refused until they are mended.
    pub refuses: bool,
}

/// A database of its own, made for one run.
pub struct Database {
    pub engine: Engine,
    pub table: Table,
    /// With the password; nothing where it is a file.
    url: Option<Url>,
    name: String,
    folder: PathBuf,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
            Self::Sqlite => "sqlite",
        }
    }

    /// What names a running one.
    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Postgres => Some("WAYHOLD_TEST_POSTGRES"),
            Self::Mariadb => Some("WAYHOLD_TEST_MARIADB"),
            Self::Sqlite => None,
        }
    }
}

impl Database {
    /// Makes an empty one with its tables; what clients complain of is kept in `folder`.
    pub fn make(engine: Engine, table: Table, folder: &Path) -> Self {
        let url = engine
            .variable()
            .map(|variable| match std::env::var(variable) {
                Ok(url) => Url::parse(&url).unwrap(),
                Err(_) => invalid(&format!(
                    "{variable} names no {}; scripts/torture brings one up",
                    engine.name()
                )),
            });
        let name = format!("torture_{}", std::process::id());
        let database = Self {
            engine,
            table,
            url,
            name,
            folder: folder.to_owned(),
        };
        if engine != Engine::Sqlite {
            database.drop_database();
            database.administer(&format!("CREATE DATABASE {};", database.name));
        }
        database.ask(&database.tables());
        if table.tells_commits {
            database.ask(&format!(
                "SELECT pg_create_logical_replication_slot('{ORACLE}', 'test_decoding');"
            ));
        }
        database
    }

    /// Where a server answers; nothing of a file.
    pub fn address(&self) -> Option<SocketAddr> {
        let url = self.url.as_ref()?;
        let host = url.host_str().unwrap();
        let mut found = (host, url.port().unwrap()).to_socket_addrs().unwrap();
        found.next()
    }

    /// How Wayhold is told of it, where it is reached at this address instead.
    pub fn url_at(&self, address: Option<SocketAddr>) -> String {
        let Some(url) = &self.url else {
            return format!("sqlite:{}", self.file().display());
        };
        let mut url = url.clone();
        url.set_path(&self.name);
        if let Some(address) = address {
            url.set_ip_host(address.ip()).unwrap();
            url.set_port(Some(address.port())).unwrap();
        }
        url.into()
    }

    /// A client of an application; nothing while the server does not let it in.
    pub fn session(&self) -> Option<Session> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .unwrap();
        let mut session = Session::start(self.client(&self.name), log).ok()?;
        session.send(self.opening()).ok()?;
        session.send("SELECT 'open';").ok()?;
        session.until("open").ok().map(|_| session)
    }

    /// What these statements print, each column apart from the next by a tab. They are asked again while the server
    /// starts, so they have to bear that.
    pub fn ask(&self, statements: &str) -> Vec<String> {
        self.asked(&self.name, statements)
    }

    /// What it holds as committed.
    pub fn committed(&self) -> Vec<Committed> {
        let lines = self.ask(
            "SELECT event, tx, nth, aggregate_id, COALESCE(version, -1) FROM written ORDER BY tx, nth;",
        );
        lines.iter().map(|line| committed(line)).collect()
    }

    /// Rows that nobody has taken yet.
    pub fn rows_left(&self) -> u64 {
        let left = match self.table.marks {
            true => "WHERE taken IS NULL",
            false => "",
        };
        let lines = self.ask(&format!("SELECT count(*) FROM outboxevent {left};"));
        lines.first().unwrap().parse().unwrap()
    }

    /// Mends the rows that are refused.
    pub fn mend(&self) {
        if self.table.refuses {
            self.ask(&format!(
                "UPDATE outboxevent SET type = '{KIND}' WHERE type = '{UNWANTED}';"
            ));
        }
    }

    /// Transactions in the order of their commits, each as often as it wrote a row.
    pub fn commits(&self) -> Vec<u64> {
        let lines = self.ask(&format!(
            "SELECT data FROM pg_logical_slot_peek_changes('{ORACLE}', NULL, NULL) \
             WHERE data LIKE 'table public.written: INSERT:%';"
        ));
        let mut order: Vec<u64> = lines.iter().map(|line| transaction_of(line)).collect();
        order.dedup();
        order
    }

    /// `kill -9`; and whether it is one that can be killed.
    pub fn kill(&self) -> bool {
        if self.engine == Engine::Sqlite || std::env::var_os(SERVICES).is_none() {
            return false;
        }
        self.service("kill9");
        true
    }

    /// Starts it again, and waits until it answers.
    pub fn start(&self) {
        self.service("start");
        self.ask("SELECT 1;");
    }

    /// What clients complained of.
    pub fn complaints(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn service(&self, verb: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
        let run = Command::new(script)
            .args([verb, self.engine.name()])
            .output()
            .unwrap();
        if !run.status.success() {
            let words = String::from_utf8_lossy(&run.stderr);
            invalid(&format!("scripts/services {verb}: {words}"));
        }
    }

    fn administer(&self, statement: &str) {
        let path = self.url.as_ref().map_or("", Url::path);
        self.asked(path.trim_start_matches('/'), statement);
    }

    fn drop_database(&self) {
        let force = match self.engine {
            Engine::Postgres => {
                // A slot keeps its database, and whoever reads it keeps the slot.
                self.administer(&format!(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                     WHERE database = '{0}' AND active_pid IS NOT NULL;\n\
                     SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                     WHERE database = '{0}';",
                    self.name
                ));
                "WITH (FORCE)"
            }
            Engine::Mariadb | Engine::Sqlite => "",
        };
        self.administer(&format!("DROP DATABASE IF EXISTS {} {force};", self.name));
    }

    fn asked(&self, database: &str, statements: &str) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let output = self.run(database, statements);
            if output.status.success() {
                let text = String::from_utf8(output.stdout).unwrap();
                return text.lines().map(str::to_owned).collect();
            }
            if begun.elapsed() > PATIENCE {
                let words = String::from_utf8_lossy(&output.stderr).into_owned();
                invalid(&format!(
                    "the database does not answer {statements:?}: {words}"
                ));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn run(&self, database: &str, statements: &str) -> Output {
        let mut child = self
            .client(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let statements = format!("{}\n{statements}\n", self.opening());
        // A client that is refused reads nothing.
        drop(std::io::Write::write_all(&mut input, statements.as_bytes()));
        drop(input);
        child.wait_with_output().unwrap()
    }

    /// The client as a command that ends at the first error, and gives its lines as they come.
    fn client(&self, database: &str) -> Command {
        let mut command = Command::new("stdbuf");
        command.arg("-oL");
        match (self.engine, &self.url) {
            (Engine::Postgres, Some(url)) => {
                let mut url = url.clone();
                url.set_path(database);
                command.args([
                    "psql",
                    "-X",
                    "-q",
                    "-A",
                    "-t",
                    "-F",
                    "\t",
                    "-v",
                    "ON_ERROR_STOP=1",
                ]);
                command.arg(url.as_str());
            }
            (Engine::Mariadb, Some(url)) => {
                command.args(["mariadb", "--no-defaults", "--batch", "--skip-column-names"]);
                command.args(["--unbuffered", "--skip-reconnect", "--protocol=tcp"]);
                command.arg(format!("--host={}", url.host_str().unwrap()));
                command.arg(format!("--port={}", url.port().unwrap()));
                command.arg(format!("--user={}", url.username()));
                command.arg(database);
                command.env("MYSQL_PWD", url.password().unwrap_or_default());
            }
            _ => {
                command.args([
                    "sqlite3",
                    "-batch",
                    "-bail",
                    "-noheader",
                    "-separator",
                    "\t",
                ]);
                command.arg(self.file());
            }
        }
        command
    }

    fn file(&self) -> PathBuf {
        self.folder.join("app.db")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("clients.log")
    }

    /// What every session begins with.
    fn opening(&self) -> &'static str {
        match self.engine {
            Engine::Postgres => "SET client_min_messages = warning;",
            Engine::Mariadb => "SET SESSION innodb_lock_wait_timeout = 20;",
            Engine::Sqlite => ".timeout 20000",
        }
    }

    /// The application's table, the outbox table, and what was written to it, by whom, in the same transactions.
    fn tables(&self) -> String {
        let (id, payload, count) = match self.engine {
            Engine::Postgres => (
                "uuid",
                "jsonb",
                "position bigint GENERATED ALWAYS AS IDENTITY UNIQUE,",
            ),
            Engine::Mariadb => (
                "char(36)",
                "json",
                "position bigint NOT NULL AUTO_INCREMENT UNIQUE,",
            ),
            Engine::Sqlite => (
                "text",
                "text",
                "position integer PRIMARY KEY AUTOINCREMENT,",
            ),
        };
        let count = if self.table.counts { count } else { "" };
        let mark = match (self.table.marks, self.engine) {
            (false, _) => "",
            (true, Engine::Postgres) => ", taken timestamptz",
            (true, Engine::Mariadb) => ", taken datetime(6)",
            (true, Engine::Sqlite) => ", taken text",
        };
        let key = match self.engine {
            Engine::Sqlite => "UNIQUE",
            Engine::Postgres | Engine::Mariadb => "PRIMARY KEY",
        };
        let wal = match self.engine {
            Engine::Sqlite => "PRAGMA journal_mode = WAL;",
            Engine::Postgres | Engine::Mariadb => "",
        };
        let aggregates: Vec<String> = (0..AGGREGATES)
            .map(|number| format!("('{}', 0)", aggregate(number)))
            .collect();
        let aggregates = aggregates.join(", ");
        format!(
            "{wal}
            CREATE TABLE outboxevent ({count} id {id} NOT NULL {key}, aggregatetype varchar(255) NOT NULL,
                aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload {payload}{mark});
            CREATE TABLE written (event varchar(36) NOT NULL, tx bigint NOT NULL, nth bigint NOT NULL,
                aggregate_id varchar(255) NOT NULL, version bigint, PRIMARY KEY (tx, nth));
            CREATE TABLE aggregates (id varchar(255) PRIMARY KEY, version bigint NOT NULL);
            INSERT INTO aggregates VALUES {aggregates};"
        )
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Where a run broke off the server may be gone with it.
        if self.engine != Engine::Sqlite && !std::thread::panicking() {
            self.drop_database();
        }
    }
}

/// How an aggregate is called.
pub fn aggregate(number: u64) -> String {
    format!("a{number}")
}

fn committed(line: &str) -> Committed {
    let columns: Vec<&str> = line.split('\t').collect();
    let [id, transaction, nth, aggregate, version] = columns[..] else {
        invalid(&format!("the database says {line:?}"));
    };
    Committed {
        id: id.to_owned(),
        transaction: transaction.parse().unwrap(),
        nth: nth.parse().unwrap(),
        aggregate: aggregate.to_owned(),
        version: version.parse().ok(),
    }
}

/// `table public.written: INSERT: event[character varying]:'...' tx[bigint]:12 nth[bigint]:0 ...`
fn transaction_of(change: &str) -> u64 {
    let (_, after) = change.split_once(" tx[bigint]:").unwrap();
    after.split(' ').next().unwrap().parse().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_clients_say_is_understood() {
        let row = committed("id-1\t12\t3\ta7\t-1");
        assert_eq!((row.transaction, row.nth, row.version), (12, 3, None));
        assert_eq!(committed("id-1\t12\t3\ta7\t5").version, Some(5));
        let change = "table public.written: INSERT: event[character varying]:'x' tx[bigint]:12 nth[bigint]:0";
        assert_eq!(transaction_of(change), 12);
    }
}
