//! The Kafka that a test speaks to, and the independent client that looks at it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Exit code of `scripts/verify/kafka` when its client cannot be had.
const ABSENT: i32 = 77;

/// A running Kafka.
pub(crate) struct Broker {
    /// Host and port.
    pub(crate) servers: String,
    /// Where a broker of the test's own lives; it ends with the test.
    own: Option<tempfile::TempDir>,
    /// The loopback port that it names as its own, where that is another's.
    behind: Option<u16>,
}

/// A record as the independent client found it.
pub(crate) struct Record {
    /// Partition; records of one are in the order of their offsets.
    pub(crate) partition: u64,
    /// The event's id.
    pub(crate) id: String,
    /// SHA-256 of the value, in hexadecimal.
    pub(crate) sha256: String,
}

impl Broker {
    /// The Kafka that all tests share; without one, words about its absence.
    pub(crate) fn shared() -> Option<Self> {
        let Ok(servers) = std::env::var("WAYHOLD_TEST_KAFKA") else {
            skip("WAYHOLD_TEST_KAFKA is not set; scripts/services brings one up");
            return None;
        };
        has_client().then_some(Self {
            servers,
            own: None,
            behind: None,
        })
    }

    /// A Kafka for this test alone, which may be killed. It makes no topic by itself.
    pub(crate) fn own() -> Option<Self> {
        Self::own_at(None)
    }

    /// The same, which tells its clients to come to this loopback port.
    pub(crate) fn own_behind(port: u16) -> Option<Self> {
        Self::own_at(Some(port))
    }

    fn own_at(behind: Option<u16>) -> Option<Self> {
        // The shared one tells that this machine can run one at all.
        Self::shared()?;
        let own = tempfile::tempdir().unwrap();
        let mut broker = Self {
            servers: String::new(),
            own: Some(own),
            behind,
        };
        broker.service(&["up", "kafka"]);
        let lines = broker.service(&["env", "kafka"]);
        broker.servers = lines.trim().rsplit_once('=').unwrap().1.to_owned();
        Some(broker)
    }

    /// Ends it without warning.
    pub(crate) fn kill(&self) {
        self.service(&["kill9", "kafka"]);
    }

    /// Brings it back with its data and port, and waits until it answers.
    pub(crate) fn start(&self) {
        self.service(&["start", "kafka"]);
    }

    /// Makes topics.
    pub(crate) fn create(&self, topics: &[&str]) {
        self.admin("create", topics);
    }

    /// Takes the right to write to topics.
    pub(crate) fn forbid(&self, topics: &[&str]) {
        self.admin("forbid", topics);
    }

    fn admin(&self, verb: &str, topics: &[&str]) {
        let output = client(&[&[verb, &self.servers], topics].concat());
        assert!(output.status.success(), "{verb}: {}", errors(&output));
    }

    /// Holds a topic against the files in `folder`; what the client reports.
    pub(crate) fn check(&self, kind: &str, topic: &str, folder: &Path) -> Value {
        let folder = folder.to_str().unwrap();
        let output = client(&["check", &self.servers, kind, topic, folder]);
        assert!(output.status.success(), "{kind}: {}", errors(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Every record of a topic, in order within each partition.
    pub(crate) fn read(&self, topic: &str) -> Vec<Record> {
        read(&self.servers, topic)
    }

    /// Every record of a topic with all that it holds: partition, key, headers in order, value, timestamp.
    pub(crate) fn show(&self, topic: &str) -> Vec<Value> {
        lines_of(&["show", &self.servers, topic])
    }

    fn service(&self, arguments: &[&str]) -> String {
        let folder = self
            .own
            .as_ref()
            .expect("only a broker of one's own is moved");
        let mut properties = vec![
            "auto.create.topics.enable=false".to_owned(),
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
                .to_owned(),
            "allow.everyone.if.no.acl.found=true".to_owned(),
        ];
        let behind = self.behind.iter();
        properties.extend(
            behind.map(|port| format!("advertised.listeners=PLAINTEXT://127.0.0.1:{port}")),
        );
        let output = Command::new(script("services"))
            .args(arguments)
            .env("WAYHOLD_SERVICES_DIR", folder.path())
            .env("WAYHOLD_KAFKA_PROPERTIES", properties.join("\n"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            errors(&output)
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.own.is_some() {
            self.service(&["down", "kafka"]);
        }
    }
}

/// Every record of a topic of this cluster, in order within each partition.
pub(super) fn read(servers: &str, topic: &str) -> Vec<Record> {
    let records = lines_of(&["read", servers, topic]);
    records
        .iter()
        .map(|record| {
            let text = |name: &str| record[name].as_str().unwrap().to_owned();
            Record {
                partition: record["partition"].as_u64().unwrap(),
                id: text("id"),
                sha256: text("sha256"),
            }
        })
        .collect()
}

/// What the independent client prints, each line as JSON.
pub(super) fn lines_of(arguments: &[&str]) -> Vec<Value> {
    let output = client(arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        errors(&output)
    );
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

/// Runs one of Kafka's own tools (`scripts/verify/kafka-tools`) on this input.
pub(super) fn tool(arguments: &[&str], input: &str) {
    let mut child = Command::new("timeout")
        .arg("120")
        .arg(script("verify/kafka-tools"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        errors(&output)
    );
}

fn has_client() -> bool {
    let output = client(&["available"]);
    if output.status.code() == Some(ABSENT) {
        skip(&format!(
            "no independent client: {}",
            errors(&output).trim()
        ));
        return false;
    }
    assert!(output.status.success(), "{}", errors(&output));
    true
}

/// Runs the independent client (`scripts/verify/kafka`).
pub(super) fn client(arguments: &[&str]) -> Output {
    // A client that waits for what never comes must not hold up the run.
    Command::new("timeout")
        .arg("120")
        .arg(script("verify/kafka"))
        .args(arguments)
        .output()
        .unwrap()
}

/// The path of a script.
pub(super) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../scripts")
        .join(name)
}

/// What a command wrote to standard error.
pub(super) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn skip(why: &str) {
    println!("skipped: Kafka end to end because {why}");
    assert_ne!(
        std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").as_deref(),
        Ok("1"),
        "{why}"
    );
}
