//! Rows of an application's outbox table on their way out, while the reader, the database and the link between them
//! fail: what arrives is what was committed, in the promised order, and the table is empty at the end.
//!
//! Writers, what is committed and in which order are known from the database's own clients alone (`session`,
//! `database`); the reader is the shipped binary. Modules in suggested reading order.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

pub mod transaction;

pub mod session;

pub mod database;

pub mod writers;

pub mod reader;

pub mod naive;

pub mod judge;

pub mod faults;

use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};

use self::database::{Database, Engine, Table};
use self::judge::{Arrived, Evidence, Order, judge};
use self::naive::Naive;
use self::reader::{Link, Mode, Reader, drain};
use self::writers::{WRITERS, Writers};
use crate::black_box::ending::{broken, invalid};
use crate::black_box::episode::Series;
use crate::dice::Dice;
use crate::{Budget, Verdict};

/// Transactions between two judgements.
const PER_EPISODE: u64 = 10_000;

/// Transactions of a short run.
const TRANSACTIONS: u64 = 2_800;

/// After one fault in so many the rows that are refused are mended: until then their aggregates wait.
const MENDED_ONE_IN: u64 = 6;

/// Findings that are shown; the rest are counted.
const SHOWN: usize = 5;

/// Most of a run's transactions that may have ended without an answer, of so many: a database that is killed all the
/// time tries nothing.
const ANSWERED_MIN_PERCENT: usize = 70;

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,

    /// Only this one; otherwise all of them, one after the other, each with its part of the transactions.
    #[arg(long)]
    on: Option<Case>,
}

/// Which table is read, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// PostgreSQL, polled in the order of a column that counts up.
    Postgres,
    /// PostgreSQL, polled in the order of transactions, as Debezium's table has no such column.
    PostgresPlain,
    /// PostgreSQL, from a replication slot.
    PostgresLogical,
    /// PostgreSQL, with two servers between which the reader moves.
    PostgresMoves,
    /// MariaDB.
    Mariadb,
    /// MariaDB, with two servers between which the reader moves.
    MariadbMoves,
    /// SQLite.
    Sqlite,
}

impl Case {
    fn engine(self) -> Engine {
        match self {
            Self::Mariadb | Self::MariadbMoves => Engine::Mariadb,
            Self::Sqlite => Engine::Sqlite,
            _ => Engine::Postgres,
        }
    }

    fn mode(self) -> Mode {
        match self {
            Self::PostgresLogical => Mode::Logical,
            _ => Mode::Poll,
        }
    }

    fn moves(self) -> bool {
        matches!(self, Self::PostgresMoves | Self::MariadbMoves)
    }

    /// Whether rows are deleted or marked takes turns, and so does whether some of them are refused for a time.
    fn table(self, seed: u64) -> Table {
        Table {
            counts: self != Self::PostgresPlain,
            marks: self.mode() == Mode::Poll && seed.is_multiple_of(2),
            tells_commits: self.mode() == Mode::Logical,
            refuses: self.mode() == Mode::Logical && seed.is_multiple_of(2),
        }
    }

    fn order(self, database: &Database) -> Order {
        match self {
            Self::PostgresMoves | Self::MariadbMoves => Order::Ids,
            Self::PostgresPlain => Order::Transactions,
            Self::PostgresLogical => Order::Commits(database.commits()),
            Self::Postgres | Self::Mariadb | Self::Sqlite => Order::Column,
        }
    }

    /// The kind as the command line names it.
    fn kind(self, control: &str) -> String {
        let value = self.to_possible_value().unwrap();
        format!("outbox-table --on {}{control}", value.get_name())
    }
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Verdict {
    let budget = &arguments.budget;
    if budget.control {
        let case = arguments.on.unwrap_or(Case::Postgres);
        if case.engine() == Engine::Sqlite {
            let why = "SQLite lets one write at a time, so that a naive reader misses nothing";
            return Verdict::Invalid(why.to_owned());
        }
        let kind = case.kind(" --control");
        return series(&kind).control(budget, |seed, count| controlled(case, seed, count));
    }
    if let Some(case) = arguments.on {
        return of(case, budget);
    }
    let cases = Case::value_variants();
    let parts = cases.len() as u64;
    for case in cases {
        let part = Budget {
            count: Some(budget.count.unwrap_or(TRANSACTIONS).div_ceil(parts)),
            minutes: budget.minutes.map(|minutes| minutes.div_ceil(parts)),
            ..budget.clone()
        };
        let verdict = of(*case, &part);
        if verdict != Verdict::Held {
            return verdict;
        }
    }
    Verdict::Held
}

fn of(case: Case, budget: &Budget) -> Verdict {
    series(&case.kind("")).run(budget, |seed, count| episode(case, seed, count))
}

fn series(kind: &str) -> Series<'_> {
    Series {
        kind,
        cases: "transactions",
        count: TRANSACTIONS,
        per_episode: PER_EPISODE,
    }
}

/// Transactions on one table, everything that fails meanwhile, and the judgement.
fn episode(case: Case, seed: u64, count: u64) -> String {
    let root = tempfile::tempdir().unwrap();
    open_to_all(root.path());
    let database = Arc::new(Database::make(case.engine(), case.table(seed), root.path()));
    let link = Link::to(&database);
    let url = link.url(&database);
    let mut readers: Vec<Reader> = (0..1 + usize::from(case.moves()))
        .map(|number| {
            let folder = root.path().join(format!("server-{number}"));
            Reader::prepare(&folder, &database, &url, case.mode())
        })
        .collect();
    for (number, reader) in readers.iter_mut().enumerate() {
        reader.server.start();
        // Another one stands by.
        if number == 0 {
            reader.await_reading();
        }
    }
    let begun = Instant::now();
    let writers = Writers::start(&database, seed, count);
    let mut dice = Dice::new(seed);
    let mut tally = faults::Tally::default();
    while writers.are_busy() {
        faults::one(&mut dice, &mut readers, &database, &link, &mut tally);
        if dice.one_in(MENDED_ONE_IN) {
            database.mend();
        }
    }
    let spans = writers.join();
    let wrote = begun.elapsed();
    database.mend();
    drain(&mut readers, &database);
    let arrived: Vec<Arrived> = readers.iter().flat_map(Reader::arrived).collect();
    let answered = spans.values().filter(|span| span.ended.is_some()).count();
    if answered * 100 < spans.len() * ANSWERED_MIN_PERCENT {
        invalid(&format!(
            "{answered} of {} transactions were answered",
            spans.len()
        ));
    }
    let committed = database.committed();
    let evidence = Evidence {
        committed: &committed,
        spans: &spans,
        arrived: &arrived,
        order: &case.order(&database),
    };
    say(&judge(&evidence), &readers);
    for reader in &mut readers {
        reader.server.expect_no_alarm();
        let (status, _) = reader.server.terminate();
        if !status.success() {
            reader
                .server
                .fail(&format!("does not stop as it should: {status}"));
        }
    }
    format!(
        "{count} transactions of {WRITERS} writers in {} s, {tally}, {} rows committed, {} repeats",
        wrote.as_secs(),
        committed.len(),
        arrived.len() - committed.len()
    )
}

/// The same transactions without any fault, read as it is often done.
fn controlled(case: Case, seed: u64, count: u64) -> String {
    let root = tempfile::tempdir().unwrap();
    open_to_all(root.path());
    let table = Table {
        counts: true,
        marks: false,
        tells_commits: false,
        refuses: false,
    };
    let database = Arc::new(Database::make(case.engine(), table, root.path()));
    let naive = Naive::start(&database);
    let spans = Writers::start(&database, seed, count).join();
    let arrived = naive.join();
    let committed = database.committed();
    let evidence = Evidence {
        committed: &committed,
        spans: &spans,
        arrived: &arrived,
        order: &Order::Ids,
    };
    say(&judge(&evidence), &[]);
    format!("{} rows committed, {} read", committed.len(), arrived.len())
}

/// Ends the run where anything was found.
fn say(findings: &[String], readers: &[Reader]) {
    if findings.is_empty() {
        return;
    }
    let shown = findings[..findings.len().min(SHOWN)].join("\n  ");
    let what = format!("{} findings, the first:\n  {shown}", findings.len());
    match readers {
        [reader, ..] => reader.server.fail(&what),
        [] => broken(&what),
    }
}

/// A database's server may run as another user.
fn open_to_all(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}
