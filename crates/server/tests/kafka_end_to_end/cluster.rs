//! Three brokers that a test kills and brings back one by one. Each is a controller, too, so that two of them go on
//! without the third.

use std::process::{Child, Command, Stdio};

use serde::Deserialize;

use super::broker::{Broker, client, errors, lines_of, script};
use super::load::Random;
use super::outage::free_port;

/// Brokers, numbered from 1.
const BROKERS: u32 = 3;

/// A broker that says nothing for four seconds is gone; none makes a topic by itself.
const PROPERTIES: &str = "broker.session.timeout.ms=4000\n\
                          broker.heartbeat.interval.ms=500\n\
                          auto.create.topics.enable=false\n\
                          default.replication.factor=3";

/// The cluster; it ends with the test.
pub(crate) struct Cluster {
    /// What the services of broker N write lies in its folder N.
    folder: tempfile::TempDir,
    /// Ports of clients and of controllers, by broker.
    ports: Vec<(u16, u16)>,
}

/// One partition of a topic.
#[derive(Deserialize)]
pub(crate) struct Partition {
    /// The broker that leads it; below 1 where none does.
    pub(crate) leader: i64,
    /// Its replicas that have everything.
    pub(crate) in_sync: Vec<i64>,
}

impl Cluster {
    /// Starts it; without a Kafka on this machine, words about its absence.
    pub(crate) fn start() -> Option<Self> {
        // The shared one tells that this machine can run one at all.
        Broker::shared()?;
        let mut random = Random(u64::from(std::process::id()));
        let mut port = || free_port(random.next());
        let cluster = Self {
            folder: tempfile::tempdir().unwrap(),
            ports: (0..BROKERS).map(|_| (port(), port())).collect(),
        };
        // None is well before a second is there.
        let starting = (1..=BROKERS).map(|broker| cluster.service(broker, "up"));
        for one in starting.collect::<Vec<_>>() {
            wait_for(one);
        }
        Some(cluster)
    }

    /// All brokers, to begin with.
    pub(crate) fn servers(&self) -> String {
        let servers = self
            .ports
            .iter()
            .map(|(port, _)| format!("127.0.0.1:{port}"));
        servers.collect::<Vec<_>>().join(",")
    }

    /// Ends a broker without warning.
    pub(crate) fn kill(&self, broker: u32) {
        wait_for(self.service(broker, "kill9"));
    }

    /// Brings it back with its data and ports, and waits until it answers.
    pub(crate) fn bring_back(&self, broker: u32) {
        wait_for(self.service(broker, "start"));
    }

    /// Makes a topic.
    pub(crate) fn make(&self, topic: &str, partitions: &str, settings: &[&str]) {
        lines_of(&[&["make", &self.servers(), topic, partitions], settings].concat());
    }

    /// Hands the lead of every partition to its next replica.
    pub(crate) fn hand_over(&self, topic: &str) {
        lines_of(&["lead", &self.servers(), topic]);
    }

    /// Whether this is so of each partition of a topic; not where nobody can tell, as when the broker that is asked has
    /// just gone.
    pub(crate) fn all_partitions(&self, topic: &str, is: impl Fn(&Partition) -> bool) -> bool {
        let output = client(&["leaders", &self.servers(), topic]);
        let lines = String::from_utf8(output.stdout).unwrap();
        let partitions: Vec<Partition> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        output.status.success() && !partitions.is_empty() && partitions.iter().all(is)
    }

    fn service(&self, broker: u32, verb: &str) -> Child {
        let ports = self.ports.iter();
        let ports: Vec<_> = ports
            .map(|(own, control)| format!("{own}:{control}"))
            .collect();
        Command::new(script("services"))
            .args([verb, "kafka"])
            .env(
                "WAYHOLD_SERVICES_DIR",
                self.folder.path().join(broker.to_string()),
            )
            .env("WAYHOLD_KAFKA_NODE", broker.to_string())
            .env(
                "WAYHOLD_KAFKA_CLUSTER",
                format!("WayholdTestClusterXXXA {}", ports.join(" ")),
            )
            .env("WAYHOLD_KAFKA_PROPERTIES", PROPERTIES)
            .env("WAYHOLD_KAFKA_HEAP", "256m")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let ending = (1..=BROKERS).map(|broker| self.service(broker, "down"));
        for one in ending.collect::<Vec<_>>() {
            wait_for(one);
        }
    }
}

fn wait_for(service: Child) {
    let output = service.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}
