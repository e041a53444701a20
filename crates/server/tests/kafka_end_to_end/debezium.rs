//! Outbox tables as the documentation of Debezium's outbox event router has them, with its options by its names: topics,
//! keys, values and headers are those that the router makes, as an independent client finds them. Tables are filled by
//! PostgreSQL's own client.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::broker::Broker;
use super::support::server::Server;
use super::support::wait_until;

/// The table of the router's documentation.
const BASIC: &str = "id uuid NOT NULL, aggregatetype varchar(255) NOT NULL, \
                     aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb";

/// The payload of its example.
const ORDER: &str = r#"{"id": 1, "lineItems": [{"id": 1, "item": "Debezium in Action", "status": "ENTERED", "quantity": 2, "totalPrice": 39.98}, {"id": 2, "item": "Debezium for Dummies", "status": "ENTERED", "quantity": 1, "totalPrice": 29.99}], "orderDate": "2019-01-31T12:13:01", "customerId": 123}"#;

/// The id of its example.
const ID: &str = "406c07f3-26f0-4eea-a50c-109940064b8f";

/// A table, how it is read, and what the router makes of its one row.
struct Case {
    /// Names source, destination and table.
    name: &'static str,
    columns: &'static str,
    /// Values of the row, in the order of the columns; `$TYPE` is the aggregate's type.
    row: &'static str,
    /// The router's options.
    options: &'static str,
    /// The destination's `topic`, and its headers beside those of CloudEvents.
    topic: &'static str,
    headers: &'static str,
    /// The router's topic.
    lands_in: &'static str,
    value: Expected,
    /// The router's headers.
    router_headers: &'static [(&'static str, &'static str)],
    /// Milliseconds of the record, where a column holds them.
    timestamp: Option<i64>,
    /// The record's partition, where a column says so.
    partition: Option<i64>,
}

/// A record's value.
enum Expected {
    /// These bytes, as PostgreSQL shows this JSON.
    Jsonb(&'static str),
    /// These bytes.
    Text(&'static str),
    /// This JSON, however it is written.
    Json(&'static str),
    /// None.
    Null,
}

const CASES: &[Case] = &[
    Case {
        name: "basic",
        columns: BASIC,
        row: "'$ID', '$TYPE', '1', 'OrderCreated', '$ORDER'",
        options: "",
        topic: "outbox.event.{aggregatetype}",
        headers: r#"id = "{id}""#,
        lands_in: "outbox.event.$TYPE",
        value: Expected::Jsonb(ORDER),
        router_headers: &[("id", ID)],
        timestamp: None,
        partition: None,
    },
    Case {
        name: "renamed",
        columns: "event_id uuid, kind varchar(255), about varchar(255), happened varchar(255), body text, at bigint",
        row: "'$ID', '$TYPE', '1', 'OrderCreated', '{\"id\": 1}', 1556890294344",
        options: r#"
            "table.field.event.id" = "event_id"
            "table.field.event.key" = "about"
            "table.field.event.type" = "happened"
            "table.field.event.payload" = "body"
            "table.field.event.timestamp" = "at"
            "route.by.field" = "kind""#,
        topic: "outbox.event.{aggregatetype}",
        headers: r#"id = "{id}""#,
        lands_in: "outbox.event.$TYPE",
        value: Expected::Text(r#"{"id": 1}"#),
        router_headers: &[("id", ID)],
        timestamp: Some(1_556_890_294_344),
        partition: None,
    },
    // As documented: a header `type` with what the column holds.
    Case {
        name: "placed",
        columns: "id uuid, aggregatetype varchar(255), aggregateid varchar(255), type varchar(255), \
                  payload jsonb, \"eventType\" varchar(255), tenant varchar(255)",
        row: "'$ID', '$TYPE', '1', 'OrderCreated', '{\"id\": 1}', 'order-created', 'acme'",
        options: r#""table.fields.additional.placement" = "eventType:header:type,tenant:header""#,
        topic: "outbox.event.{aggregatetype}",
        headers: r#"id = "{id}", type = "{type}", tenant = "{tenant}""#,
        lands_in: "outbox.event.$TYPE",
        value: Expected::Jsonb(r#"{"id": 1}"#),
        router_headers: &[("id", ID), ("type", "order-created"), ("tenant", "acme")],
        timestamp: None,
        partition: None,
    },
    // As documented: the payload beside the column, in one object.
    Case {
        name: "enveloped",
        columns: "id uuid, aggregatetype varchar(255), aggregateid varchar(255), type varchar(255), \
                  payload jsonb, \"eventType\" varchar(255)",
        row: "'$ID', '$TYPE', '1', 'OrderCreated', '{\"id\": 1}', 'order-created'",
        options: r#"
            "table.fields.additional.placement" = "eventType:envelope:type"
            "table.expand.json.payload" = true"#,
        topic: "outbox.event.{aggregatetype}",
        headers: r#"id = "{id}""#,
        lands_in: "outbox.event.$TYPE",
        value: Expected::Json(r#"{"payload": {"id": 1}, "type": "order-created"}"#),
        router_headers: &[("id", ID)],
        timestamp: None,
        partition: None,
    },
    Case {
        name: "gone",
        columns: BASIC,
        row: "'$ID', '$TYPE', '1', 'OrderDeleted', NULL",
        options: r#""route.tombstone.on.empty.payload" = true"#,
        topic: "outbox.event.{aggregatetype}",
        headers: r#"id = "{id}""#,
        lands_in: "outbox.event.$TYPE",
        value: Expected::Null,
        router_headers: &[("id", ID)],
        timestamp: None,
        partition: None,
    },
    Case {
        name: "replaced",
        columns: BASIC,
        row: "'$ID', '$TYPE', '1', 'OrderCreated', '{\"id\": 1}'",
        options: r#"
            "route.topic.regex" = "(?<routedByValue>.*)"
            "route.topic.replacement" = "events.${routedByValue}.v1""#,
        topic: "{topic}",
        headers: r#"id = "{id}""#,
        lands_in: "events.$TYPE.v1",
        value: Expected::Jsonb(r#"{"id": 1}"#),
        router_headers: &[("id", ID)],
        timestamp: None,
        partition: None,
    },
    // As documented: the column chooses the partition, and is no part of the value.
    Case {
        name: "partitioned",
        columns: "id uuid, aggregatetype varchar(255), aggregateid varchar(255), type varchar(255), \
                  payload jsonb, shard int",
        row: "'$ID', '$TYPE', '1', 'OrderCreated', '{\"id\": 1}', 2",
        options: r#""table.fields.additional.placement" = "shard:partition""#,
        topic: "outbox.event.{aggregatetype}",
        headers: r#"id = "{id}""#,
        lands_in: "outbox.event.$TYPE",
        value: Expected::Jsonb(r#"{"id": 1}"#),
        router_headers: &[("id", ID)],
        timestamp: None,
        partition: Some(2),
    },
];

impl Case {
    /// Topics are shared by all runs on a broker, so the type of an aggregate says whose it is.
    fn kind(&self) -> String {
        format!("{}-order-{}", self.name, std::process::id())
    }

    fn filled(&self, text: &str) -> String {
        text.replace("$TYPE", &self.kind())
            .replace("$ORDER", ORDER)
            .replace("$ID", ID)
    }

    fn sql(&self) -> String {
        let (name, columns, row) = (self.name, self.columns, self.filled(self.row));
        format!("CREATE TABLE {name} ({columns}); INSERT INTO {name} VALUES ({row});")
    }

    fn config(&self, broker: &Broker) -> String {
        let Self {
            name,
            options,
            topic,
            headers,
            ..
        } = self;
        let servers = &broker.servers;
        format!(
            "[sources.{name}]\n\
             kind = \"outbox_table\"\n\
             url = {{ file = \"database-url\" }}\n\
             table = \"{name}\"\n\
             {options}\n\
             [destinations.{name}]\n\
             kind = \"kafka\"\n\
             bootstrap_servers = \"{servers}\"\n\
             topic = \"{topic}\"\n\
             partition = \"{{partition}}\"\n\
             headers = {{ {headers} }}\n\
             [[routes]]\n\
             when = 'source.startsWith(\"//{name}/\")'\n\
             to = [\"{name}\"]\n"
        )
    }

    /// What of the records is not as the router would have it.
    fn check(&self, records: &[Value], database: &Database) {
        let name = self.name;
        let [record] = records else {
            panic!("{name}: one record for one row: {records:?}");
        };
        assert_eq!(record["key"], "1", "{name}: {record}");
        let value = &record["value"];
        match self.value {
            Expected::Null => assert_eq!(*value, Value::Null, "{name}: {record}"),
            Expected::Text(text) => assert_eq!(value, text, "{name}: {record}"),
            Expected::Jsonb(json) => {
                let shown = database.ask(&format!("SELECT '{json}'::jsonb;"));
                assert_eq!(value, shown.trim_end(), "{name}: {record}");
            }
            Expected::Json(json) => {
                let found: Value = serde_json::from_str(value.as_str().unwrap()).unwrap();
                let expected: Value = serde_json::from_str(json).unwrap();
                assert_eq!(found, expected, "{name}: {record}");
            }
        }
        if let Some(timestamp) = self.timestamp {
            assert_eq!(record["timestamp"], timestamp, "{name}: {record}");
        }
        if let Some(partition) = self.partition {
            assert_eq!(record["partition"], partition, "{name}: {record}");
        }
        let pairs = record["headers"].as_array().unwrap();
        let headers: BTreeMap<&str, &str> = pairs
            .iter()
            .map(|pair| (pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
            .collect();
        assert_eq!(
            headers.len(),
            pairs.len(),
            "{name}: a header occurs twice: {record}"
        );
        for (header, value) in self.router_headers {
            assert_eq!(
                headers.get(header),
                Some(value),
                "{name}: {header}: {record}"
            );
        }
        let kind = self.kind();
        let source = format!("//{name}/outbox/{name}/{kind}");
        for (header, value) in [
            ("ce_id", ID),
            ("ce_source", &source),
            ("ce_aggregatetype", &kind),
            ("ce_subject", "1"),
        ] {
            assert_eq!(
                headers.get(header),
                Some(&value),
                "{name}: {header}: {record}"
            );
        }
    }
}

#[test]
fn debeziums_documented_tables_and_options_give_its_topics_keys_values_and_headers() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let Some(database) = Database::make() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let topics: Vec<String> = CASES
        .iter()
        .map(|case| case.filled(case.lands_in))
        .collect();
    broker.create(&topics.iter().map(String::as_str).collect::<Vec<_>>());
    let mut config = "data = \"data\"\n".to_owned();
    for case in CASES {
        database.ask(&case.sql());
        config.push_str(&case.config(&broker));
    }
    std::fs::write(folder.path().join("wayhold.toml"), config).unwrap();
    keep_secret(&folder.path().join("database-url"), &database.url);
    let server = Server::start(folder.path(), &["--config", "wayhold.toml"]);
    for case in CASES {
        let count = format!("SELECT count(*) FROM {};", case.name);
        wait_until(case.name, || database.ask(&count).trim() == "0");
        wait_until(case.name, || is_delivered(&server, case.name));
    }
    for (case, topic) in CASES.iter().zip(&topics) {
        case.check(&broker.show(topic), &database);
    }
    assert!(server.terminate().success());
}

/// Whether the one event of a destination arrived.
fn is_delivered(server: &Server, name: &str) -> bool {
    let status = server.get("/v1/status");
    let destinations = status["destinations"].as_array().unwrap();
    let mut named = destinations.iter().filter(|one| one["name"] == name);
    named.next().unwrap()["accounting"]["delivered"] == 1
}

fn keep_secret(file: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(file, text).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A database of this test's own.
struct Database {
    /// Where databases are made.
    server: String,
    name: String,
    url: String,
}

impl Database {
    /// Without a server, words about its absence.
    fn make() -> Option<Self> {
        let Ok(server) = std::env::var("WAYHOLD_TEST_POSTGRES") else {
            let why = "WAYHOLD_TEST_POSTGRES is not set; scripts/services brings one up";
            println!("skipped: Debezium's outbox tables because {why}");
            let all = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL");
            assert_ne!(all.as_deref(), Ok("1"), "{why}");
            return None;
        };
        let name = format!("debezium_{}", std::process::id());
        psql(&server, &format!("CREATE DATABASE {name};"));
        let (host, _) = server.rsplit_once('/').unwrap();
        let url = format!("{host}/{name}");
        Some(Self { server, name, url })
    }

    /// What its own client prints.
    fn ask(&self, sql: &str) -> String {
        psql(&self.url, sql)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        psql(
            &self.server,
            &format!("DROP DATABASE {} WITH (FORCE);", self.name),
        );
    }
}

fn psql(url: &str, sql: &str) -> String {
    let output = Command::new("psql")
        .args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            sql,
            url,
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{sql}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
