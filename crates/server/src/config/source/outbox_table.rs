//! Keys of `kind = "outbox_table"`: a table of events in a service's own database.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;
use wayhold_model::admission::Fill;

use super::router::{RouterConfig, found_column};
use crate::config::quantity::Size;
use crate::config::secret::Secret;
use crate::config::section::Section;
use crate::config::setting::Choice;

/// A table that is read.
#[derive(Clone, Debug)]
pub struct OutboxTableConfig {
    /// The source's name.
    pub name: String,
    /// Which database.
    pub database: Database,
    /// The authority in the events' `source`, `//SERVER/outbox/TABLE/AGGREGATETYPE`.
    pub server: String,
    /// Which table.
    pub table: TableName,
    /// What its columns are.
    pub router: RouterConfig,
    /// The column that rows are read in the order of; `None` leaves it to the reader.
    pub order_by: Option<String>,
    /// How rows are found.
    pub mode: Mode,
    /// Replication slot of logical mode.
    pub slot: String,
    /// Publication of logical mode.
    pub publication: String,
    /// What becomes of a row whose event is durable here.
    pub after: AfterAccept,
    /// Media type of payloads; `None` goes by the column.
    pub content_type: Option<String>,
    /// Most rows that are accepted together.
    pub batch_rows: usize,
    /// About how many bytes of payload are accepted together.
    pub batch_bytes: usize,
    /// How long to wait at most before looking again where nothing woke the reader.
    pub poll_interval: Duration,
    /// How long the database may take to answer.
    pub timeout: Duration,
    /// At which filling of a limit reading stops.
    pub admit_until: Fill,
}

/// A database, by the scheme of its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Database {
    /// `postgres://`; the whole URL may hold a password.
    Postgres(Secret),
    /// `mysql://`, of MySQL and MariaDB alike.
    Mysql(Secret),
    /// `sqlite:PATH`.
    Sqlite(PathBuf),
}

impl Database {
    /// What people call it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "postgres",
            Self::Mysql(_) => "mysql",
            Self::Sqlite(_) => "sqlite",
        }
    }
}

/// A table, perhaps with its schema (of PostgreSQL) or database (of MySQL).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    /// What stands before the dot.
    pub schema: Option<String>,
    /// The table itself.
    pub name: String,
}

impl TableName {
    fn parse(text: &str) -> Option<Self> {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        let is_name = |name: &str| !name.is_empty() && name.len() <= TABLE_BYTES_MAX;
        let fits = is_name(name) && !name.contains('.') && schema.is_none_or(is_name);
        fits.then(|| Self {
            schema: schema.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{schema}.")?;
        }
        f.write_str(&self.name)
    }
}

/// How rows are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By asking the table.
    Poll,
    /// From the write-ahead log, by a replication slot.
    Logical,
}

impl Mode {
    /// The word in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Logical => "logical",
        }
    }
}

impl Choice for Mode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("poll", Self::Poll), ("logical", Self::Logical)];
}

/// What becomes of a row whose event is durable here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterAccept {
    /// It is deleted.
    Delete,
    /// This column says so: a time is set to now, a flag to true. Rows that have it are not read.
    Mark(String),
    /// It stays as it is; logical mode alone knows what it has read.
    Keep,
}

/// The words of `after_accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Delete,
    Mark,
    Keep,
}

impl Choice for After {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("delete", Self::Delete),
        ("mark", Self::Mark),
        ("keep", Self::Keep),
    ];
}

/// Longest name of a table or schema, in bytes.
const TABLE_BYTES_MAX: usize = 256;

/// Most rows of a batch: all of them are in memory, and a slot of the store's queue holds them.
const BATCH_ROWS_MAX: usize = 10_000;

/// Rows of a batch that nobody chose: from there on a sync of the store is shared well enough.
const BATCH_ROWS: usize = 1_000;

/// Shortest pause between looks: a poll is a query.
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_secs(3600);

/// How long an answer may take that nobody bounded: sorting a large table takes its time, and a link that
/// is gone without a word shows in nothing else.
const TIMEOUT: Duration = Duration::from_secs(60);
const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// Longest name of a replication slot or publication, as PostgreSQL has it.
const SLOT_BYTES_MAX: usize = 63;

impl OutboxTableConfig {
    /// Reads the keys; `None` only with a problem noted.
    pub(super) fn read(
        name: &str,
        section: &mut Section<'_, '_, '_>,
        batch_bytes_max: usize,
    ) -> Option<Self> {
        let database = read_database(section);
        let server = section.get("server", name.to_owned());
        if server.is_empty() || !server.chars().all(is_of_authority) {
            section.problem("server", "expected letters, digits and . - _ : [ ]");
        }
        let table_text = section.get("table", "outboxevent".to_owned());
        let table = TableName::parse(&table_text);
        if table.is_none() {
            section.problem("table", "expected \"TABLE\" or \"SCHEMA.TABLE\"");
        }
        let router = RouterConfig::read(section);
        let order_by = found_column(section, "order_by");
        let mode = section.get("mode", Mode::Poll);
        let own = format!("wayhold_{}", name.replace('-', "_"));
        let slot = section.get("slot", own.clone());
        let publication = section.get("publication", own);
        check_mode(section, mode, database.as_ref(), &slot, &publication);
        let after = read_after(section, mode);
        let content_type = section.find::<String>("content_type");
        let batch_rows = section.within("batch_rows", BATCH_ROWS, 1, BATCH_ROWS_MAX);
        let max = Size(batch_bytes_max as u64);
        let batch_bytes = section.within("batch_bytes", max, Size(1024), max);
        let poll_interval =
            section.within("poll_interval", Duration::from_secs(1), POLL_MIN, POLL_MAX);
        let timeout = section.within("timeout", TIMEOUT, TIMEOUT_MIN, POLL_MAX);
        let admit_until = section.get("admit_until", Fill::FULL);
        Some(Self {
            name: name.to_owned(),
            database: database?,
            server,
            table: table?,
            router,
            order_by,
            mode,
            slot,
            publication,
            after: after?,
            content_type,
            batch_rows,
            batch_bytes: usize::try_from(batch_bytes.0).unwrap_or(usize::MAX),
            poll_interval,
            timeout,
            admit_until,
        })
    }
}

fn is_of_authority(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']')
}

/// Reads `url`. What is refused of it is never shown: it may hold a password.
fn read_database(section: &mut Section<'_, '_, '_>) -> Option<Database> {
    const EXAMPLE: &str = "{ env = \"DATABASE_URL\" }";
    if !section.has("url") {
        section.require::<String>("url", EXAMPLE);
        return None;
    }
    let value = section.find_secret("url", shown_url)?;
    let is_literal = matches!(value, crate::config::TextOrSecret::Text(_));
    let text = value.expose();
    if let Some(path) = text.strip_prefix("sqlite:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() {
            section.problem("url", "expected a file, as in \"sqlite:path/app.db\"");
            return None;
        }
        return Some(Database::Sqlite(section.resolve("url", path)));
    }
    let url = Url::parse(text).ok().filter(Url::has_host);
    if is_literal && url.as_ref().is_some_and(|url| url.password().is_some()) {
        section.problem(
            "url",
            format!("expected a URL without a password, or {EXAMPLE}"),
        );
    }
    match url.as_ref().map(Url::scheme) {
        Some("postgres" | "postgresql") => Some(Database::Postgres(Secret::new(text))),
        Some("mysql" | "mariadb") => {
            let text = text.replacen("mariadb:", "mysql:", 1);
            Some(Database::Mysql(Secret::new(&text)))
        }
        _ => {
            section.problem(
                "url",
                "expected postgres://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE or sqlite:PATH",
            );
            None
        }
    }
}

/// A URL as it may be shown: without a password, and without what might be one.
fn shown_url(text: &str) -> String {
    if text.starts_with("sqlite:") {
        return text.to_owned();
    }
    match Url::parse(text) {
        Ok(mut url) => {
            if url.password().is_some() && url.set_password(Some("redacted")).is_err() {
                return "[redacted]".to_owned();
            }
            let secret = |name: &str| name.contains("password") || name.contains("key");
            match url.query_pairs().any(|(name, _)| secret(&name)) {
                true => "[redacted]".to_owned(),
                false => url.to_string(),
            }
        }
        Err(_) => "[redacted]".to_owned(),
    }
}

fn check_mode(
    section: &mut Section<'_, '_, '_>,
    mode: Mode,
    database: Option<&Database>,
    slot: &str,
    publication: &str,
) {
    let is_other = |database: &Database| !matches!(database, Database::Postgres(_));
    if mode == Mode::Logical && database.is_some_and(is_other) {
        section.problem(
            "mode",
            "expected \"poll\": only PostgreSQL has a log to read",
        );
    }
    let is_slot = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !(1..=SLOT_BYTES_MAX).contains(&slot.len()) || !slot.chars().all(is_slot) {
        let expected = format!("expected 1 to {SLOT_BYTES_MAX} of a-z, 0-9 and _");
        section.problem("slot", expected);
    }
    if !(1..=SLOT_BYTES_MAX).contains(&publication.len()) || publication.contains(',') {
        let expected = format!("expected a name of 1 to {SLOT_BYTES_MAX} bytes");
        section.problem("publication", expected);
    }
}

fn read_after(section: &mut Section<'_, '_, '_>, mode: Mode) -> Option<AfterAccept> {
    let after = section.get("after_accept", After::Delete);
    let column = found_column(section, "mark_column");
    match (after, column) {
        (After::Mark, Some(column)) => return Some(AfterAccept::Mark(column)),
        (After::Mark, None) => {
            section.problem(
                "mark_column",
                "expected the column that marks a row as taken",
            );
            section.suggest("mark_column = \"sent_at\"".to_owned());
            return None;
        }
        (_, Some(_)) => {
            section.problem("mark_column", "expected after_accept = \"mark\" beside it");
        }
        (_, None) => {}
    }
    if after == After::Keep && mode == Mode::Poll {
        let expected = "expected \"delete\" or \"mark\": a row that stays would be read again";
        section.problem("after_accept", expected);
    }
    Some(match after {
        After::Keep => AfterAccept::Keep,
        After::Delete | After::Mark => AfterAccept::Delete,
    })
}
