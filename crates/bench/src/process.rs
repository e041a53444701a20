//! A server or load as a process of its own, and what the kernel says it cost.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::BenchError;
use crate::load::Report;
use crate::store::kernel::{Memory, cpu, memory, written};
use crate::window::limit::MemoryLimit;

/// Longest time from a server's start until it listens.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time a server takes to stop when asked; then it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// How many milliseconds the allocator of our servers waits before it gives memory back.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";
/// How often the state of a process is looked at.
const POLL: Duration = Duration::from_millis(5);

/// A running server; ends with this value.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    /// When its process was started.
    pub started: Instant,
    /// From then until it listened.
    pub start: Duration,
}

/// How a server is started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// Which one.
    pub kind: &'a str,
    /// Where it keeps its data.
    pub data: &'a Path,
    /// How much memory it may hold.
    pub limit: Option<&'a MemoryLimit>,
    /// Longest time until it listens.
    pub patience: Duration,
    /// Whether its allocator gives back at once what is freed, so that its memory is what it holds and nothing that it
    /// held before.
    pub gives_back: bool,
}

impl<'a> Start<'a> {
    /// Without a limit, and listening soon.
    pub fn new(kind: &'a str, data: &'a Path) -> Self {
        Self {
            kind,
            data,
            limit: None,
            patience: READY_TIMEOUT,
            gives_back: false,
        }
    }

    /// Starts it on a free port and waits until it listens.
    pub fn run(&self, flags: &[String]) -> Result<Server, BenchError> {
        let Self {
            kind,
            data,
            limit,
            patience,
            gives_back,
        } = self;
        let address = free_address()?;
        let started = Instant::now();
        let mut command = match limit {
            Some(limit) => limit.enter(&std::env::current_exe()?),
            None => this_program()?,
        };
        if *gives_back {
            command.env(PURGE_DELAY, "0");
        }
        let child = command
            .args(["serve", kind, "--listen", &address.to_string(), "--data"])
            .arg(data)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let mut server = Server {
            child,
            address,
            started,
            start: Duration::ZERO,
        };
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("{kind} ended before it listened: {status}").into());
            }
            if started.elapsed() > *patience {
                return Err(format!("{kind} did not listen within {patience:?}").into());
            }
            std::thread::sleep(POLL);
        }
        server.start = started.elapsed();
        Ok(server)
    }
}

impl Server {
    /// Starts `serve KIND` of this program on a free port and waits until it listens.
    pub fn start(kind: &str, data: &Path, flags: &[String]) -> Result<Self, BenchError> {
        Start::new(kind, data).run(flags)
    }

    /// User and system time so far.
    pub fn cpu(&self) -> Result<Duration, BenchError> {
        cpu(&self.child.id().to_string())
    }

    /// What it holds in memory.
    pub fn memory(&self) -> Result<Memory, BenchError> {
        memory(&self.child.id().to_string())
    }

    /// Ends it at once, as `kill -9` does.
    pub fn kill(self) {
        drop(self);
    }

    /// Bytes that it caused to be written to disks so far.
    pub fn written(&self) -> Result<u64, BenchError> {
        written(&self.child.id().to_string())
    }

    /// Asks it to stop and waits until it has; tells how long that took.
    pub fn stop(mut self) -> Result<Duration, BenchError> {
        let asked = Instant::now();
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)?;
        }
        while self.child.try_wait()?.is_none() {
            if asked.elapsed() > STOP_TIMEOUT {
                return Err(format!("a server did not stop within {STOP_TIMEOUT:?}").into());
            }
            std::thread::sleep(POLL);
        }
        Ok(asked.elapsed())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Runs `load` against a server, in a process of its own, to its end.
pub fn load(target: SocketAddr, flags: &[String]) -> Result<Report, BenchError> {
    report(load_command(target, flags)?.stdin(Stdio::null()).spawn()?)
}

/// The same, which ends sooner when it need not go on.
pub fn load_while(
    target: SocketAddr,
    flags: &[String],
    mut goes_on: impl FnMut() -> Result<bool, BenchError>,
) -> Result<Report, BenchError> {
    let mut child = load_command(target, flags)?
        .arg("--until-told")
        .stdin(Stdio::piped())
        .spawn()?;
    while child.try_wait()?.is_none() {
        match goes_on() {
            Ok(true) => std::thread::sleep(POLL),
            Ok(false) => break,
            Err(error) => {
                child.kill()?;
                child.wait()?;
                return Err(error);
            }
        }
    }
    // Waiting closes its input, which tells it.
    report(child)
}

fn load_command(target: SocketAddr, flags: &[String]) -> Result<Command, BenchError> {
    let mut command = this_program()?;
    command
        .args(["load", "--target", &target.to_string()])
        .args(flags)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    Ok(command)
}

fn report(load: Child) -> Result<Report, BenchError> {
    let output = load.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("the load ended early: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs a producer to compare with, in a process of its own, to its end.
#[cfg(feature = "kafka")]
pub fn produce(
    bootstrap: &str,
    topic: &str,
    tasks: u64,
    seconds: f64,
) -> Result<crate::course::Report, BenchError> {
    let output = this_program()?
        .args(["produce", "--bootstrap", bootstrap, "--topic", topic])
        .args([format!("--tasks={tasks}"), format!("--seconds={seconds}")])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the producer ended early: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs the bare client of webhooks, in a process of its own, to its end.
pub fn post(url: &str, tasks: u64, seconds: f64) -> Result<crate::course::Report, BenchError> {
    let output = this_program()?
        .args(["post", "--url", url])
        .args([format!("--tasks={tasks}"), format!("--seconds={seconds}")])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the client ended early: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn this_program() -> Result<Command, BenchError> {
    Ok(Command::new(std::env::current_exe()?))
}

/// A loopback address that nothing listens on now.
fn free_address() -> Result<SocketAddr, BenchError> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
