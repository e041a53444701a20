//! The server: this same binary as a process of its own, in a folder of its own, so that it can be killed
//! like any other. Dropping it ends the process.

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
    /// A server in this folder, which is made where it is absent, that is to listen on a free port. It is
    /// to be configured before it starts.
    ///
    /// # Errors
    /// When the folder cannot be made or no port can be had.
    pub fn prepare(folder: &Path) -> std::io::Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        std::fs::create_dir_all(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            address: Address::Tcp {
                host: "127.0.0.1".to_owned(),
                port,
            },
            process: None,
        })
    }

    /// Writes its configuration, which counts from the next start on.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn configure(&self, configuration: &str) -> std::io::Result<()> {
        std::fs::write(self.config(), configuration)
    }

    /// The address to listen on, as a configuration names it.
    pub fn listen(&self) -> String {
        let url = self.address.to_string();
        url.trim_start_matches("http://").to_owned()
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.join("wayhold.toml")
    }

    /// Its data directory, where the configuration says `data = "data"`.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// What the server said, over all its runs.
    pub fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// A client of this server.
    ///
    /// # Errors
    /// Never for an address that was made here.
    pub fn client(&self) -> Result<Client, Failure> {
        Client::new(&ServerArguments {
            server: self.address.clone(),
            token_file: None,
        })
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
        self.start_until("/readyz").await
    }

    /// Starts the process and waits until it answers, whether or not it accepts events.
    ///
    /// # Errors
    /// When it cannot be started, ends at once, or does not answer in time.
    pub async fn start_refusing(&mut self) -> Result<(), Failure> {
        self.start_until("/livez").await
    }

    async fn start_until(&mut self, page: &'static str) -> Result<(), Failure> {
        let process = self.spawn().map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot start the server: {error}"))
        })?;
        self.process = Some(process);
        let mut client = self.client()?;
        let begun = Instant::now();
        loop {
            let mut request = Request::new(Full::new(Bytes::new()));
            *request.uri_mut() = Uri::from_static(page);
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
