//! The Kafka broker of a run: the one that is named, or one of its own for as long as it measures.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::args::tell;
use crate::BenchError;

/// Names the address of a running Kafka.
const NAMED: &str = "WAYHOLD_TEST_KAFKA";
/// Where `scripts/services` keeps its set.
const FOLDER: &str = "WAYHOLD_SERVICES_DIR";
/// Asks for a failure where something would be skipped.
const REQUIRE_ALL: &str = "WAYHOLD_TESTS_REQUIRE_ALL";

/// A running broker; one of our own ends with this value.
pub struct Broker {
    /// Where it listens.
    pub bootstrap: String,
    own: Option<PathBuf>,
}

impl Broker {
    /// The one that is named, else one of our own in `folder` where `may_start` or all is required.
    /// Without either says why and gives `None`.
    ///
    /// # Errors
    /// When there is none, and all is required.
    pub fn find(folder: &Path, may_start: bool) -> Result<Option<Self>, BenchError> {
        if let Ok(bootstrap) = std::env::var(NAMED) {
            return Ok(Some(Self {
                bootstrap,
                own: None,
            }));
        }
        let is_required = std::env::var(REQUIRE_ALL).is_ok_and(|value| value == "1");
        if !may_start && !is_required {
            skip(&format!("{NAMED} is not set"));
            return Ok(None);
        }
        match Self::start(folder) {
            Ok(broker) => Ok(Some(broker)),
            Err(error) if is_required => Err(error),
            Err(error) => {
                skip(&error.to_string());
                Ok(None)
            }
        }
    }

    fn start(folder: &Path) -> Result<Self, BenchError> {
        let mut broker = Self {
            bootstrap: String::new(),
            own: Some(folder.join("services")),
        };
        broker.service("up")?;
        let lines = broker.service("env")?;
        let (_, bootstrap) = lines
            .trim()
            .rsplit_once('=')
            .ok_or("scripts/services names no address")?;
        bootstrap.clone_into(&mut broker.bootstrap);
        Ok(broker)
    }

    fn service(&self, verb: &str) -> Result<String, BenchError> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
        let mut command = Command::new(script);
        command.args([verb, "kafka"]);
        if let Some(own) = &self.own {
            command.env(FOLDER, own);
        }
        let output = command.output()?;
        if !output.status.success() {
            return Err(format!("scripts/services {verb} kafka: {}", last_line(&output)).into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.own.is_some()
            && let Err(error) = self.service("down")
        {
            tell(&format!("the broker may still run: {error}"));
        }
    }
}

fn last_line(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    errors.lines().last().unwrap_or("no word").to_owned()
}

fn skip(why: &str) {
    tell(&format!("skipped: kafka.* and end_to_end.* because {why}"));
}
