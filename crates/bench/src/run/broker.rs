//! The Kafka broker of a run: the one that is named, or one of its own for as long as it measures.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::args::tell;
use crate::BenchError;

/// Names the address of a running Kafka.
const NAMED: &str = "WAYHOLD_TEST_KAFKA";
/// Where `scripts/services` keeps its set.
const FOLDER: &str = "WAYHOLD_SERVICES_DIR";
/// Asks for a failure where something would be skipped.
const REQUIRE_ALL: &str = "WAYHOLD_TESTS_REQUIRE_ALL";

/// Ends the broker once its input is at an end: also when this process is killed.
const DOWN_AT_THE_END: &str = "read _; exec \"$0\" down kafka";

/// A running broker; one of our own ends with this value, or with this process.
pub struct Broker {
    /// Where it listens.
    pub bootstrap: String,
    _own: Option<Own>,
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
                _own: None,
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
        let own = Own::new(folder.join("services"))?;
        own.service("up")?;
        let lines = own.service("env")?;
        let (_, bootstrap) = lines
            .trim()
            .rsplit_once('=')
            .ok_or("scripts/services names no address")?;
        Ok(Self {
            bootstrap: bootstrap.to_owned(),
            _own: Some(own),
        })
    }
}

/// A broker of our own, and who ends it.
struct Own {
    folder: PathBuf,
    ender: Child,
}

impl Own {
    fn new(folder: PathBuf) -> Result<Self, BenchError> {
        let ender = Command::new("sh")
            .args(["-c", DOWN_AT_THE_END])
            .arg(script())
            .env(FOLDER, &folder)
            .stdin(Stdio::piped())
            // What ends this process at the terminal must not end that one.
            .process_group(0)
            .spawn()?;
        Ok(Self { folder, ender })
    }

    fn service(&self, verb: &str) -> Result<String, BenchError> {
        let output = Command::new(script())
            .args([verb, "kafka"])
            .env(FOLDER, &self.folder)
            .output()?;
        if !output.status.success() {
            return Err(format!("scripts/services {verb} kafka: {}", last_line(&output)).into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.ender.stdin.take());
        match self.ender.wait() {
            Ok(status) if status.success() => {}
            ended => tell(&format!("the broker may still run: {ended:?}")),
        }
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services")
}

fn last_line(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    errors.lines().last().unwrap_or("no word").to_owned()
}

fn skip(why: &str) {
    tell(&format!("skipped: kafka.* and end_to_end.* because {why}"));
}
