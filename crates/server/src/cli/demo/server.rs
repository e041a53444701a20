//! The demo's server: this same binary as a process of its own, in a folder of its own, so that it can
//! be killed like any other. Dropping it ends the process.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use tokio::time::Instant;

use super::super::client::{Address, Client, ServerArguments};
use super::super::exit::{Exit, Failure};
use super::super::process::{Process, this_binary};

/// How long the server may take until it accepts: far more than a start needs.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How long a polite stop may take; the server promises 10 s.
const STOPPED_WITHIN: Duration = Duration::from_secs(15);

/// How often is looked whether something has happened yet.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// The server process and its folder.
#[derive(Debug)]
pub struct Server {
    folder: PathBuf,
    address: Address,
    process: Option<Process>,
}

impl Server {
    /// Writes the configuration into the folder, with a free port and a webhook at `receiver`.
    ///
    /// # Errors
    /// When the folder cannot be written or no port can be had.
    pub fn prepare(folder: &Path, receiver: &str) -> std::io::Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let server = Self {
            folder: folder.to_owned(),
            address: Address::Tcp {
                host: "127.0.0.1".to_owned(),
                port,
            },
            process: None,
        };
        std::fs::create_dir_all(folder)?;
        std::fs::write(
            server.config(),
            configuration(&format!("127.0.0.1:{port}"), receiver),
        )?;
        Ok(server)
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.join("wayhold.toml")
    }

    /// The file in which the first destination's events arrive.
    pub fn archive(&self) -> PathBuf {
        self.folder.join("archive.ndjson")
    }

    /// What the server said, over all its runs.
    pub fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// A client of this server.
    ///
    /// # Errors
    /// Never for an address of the demo.
    pub fn client(&self) -> Result<Client, Failure> {
        Client::new(&ServerArguments {
            server: self.address.clone(),
            token_file: None,
        })
    }

    /// The command that goes on with this configuration and data.
    pub fn command_line(&self) -> String {
        let binary = std::env::current_exe().unwrap_or_else(|_| "wayhold".into());
        format!(
            "{} serve --config {}",
            binary.display(),
            self.config().display()
        )
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Starts the process and waits until it accepts events.
    ///
    /// # Errors
    /// When it cannot be started, ends at once, or is not ready in time.
    pub async fn start(&mut self) -> Result<(), Failure> {
        let process = self.spawn().map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot start the server: {error}"))
        })?;
        self.process = Some(process);
        let mut client = self.client()?;
        let begun = Instant::now();
        loop {
            let mut request = Request::new(Full::new(Bytes::new()));
            *request.uri_mut() = Uri::from_static("/readyz");
            if let Ok(answer) = client.request(request).await
                && answer.status().is_success()
            {
                return Ok(());
            }
            if let Some(status) = self.process.as_mut().and_then(Process::ended) {
                return Err(self.trouble(&format!("ended while it started ({status})")));
            }
            if begun.elapsed() > READY_WITHIN {
                return Err(self.trouble("is not ready after 30 s"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// `kill -9`: nothing is flushed, nothing said goodbye to.
    ///
    /// # Errors
    /// When there is no process to kill.
    pub fn kill(&mut self) -> std::io::Result<()> {
        let process = self.process.take();
        process.map_or_else(
            || Err(std::io::Error::other("the server is not running")),
            Process::kill,
        )
    }

    /// Asks the process to stop and waits for it.
    ///
    /// # Errors
    /// When it does not stop in time, or stops with an error.
    pub async fn stop(&mut self) -> Result<(), Failure> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        process.ask_to_stop().map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot stop the server: {error}"))
        })?;
        match process.end_within(STOPPED_WITHIN).await {
            Some(status) if status.success() => {
                self.process = None;
                Ok(())
            }
            Some(status) => Err(self.trouble(&format!("stopped badly ({status})"))),
            None => Err(self.trouble("does not stop within 15 s")),
        }
    }

    fn spawn(&self) -> std::io::Result<Process> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = this_binary()?;
        command
            .arg("serve")
            .arg("--config")
            .arg(self.config())
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Process::start(&mut command)
    }

    /// A failure with the last words of the server's log.
    fn trouble(&self, what: &str) -> Failure {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let last = lines
            .get(lines.len().saturating_sub(10)..)
            .unwrap_or_default();
        Failure::new(
            Exit::Failed,
            format!("the server {what}; its last words:\n{}", last.join("\n")),
        )
    }
}

fn configuration(listen: &str, receiver: &str) -> String {
    format!(
        r#"# Written by `wayhold demo`. Paths are relative to this file; everything not said here is a default,
# which `wayhold config show --config wayhold.toml` names.
data = "data"
listen = ["{listen}"]

# The first destination: one CloudEvent per line.
[destinations.archive]
kind = "file"
path = "archive.ndjson"

# The second: a customer portal. In the demo it fails and is slow; afterwards nobody listens there,
# so events wait for it until somebody does.
[destinations.portal]
kind = "webhook"
url = "{receiver}"
allow_networks = ["127.0.0.0/8"]
timeout = "5s"
on_failure = "block"

# Short waits, so that the demo does not take all day.
[destinations.portal.retry]
base = "200ms"
cap = "2s"

[destinations.portal.breaker]
open = "500ms"
open_max = "2s"

[[routes]]
to = ["archive", "portal"]
"#
    )
}
