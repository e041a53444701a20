//! The recipes of `examples/outbox-table` from end to end: the table as it is printed, an insert in each
//! language that is at hand, and Wayhold, which takes the events; and the receivers of `docs/consumers.md`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::server::{Server, run, stderr, stdout};
use crate::support::wait_for;

/// How `scripts/verify` says that a language is not there.
const ABSENT: i32 = 77;

const ORDERS: &str = "CREATE TABLE orders (id text PRIMARY KEY, total integer NOT NULL)";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn skip(what: &str, why: &str) {
    println!("skipped: {what} because {why}");
    let required = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(!required, "{what}: {why}");
}

/// The table's SQL, as the command prints it.
fn printed(database: &str) -> String {
    let output = run(&root(), &["outbox-table", "sql", "--for", database]);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// A server that reads the table at a URL into a file.
fn serve(dir: &Path, url: &str) -> Server {
    let config = format!(
        "[sources.shop]\nkind = \"outbox_table\"\nurl = {url}\npoll_interval = \"50ms\"\n\
         [destinations.out]\nkind = \"file\"\npath = \"out.ndjson\"\n[[routes]]\nto = [\"out\"]\n"
    );
    std::fs::write(dir.join("wayhold.toml"), config).unwrap();
    Server::start(dir, &["--config", "wayhold.toml", "--data", "data"])
}

/// The events of these orders, once all have arrived, in the order of arrival.
fn arrived(dir: &Path, orders: usize) -> Vec<Value> {
    wait_for("every order is told", || {
        let text = std::fs::read_to_string(dir.join("out.ndjson")).unwrap_or_default();
        let events: Vec<Value> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        (events.len() >= orders).then_some(events)
    })
}

fn has_failed(output: &Output) -> bool {
    assert_ne!(output.status.code(), None, "{}", stderr(output));
    !output.status.success()
}

#[test]
fn an_insert_with_pythons_own_sqlite_is_told_once() {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        skip(
            "examples/outbox-table/python/sqlite.py",
            "python3 is absent",
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let application = rusqlite::Connection::open(dir.path().join("app.db")).unwrap();
    let create = format!("PRAGMA journal_mode = WAL; {}{ORDERS};", printed("sqlite"));
    application.execute_batch(&create).unwrap();
    let place = |order: &str| {
        let example = root().join("examples/outbox-table/python/sqlite.py");
        let mut place = Command::new("python3");
        let place = place.arg("-B").arg(example).args(["app.db", order]);
        place.current_dir(dir.path()).output().unwrap()
    };
    let server = serve(dir.path(), "\"sqlite:app.db\"");
    for order in ["1", "2"] {
        let placed = place(order);
        assert!(placed.status.success(), "{}", stderr(&placed));
    }
    assert!(has_failed(&place("1")), "the same order again");
    let placed = place("3");
    assert!(placed.status.success(), "{}", stderr(&placed));

    let events = arrived(dir.path(), 3);
    let subjects: Vec<_> = events
        .iter()
        .map(|event| event["subject"].as_str())
        .collect();
    assert_eq!(subjects, [Some("1"), Some("2"), Some("3")]);
    let (first, kind) = (&events[0], "com.example.order.placed");
    assert_eq!(first["source"], "//shop/outbox/outboxevent/order");
    assert_eq!(first["type"], kind);
    assert_eq!(first["data"], serde_json::json!({"id": "1", "total": 1200}));
    wait_for("the table is empty", || {
        let count = "SELECT count(*) FROM outboxevent";
        let left: i64 = application.query_row(count, [], |row| row.get(0)).ok()?;
        (left == 0).then_some(())
    });
    drop(server);
}

#[tokio::test]
async fn an_insert_in_each_language_is_told_once() {
    const DATABASE: &str = "outbox_recipes";
    let Ok(url) = std::env::var("WAYHOLD_TEST_POSTGRES") else {
        skip(
            "examples/outbox-table with PostgreSQL",
            "WAYHOLD_TEST_POSTGRES is not set",
        );
        return;
    };
    let mut postgres = PgConnection::connect(&url).await.unwrap();
    for statement in ["DROP DATABASE IF EXISTS", "CREATE DATABASE"] {
        let statement = AssertSqlSafe(format!("{statement} {DATABASE}"));
        sqlx::raw_sql(statement)
            .execute(&mut postgres)
            .await
            .unwrap();
    }
    let url = format!("{}/{DATABASE}", url.rsplit_once('/').unwrap().0);
    let mut shop = PgConnection::connect(&url).await.unwrap();
    let create = AssertSqlSafe(format!("{};{ORDERS}", printed("postgres")));
    sqlx::raw_sql(create).execute(&mut shop).await.unwrap();

    let mut told = Vec::new();
    for language in ["python", "typescript", "java", "go"] {
        let place = || {
            let script = root().join("scripts/verify/outbox");
            let mut place = Command::new("timeout");
            let place = place.arg("300").arg(script).args([language, language]);
            place.env("DATABASE_URL", &url).output().unwrap()
        };
        let placed = place();
        if placed.status.code() == Some(ABSENT) {
            // Nothing else here needs these languages, so a machine without one is whole.
            let why = stderr(&placed);
            println!(
                "skipped: examples/outbox-table in {language} because {}",
                why.trim()
            );
            continue;
        }
        assert!(placed.status.success(), "{language}: {}", stderr(&placed));
        if language == "python" {
            assert!(has_failed(&place()), "the same order again");
        }
        told.push(language);
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("url"), &url).unwrap();
    let server = serve(dir.path(), "{ file = \"url\" }");
    let events = arrived(dir.path(), told.len());
    let subjects: Vec<_> = events
        .iter()
        .map(|event| event["subject"].as_str())
        .collect();
    assert_eq!(
        subjects,
        told.iter().map(|one| Some(*one)).collect::<Vec<_>>()
    );
    for event in &events {
        let order = event["subject"].as_str();
        assert_eq!(
            event["data"],
            serde_json::json!({"id": order, "total": 1200})
        );
    }
    drop(server);
    drop(shop);
    let drop = AssertSqlSafe(format!("DROP DATABASE {DATABASE} WITH (FORCE)"));
    sqlx::raw_sql(drop).execute(&mut postgres).await.unwrap();
}

#[test]
fn names_that_no_table_has_are_refused_with_the_field() {
    let output = run(
        &root(),
        &["outbox-table", "sql", "--for", "mysql", "--table", "a;b"],
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("table: expected a name"),
        "{}",
        stderr(&output)
    );
    let output = run(
        &root(),
        &[
            "outbox-table",
            "sql",
            "--for",
            "sqlite",
            "--existing",
            "--json",
        ],
    );
    assert_eq!(stdout(&output).trim(), "{\"sql\":\"\"}");
}

#[test]
fn receivers_of_the_documentation_do_everything_once() {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        skip("docs/consumers.md", "python3 is absent");
        return;
    }
    let page = std::fs::read_to_string(root().join("docs/consumers.md")).unwrap();
    let blocks: Vec<_> = page
        .split("```python ")
        .skip(1)
        .filter_map(|rest| rest.split("```").next()?.split_once('\n'))
        .collect();
    let names: Vec<_> = blocks.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["webhook", "http", "kafka", "file"]);
    for (name, block) in blocks {
        let dir = tempfile::tempdir().unwrap();
        let judge = root().join("crates/server/tests/e2e/consumers.py");
        let mut child = Command::new("timeout")
            .args(["60", "python3", "-B"])
            .arg(judge)
            .arg(name)
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(block.as_bytes()).unwrap();
        drop(input);
        let judged = child.wait_with_output().unwrap();
        assert!(judged.status.success(), "{name}: {}", stderr(&judged));
    }
}
