//! A table of events in a real PostgreSQL at `WAYHOLD_TEST_POSTGRES` (see `scripts/services`), through the
//! public faces: the configuration, the database's own client, the command line and the file that is delivered.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::server::{Server, run, stderr, stdout};
use crate::support::wait_until;

/// Names the address of a real PostgreSQL.
const REAL_POSTGRES: &str = "WAYHOLD_TEST_POSTGRES";

fn real_postgres() -> Option<String> {
    let url = std::env::var(REAL_POSTGRES).ok();
    if url.is_none() {
        let required = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "{REAL_POSTGRES} is not set: scripts/services up postgres"
        );
        println!("skipped: real PostgreSQL because {REAL_POSTGRES} is not set");
    }
    url
}

fn psql(url: &str, sql: &str) -> String {
    let arguments = [
        "--no-psqlrc",
        "-qAt",
        "-v",
        "ON_ERROR_STOP=1",
        "-c",
        sql,
        url,
    ];
    let output = Command::new("psql").args(arguments).output().unwrap();
    assert!(output.status.success(), "{sql}: {}", stderr(&output));
    stdout(&output).trim().to_owned()
}

fn write(dir: &Path, url: &str, table: &str, when: &str) {
    std::fs::write(dir.join("url"), url).unwrap();
    let text = format!(
        r#"
        [sources.erp]
        kind = "outbox_table"
        url = {{ file = "url" }}
        table = "{table}"
        poll_interval = "20ms"

        [destinations.archive]
        kind = "file"
        path = "delivered.ndjson"

        [[routes]]
        when = '{when}'
        to = ["archive"]
        "#
    );
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
}

fn delivered(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("delivered.ndjson")).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn source(server: &Server) -> Value {
    server.get("/v1/status")["sources"][0].clone()
}

fn make(url: &str, table: &str) {
    psql(
        url,
        &format!(
            "CREATE TABLE {table} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), \
             aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, \
             type varchar(255) NOT NULL, payload jsonb, \
             position bigint GENERATED ALWAYS AS IDENTITY UNIQUE)"
        ),
    );
}

fn insert(url: &str, table: &str, kind: &str, key: &str, number: u32) {
    psql(
        url,
        &format!(
            "BEGIN; INSERT INTO {table} (aggregatetype, aggregateid, type, payload) \
             VALUES ('order', '{key}', '{kind}', '{{\"n\": {number}}}'); COMMIT"
        ),
    );
}

/// What leaves the configuration is not read any more.
fn leave(dir: &Path, server: &Server) {
    let text = std::fs::read_to_string(dir.join("wayhold.toml")).unwrap();
    let end = text.find("[destinations").unwrap();
    std::fs::write(dir.join("wayhold.toml"), text.split_at(end).1).unwrap();
    server.post("/v1/config/reload", "");
    let status = server.get("/v1/status");
    assert_eq!(status["sources"], Value::Array(Vec::new()));
}

#[test]
fn rows_are_delivered_and_one_that_is_refused_waits_for_a_route() {
    let Some(url) = real_postgres() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let table = format!("outbox_{}", uuid::Uuid::now_v7().simple());
    write(dir, &url, &table, "type != \"odd\"");
    let server = Server::start(dir, &["--config", "wayhold.toml"]);
    let address = server.url();
    let check = || run(dir, &["sources", "check", "erp", "--server", &address]);

    // There is no table yet, which is told and no reason to end.
    wait_until("it is unfit", || source(&server)["state"] == "unfit");
    let told = check();
    assert_eq!(told.status.code(), Some(1), "{}", stdout(&told));
    assert!(
        stdout(&told).contains("there is no table"),
        "{}",
        stdout(&told)
    );
    make(&url, &table);
    let told = check();
    assert_eq!(told.status.code(), Some(0), "{}", stdout(&told));
    // Only advice is left, and the whole answer is something that the database takes (but for ending what other
    // tests do there).
    let told = stdout(&told);
    let own = told
        .lines()
        .filter(|line| !line.contains("pg_terminate_backend"));
    psql(&url, &own.collect::<Vec<_>>().join("\n"));
    for (kind, key, number) in [
        ("created", "a", 1),
        ("odd", "b", 2),
        ("paid", "b", 3),
        ("paid", "a", 4),
    ] {
        insert(&url, &table, kind, key, number);
    }
    wait_until("two are delivered", || delivered(dir).len() == 2);
    wait_until("one is refused", || source(&server)["refused"] == 1);
    assert_eq!(source(&server)["refused_rows"][0]["key"], "b");
    assert_eq!(psql(&url, &format!("SELECT count(*) FROM {table}")), "2");
    let first = &delivered(dir)[0];
    assert_eq!(first["source"], format!("//erp/outbox/{table}/order"));
    assert_eq!(
        (&first["subject"], &first["data"]["n"]),
        (&"a".into(), &1.into())
    );
    assert_eq!(
        (&first["partitionkey"], &first["aggregatetype"]),
        (&"a".into(), &"order".into())
    );

    // A route that wants it, and it goes before what waited for it.
    write(dir, &url, &table, "type != \"\"");
    server.post("/v1/config/reload", "");
    wait_until("all are delivered", || delivered(dir).len() == 4);
    let numbers: Vec<_> = delivered(dir)
        .iter()
        .map(|one| one["data"]["n"].clone())
        .collect();
    assert_eq!(numbers, [1, 4, 2, 3]);
    wait_until("the table is empty", || {
        psql(&url, &format!("SELECT count(*) FROM {table}")) == "0"
    });

    let listed = run(dir, &["sources", "list", "--json", "--server", &address]);
    let listed: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    assert_eq!(listed["items"][0]["accepted"], 4);
    assert!(
        !listed.to_string().contains("wayhold:wayhold@"),
        "no password is told"
    );
    let unknown = run(dir, &["sources", "check", "absent", "--server", &address]);
    assert_eq!(unknown.status.code(), Some(4));

    leave(dir, &server);
    assert!(server.terminate().success());
    psql(&url, &format!("DROP TABLE {table}"));
}
