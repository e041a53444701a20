//! A server to measure: this same binary as a process of its own, with the settings that everybody gets,
//! on a free port, in a folder of its own. Its destinations take everything at once and do nothing with it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use serde_json::Value;

use super::super::client::{Address, Client, ServerArguments, path};
use super::super::exit::{Exit, Failure};
use super::super::output::items;
use super::super::process::{Process, this_binary};
use super::folder::bytes_below;
use super::machine::{self, Resident};
use crate::blocking::blocking;

/// How long a start may take: far more than one needs.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// A running server; ends with this value.
#[derive(Debug)]
pub struct Server {
    process: Process,
    folder: PathBuf,
    address: SocketAddr,
    client: Client,
}

/// What a server counted of its commits so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Commits {
    /// Commits.
    pub commits: f64,
    /// Events in them.
    pub events: f64,
    /// Seconds that writing and syncing them took.
    pub seconds: f64,
}

impl Server {
    /// Starts one in `folder`, which is made, with so many destinations that all get every event.
    ///
    /// # Errors
    /// When it cannot be started, or does not become ready.
    pub async fn start(folder: &Path, lanes: usize, store: &str) -> Result<Self, Failure> {
        let log = folder.join("log");
        let failed = |what: &dyn std::fmt::Display| {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let last = log.lines().last().unwrap_or_default();
            Failure::new(Exit::Failed, format!("the measured server {what}\n{last}"))
        };
        let cannot = |error: std::io::Error| failed(&format!("cannot be started: {error}"));
        let mut process = spawn(folder, &configuration(lanes, store)).map_err(cannot)?;
        let (stdout, _) = process.take_streams();
        let first_line = blocking(move || {
            let mut line = String::new();
            let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
            read.transpose().map(|_| line)
        });
        // Given up on, the process is killed here, which ends the reading too.
        let announced = tokio::time::timeout(READY_WITHIN, first_line)
            .await
            .map_err(|_| failed(&"is not ready after 30 s"))?
            .map_err(|error| failed(&error))?
            .map_err(|error| failed(&error))?;
        let address = listening(&announced).ok_or_else(|| failed(&"did not start"))?;
        let client = Client::new(&ServerArguments {
            server: Address::Tcp {
                host: address.ip().to_string(),
                port: address.port(),
            },
            token_file: None,
        })?;
        Ok(Self {
            process,
            folder: folder.to_owned(),
            address,
            client,
        })
    }

    /// Where it takes events.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delivers nothing until `resume`.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn pause(&mut self) -> Result<(), Failure> {
        let pause = path(["v1", "destinations", &name(0), "pause"]);
        self.client.post(&pause, None).await.map(drop)
    }

    /// Delivers again.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn resume(&mut self) -> Result<(), Failure> {
        let resume = path(["v1", "destinations", &name(0), "resume"]);
        self.client.post(&resume, None).await.map(drop)
    }

    /// Deliveries that are not resolved, to all destinations.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn pending(&mut self) -> Result<u64, Failure> {
        let list = self.client.get("/v1/destinations").await?;
        let pending = |one: &Value| one.get("pending").and_then(Value::as_u64);
        Ok(items(&list).iter().filter_map(pending).sum())
    }

    /// What it counted of its commits.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn commits(&mut self) -> Result<Commits, Failure> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = Uri::from_static("/metrics");
        let answer = self.client.request(request).await?;
        let page = String::from_utf8_lossy(answer.body());
        Ok(Commits {
            commits: sample(&page, "wayhold_group_events_count"),
            events: sample(&page, "wayhold_group_events_sum"),
            seconds: sample(&page, "wayhold_sync_duration_seconds_sum"),
        })
    }

    /// User and system time so far.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu(&self) -> Result<Duration, Failure> {
        machine::cpu(&self.process.id().to_string()).map_err(|error| gone(&error))
    }

    /// Resident memory.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resident(&self) -> Result<Resident, Failure> {
        machine::resident(self.process.id()).map_err(|error| gone(&error))
    }

    /// Bytes of its data directory now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn bytes_on_disk(&self) -> Result<u64, Failure> {
        bytes_below(&self.folder.join("data")).map_err(|error| gone(&error))
    }

    /// Ends it and removes its folder: what it holds is of no use to anybody.
    ///
    /// # Errors
    /// When something stays.
    pub fn end(self) -> Result<(), Failure> {
        let ended = self.process.kill();
        ended
            .and_then(|()| std::fs::remove_dir_all(&self.folder))
            .map_err(|error| gone(&error))
    }
}

fn gone(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("the measured server: {error}"))
}

fn spawn(folder: &Path, configuration: &str) -> std::io::Result<Process> {
    std::fs::create_dir(folder)?;
    std::fs::write(folder.join("wayhold.toml"), configuration)?;
    let log = std::fs::File::create(folder.join("log"))?;
    let mut command = this_binary()?;
    command
        .args(["serve", "--json", "--config", "wayhold.toml"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    Process::start(&mut command)
}

fn name(lane: usize) -> String {
    format!("null-{lane}")
}

fn configuration(lanes: usize, store: &str) -> String {
    let names: Vec<_> = (0..lanes).map(name).collect();
    let destinations: String = names
        .iter()
        .map(|name| format!("[destinations.{name}]\nkind = \"null\"\n"))
        .collect();
    format!(
        "data = \"data\"\nlisten = [\"127.0.0.1:0\"]\n[log]\nlevel = \"warn\"\n[store]\n{store}\n\
         {destinations}[[routes]]\nto = {names:?}\n"
    )
}

/// The address in what `serve --json` says when it is ready.
fn listening(announced: &str) -> Option<SocketAddr> {
    let places: Value = serde_json::from_str(announced).ok()?;
    let url = places.get("api")?.get(0)?.as_str()?;
    url.strip_prefix("http://")?.parse().ok()
}

/// The value of a sample without labels; zero where there is none.
fn sample(page: &str, name: &str) -> f64 {
    page.lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .find_map(|value| value.trim().parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_configured_as_said_and_found_where_it_listens() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), configuration(3, "window_ids = 1000")).unwrap();
        let none = crate::config::Environment::default();
        let loaded = crate::config::load(Some(file.path()), &Default::default(), &none).unwrap();
        assert_eq!(loaded.config.destinations.len(), 3);
        assert_eq!(loaded.config.routes[0].to.len(), 3);
        assert_eq!(loaded.config.store.window_ids, 1_000);
        let ready = r#"{"version":"0","api":["http://127.0.0.1:4711"],"metrics":"x","data":"y"}"#;
        assert_eq!(listening(ready), Some(([127, 0, 0, 1], 4711).into()));
        assert_eq!(listening(""), None);
    }

    #[test]
    fn samples_are_found_by_the_whole_of_their_name() {
        let page = "# HELP a\nwayhold_a_sum 1.5\nwayhold_a_count 3\nwayhold_a_count_x 4\n";
        assert_eq!(sample(page, "wayhold_a_count"), 3.0);
        assert_eq!(sample(page, "wayhold_a_sum"), 1.5);
        assert_eq!(sample(page, "wayhold_a"), 0.0);
    }
}
