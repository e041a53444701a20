//! A real server of a run, such as a broker or a database: the one that is named, or one of its own for as long as it
//! measures.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::args::tell;
use crate::BenchError;

/// Where `scripts/services` keeps its set.
const FOLDER: &str = "WAYHOLD_SERVICES_DIR";
/// Asks for a failure where something would be skipped.
const REQUIRE_ALL: &str = "WAYHOLD_TESTS_REQUIRE_ALL";

/// Ends the service once its input is at an end: also when this process is killed.
const DOWN_AT_THE_END: &str = "read _; exec \"$0\" down \"$1\"";

/// Which service.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// As `scripts/services` calls it.
    pub name: &'static str,
    /// What names a running one.
    pub variable: &'static str,
    /// What is not measured without it.
    pub figures: &'static str,
}

/// A running service; one of our own ends with this value, or with this process.
pub struct Service {
    /// How it is reached.
    pub address: String,
    _own: Option<Own>,
}

impl Service {
    /// The one that is named, else one of our own in `folder` where `may_start` or all is required.
    /// Without either says why and gives `None`.
    ///
    /// # Errors
    /// When there is none, and all is required.
    pub fn find(kind: Kind, folder: &Path, may_start: bool) -> Result<Option<Self>, BenchError> {
        if let Ok(address) = std::env::var(kind.variable) {
            return Ok(Some(Self {
                address,
                _own: None,
            }));
        }
        let is_required = std::env::var(REQUIRE_ALL).is_ok_and(|value| value == "1");
        if !may_start && !is_required {
            skip(kind, &format!("{} is not set", kind.variable));
            return Ok(None);
        }
        match Self::start(kind, folder) {
            Ok(service) => Ok(Some(service)),
            Err(error) if is_required => Err(error),
            Err(error) => {
                skip(kind, &error.to_string());
                Ok(None)
            }
        }
    }

    fn start(kind: Kind, folder: &Path) -> Result<Self, BenchError> {
        let own = Own::new(kind, folder.join("services"))?;
        own.service("up")?;
        let lines = own.service("env")?;
        let (_, address) = lines
            .trim()
            .split_once('=')
            .ok_or("scripts/services names no address")?;
        Ok(Self {
            address: address.to_owned(),
            _own: Some(own),
        })
    }
}

/// A service of our own, and who ends it.
struct Own {
    kind: Kind,
    folder: PathBuf,
    ender: Child,
}

impl Own {
    fn new(kind: Kind, folder: PathBuf) -> Result<Self, BenchError> {
        let ender = Command::new("sh")
            .args(["-c", DOWN_AT_THE_END])
            .arg(script())
            .arg(kind.name)
            .env(FOLDER, &folder)
            .stdin(Stdio::piped())
            // What ends this process at the terminal must not end that one.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            kind,
            folder,
            ender,
        })
    }

    fn service(&self, verb: &str) -> Result<String, BenchError> {
        let output = Command::new(script())
            .args([verb, self.kind.name])
            .env(FOLDER, &self.folder)
            .output()?;
        if !output.status.success() {
            let (name, why) = (self.kind.name, last_line(&output));
            return Err(format!("scripts/services {verb} {name}: {why}").into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.ender.stdin.take());
        match self.ender.wait() {
            Ok(status) if status.success() => {}
            ended => tell(&format!("{} may still run: {ended:?}", self.kind.name)),
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

fn skip(kind: Kind, why: &str) {
    tell(&format!("skipped: {} because {why}", kind.figures));
}
