//! The application: clients that write business rows and events in one transaction, many at a time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::database::{Database, Engine, Table, aggregate};
use super::judge::{Span, payload};
use super::session::{Gone, Session};
use super::transaction::{End, KIND, Transaction, UNWANTED};
use crate::black_box::ending::{invalid, joined};

/// How many write at the same time.
pub const WRITERS: u64 = 16;

/// SQLite lets one write at a time, so nobody keeps the others waiting for long.
const SQLITE_HURRY: u32 = 20;

/// How long a client waits before it knocks again at a database that is away.
const KNOCK_EVERY: Duration = Duration::from_millis(50);

/// How long a database may be away before the harness gives up: longer than it may take to start.
const PATIENCE: Duration = Duration::from_secs(120);

/// Writers at work.
pub struct Writers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    database: Arc<Database>,
    seed: u64,
    count: u64,
    next: AtomicU64,
    begun: Instant,
    spans: Mutex<BTreeMap<u64, Span>>,
}

impl Writers {
    /// So many transactions, the first of which are under way when this returns.
    pub fn start(database: &Arc<Database>, seed: u64, count: u64) -> Self {
        let shared = Arc::new(Shared {
            database: Arc::clone(database),
            seed,
            count,
            next: AtomicU64::new(0),
            begun: Instant::now(),
            spans: Mutex::default(),
        });
        let threads = (0..WRITERS)
            .map(|_| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.write())
            })
            .collect();
        Self { shared, threads }
    }

    /// Whether transactions are left to begin, and somebody is there to begin them.
    pub fn are_busy(&self) -> bool {
        let is_left = self.shared.next.load(Ordering::Relaxed) < self.shared.count;
        is_left && self.threads.iter().any(|thread| !thread.is_finished())
    }

    /// When each was under way, once all have ended.
    pub fn join(self) -> BTreeMap<u64, Span> {
        self.threads.into_iter().for_each(joined);
        std::mem::take(&mut *self.shared.spans.lock().unwrap())
    }
}

impl Shared {
    fn write(&self) {
        let mut session = None;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return;
            }
            let transaction = Transaction::of(self.seed, number);
            let mut client = session.take().unwrap_or_else(|| self.connect());
            // What was under way when the client ended is known to the database alone.
            if self.run(&mut client, &transaction).is_ok() {
                session = Some(client);
            }
        }
    }

    fn connect(&self) -> Session {
        let begun = Instant::now();
        loop {
            if let Some(session) = self.database.session() {
                return session;
            }
            if begun.elapsed() > PATIENCE {
                let said = self.database.complaints();
                let last = said.lines().last().unwrap_or_default().to_owned();
                invalid(&format!("the database takes no clients: {last}"));
            }
            std::thread::sleep(KNOCK_EVERY);
        }
    }

    fn run(&self, client: &mut Session, transaction: &Transaction) -> Result<(), Gone> {
        let engine = self.database.engine;
        let counts = self.database.table.counts;
        let [before, after] = transaction.waits.map(|wait| match engine {
            Engine::Sqlite => wait / SQLITE_HURRY,
            Engine::Postgres | Engine::Mariadb => wait,
        });
        let number = transaction.number;
        self.note(number, None);
        client.send(&opening(engine, counts, transaction))?;
        std::thread::sleep(before);
        client.send(&writing(engine, self.database.table, transaction))?;
        std::thread::sleep(after);
        let end = match transaction.end {
            End::Commit => "COMMIT",
            End::Rollback => "ROLLBACK",
            End::Abandon => return Err(Gone),
        };
        client.send(&format!("{end};\nSELECT 'ended {number}';"))?;
        client.until(&format!("ended {number}"))?;
        self.note(number, Some(self.begun.elapsed()));
        Ok(())
    }

    fn note(&self, number: u64, ended: Option<Duration>) {
        let now = self.begun.elapsed();
        let mut spans = self.spans.lock().unwrap();
        spans
            .entry(number)
            .or_insert(Span { begun: now, ended })
            .ended = ended;
    }
}

/// Begins a transaction, locks what it is about, draws its places.
fn opening(engine: Engine, counts: bool, transaction: &Transaction) -> String {
    let mut sql = match engine {
        Engine::Sqlite => "BEGIN IMMEDIATE;\n".to_owned(),
        Engine::Postgres | Engine::Mariadb => "BEGIN;\n".to_owned(),
    };
    if transaction.locks {
        for number in transaction.aggregates() {
            let id = aggregate(number);
            writeln!(
                sql,
                "UPDATE aggregates SET version = version + 1 WHERE id = '{id}';"
            )
            .unwrap();
        }
    }
    if draws(engine, counts, transaction) {
        for nth in 0..transaction.rows.len() {
            writeln!(
                sql,
                "SELECT nextval(pg_get_serial_sequence('outboxevent', 'position')) AS drawn_{nth} \\gset"
            )
            .unwrap();
        }
    }
    sql
}

/// Writes its rows, each to the outbox and to the list of what was written.
fn writing(engine: Engine, table: Table, transaction: &Transaction) -> String {
    let mut sql = String::new();
    let draws = draws(engine, table.counts, transaction);
    for (nth, row) in transaction.rows.iter().enumerate() {
        let (id, aggregate, number) = (&row.id, aggregate(row.aggregate), transaction.number);
        let payload = payload(number, nth as u64);
        let kind = match table.refuses && row.is_unwanted() {
            true => UNWANTED,
            false => KIND,
        };
        let (column, overriding, place) = match draws {
            true => (
                "position, ",
                "OVERRIDING SYSTEM VALUE",
                format!(":drawn_{nth}, "),
            ),
            false => ("", "", String::new()),
        };
        let version = match transaction.locks {
            true => format!("(SELECT version FROM aggregates WHERE id = '{aggregate}')"),
            false => "NULL".to_owned(),
        };
        writeln!(
            sql,
            "INSERT INTO outboxevent ({column}id, aggregatetype, aggregateid, type, payload) {overriding} \
             VALUES ({place}'{id}', 'order', '{aggregate}', '{kind}', '{payload}');\n\
             INSERT INTO written VALUES ('{id}', {number}, {nth}, '{aggregate}', {version});"
        )
        .unwrap();
    }
    sql
}

/// Only PostgreSQL hands out places before a row is written.
fn draws(engine: Engine, counts: bool, transaction: &Transaction) -> bool {
    transaction.draws && counts && engine == Engine::Postgres
}
