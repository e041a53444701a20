//! The server as a process of its own: started, asked, killed, stopped. Its port stays the same over
//! restarts, as its clients expect.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use super::client::Client;
use super::ending::broken;
use super::history::{BODY_CANARY, Event};

/// How long a start, a drain or a stop may take before the test gives up: far more than they need.
const PATIENCE: Duration = Duration::from_secs(60);

/// The same with a planted fault that may prevent it: more than a server without one needs, which the harnesses
/// show before they hunt.
const PATIENCE_WITH_FAULT: Duration = Duration::from_secs(20);

/// How often is looked whether something has happened yet.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Lines of the log that a failure shows.
const LAST_WORDS: usize = 40;

/// Small segments of which a few are kept, so that a fault meets sealing, preparing, keeping and removing as
/// well.
pub const SMALL_SEGMENTS: &str = r#"
segment_bytes = "256 KiB"
reserve_bytes = "1 MiB"
min_free = "8 MiB"
tail_bytes = "256 KiB"

[retention]
bytes = "512 KiB"
"#;

/// A destination that comes and goes with the configuration; nobody listens at the port for discarding.
const GUEST: &str = r#"
[destinations.guest]
kind = "webhook"
url = "http://127.0.0.1:9/guest"
allow_networks = ["127.0.0.0/8"]

[destinations.guest.retry]
base = "100ms"
cap = "200ms"

[[routes]]
when = 'type == "fault.test"'
to = ["guest"]
"#;

/// A secret of the configuration, and a part of every event: neither may appear in the log.
const CANARY_NAME: &str = "TORTURE_CANARY";
const CANARY: &str = "canary-7f1c93";

/// Most bytes that small segments leave behind when everything is drained: those that are kept, index files,
/// progress with its log, the reserve, for several shards.
const DISK_MAX: u64 = 64 << 20;

/// Most memory of a server under this load, unoptimised.
const MEMORY_MAX: u64 = 512 << 20;

/// How many shards an episode's server has: one and three take turns.
pub fn shards_of(seed: u64) -> u16 {
    if seed.is_multiple_of(2) { 3 } else { 1 }
}

static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// Has this binary tried instead of the one that was built with this harness.
pub fn use_binary(path: PathBuf) {
    BINARY.get_or_init(|| path);
}

/// The binary that is tried: by default the one that lies beside this executable.
pub fn binary() -> &'static Path {
    BINARY.get_or_init(|| {
        let this = std::env::current_exe().unwrap();
        let beside = this.parent().filter(|folder| !folder.ends_with("deps"));
        let folder = beside.or_else(|| this.ancestors().nth(2)).unwrap();
        let path = folder.join("wayhold");
        assert!(
            path.exists(),
            "{} is not there: build it first, with `cargo build -p wayhold`",
            path.display()
        );
        path
    })
}

/// A server's folder, configuration and, while it runs, process.
pub struct Server {
    folder: PathBuf,
    pub address: SocketAddr,
    configuration: String,
    program: PathBuf,
    planted: Option<String>,
    patience: Duration,
    runs: Arc<AtomicU64>,
    environment: Vec<(String, String)>,
    child: Option<Child>,
}

impl Server {
    /// Writes the configuration: data and file destination in `folder`, small segments so that many
    /// begin and end, a webhook at `receiver`, and what the test adds to `[store]`.
    pub fn prepare(folder: &Path, receiver: SocketAddr, store: &str) -> Self {
        Self::prepare_sharded(folder, receiver, store, 1)
    }

    /// The same with so many shards.
    pub fn prepare_sharded(folder: &Path, receiver: SocketAddr, store: &str, shards: u16) -> Self {
        let text = format!(
            r#"
[store]
shards = {shards}
{store}

[destinations.archive]
kind = "file"
path = "archive.ndjson"

[destinations.hook]
kind = "webhook"
url = "http://{receiver}/hook"
allow_networks = ["127.0.0.0/8"]
timeout = "5s"

[destinations.hook.retry]
base = "20ms"
cap = "200ms"

[destinations.hook.breaker]
failures = 50
open = "100ms"
open_max = "200ms"

[destinations.hook.headers]
x-canary = {{ env = "{CANARY_NAME}" }}

[[routes]]
when = 'type == "fault.archived"'
to = ["archive"]

[[routes]]
when = 'type != "fault.archived"'
to = ["archive", "hook"]
"#
        );
        Self::configured(folder, &text)
    }

    /// The same with everything that the configuration says besides where its data is and where it listens.
    pub fn configured(folder: &Path, text: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let configuration = format!("data = \"data\"\nlisten = [\"{address}\"]\n{text}");
        write_configuration(folder, &configuration);
        Self {
            folder: folder.to_owned(),
            address,
            configuration,
            program: binary().to_owned(),
            planted: None,
            patience: PATIENCE,
            runs: Arc::default(),
            environment: Vec::new(),
            child: None,
        }
    }

    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The file destination.
    pub fn archive(&self) -> PathBuf {
        self.folder.join("archive.ndjson")
    }

    /// Whether later starts name a destination that nobody answers for. Where they do not any more, what it is
    /// owed is held for an operator to end.
    pub fn set_guest(&self, is_named: bool) {
        let guest = if is_named { GUEST } else { "" };
        write_configuration(&self.folder, &format!("{}{guest}", self.configuration));
    }

    /// Another program than the shipped binary for later starts.
    pub fn set_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Plants a fault into later starts of an instrumented program, and waits less long for what the fault
    /// may prevent.
    pub fn plant(&mut self, fault: &str) {
        self.planted = Some(fault.to_owned());
        self.patience = PATIENCE_WITH_FAULT;
    }

    /// Environment of later starts.
    pub fn set_environment(&mut self, environment: Vec<(String, String)>) {
        self.environment = environment;
    }

    /// Starts the process without waiting for anything.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        // Beside the folder's volume where there is one: a log on a disk that is cut off stops writers.
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .unwrap();
        self.runs.fetch_add(1, Ordering::Relaxed);
        let child = Command::new(&self.program)
            .args(["serve", "--config"])
            .arg(self.folder.join("wayhold.toml"))
            .current_dir(self.folder.parent().unwrap())
            .env(CANARY_NAME, CANARY)
            .envs(self.planted.iter().map(|fault| ("WAYHOLD_PLANTED", fault)))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Starts the process and waits until it accepts.
    pub fn start(&mut self) {
        self.spawn();
        self.await_ready();
    }

    pub fn await_ready(&mut self) {
        if let Err(status) = self.ready_or_ended() {
            self.fail(&format!("ended while it started: {status}"));
        }
    }

    /// Waits until it accepts; the exit status where it ended instead.
    pub fn ready_or_ended(&mut self) -> Result<(), ExitStatus> {
        let begun = Instant::now();
        loop {
            if self.is_ready() {
                return Ok(());
            }
            if let Some(status) = self.ended() {
                return Err(status);
            }
            self.check_patience(begun, "is not ready");
        }
    }

    pub fn is_ready(&self) -> bool {
        let answer = Client::new(self.address).get("/readyz");
        answer.is_ok_and(|answer| answer.status == 200)
    }

    /// The exit status, where the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().unwrap()?;
        self.child = None;
        Some(status)
    }

    /// Waits until it ends by itself.
    pub fn await_end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            self.check_patience(begun, "does not end");
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself, which is as good.
            drop(child.kill());
            child.wait().unwrap();
        }
    }

    /// Stops all its threads where they are; what the kernel does for them still ends, but none of them
    /// learns of it.
    pub fn freeze(&self) {
        let Some(child) = &self.child else { return };
        let process = rustix::process::Pid::from_child(child);
        // It may have ended by itself, which is as good.
        rustix::process::kill_process(process, rustix::process::Signal::STOP).ok();
        let begun = Instant::now();
        while !is_frozen(child.id()) {
            self.check_patience(begun, "does not freeze");
        }
    }

    /// SIGTERM; how it ended and how long that took.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        let child = self.child.as_ref().expect("a running server");
        let process = rustix::process::Pid::from_child(child);
        let begun = Instant::now();
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        (self.await_end(), begun.elapsed())
    }

    /// `GET` of something that must be there.
    pub fn get(&self, target: &str) -> Value {
        let answer = Client::new(self.address).get(target);
        match answer {
            Ok(answer) if answer.status == 200 => answer.json(),
            other => self.fail(&format!("GET {target}: {other:?}")),
        }
    }

    /// Whether it can say where an event is.
    pub fn knows(&self, event: Event) -> bool {
        let target = format!("/v1/events?source=/faults&id={}", event.0);
        let answer = Client::new(self.address).get(&target);
        let answer = answer
            .unwrap_or_else(|silence| self.fail(&format!("does not answer {target}: {silence:?}")));
        answer.status == 200
    }

    pub fn status(&self) -> Value {
        self.get("/v1/status")
    }

    /// Waits until nothing is pending and the books are still and balance; the status then. It may take as long
    /// as it gets further, on a busy machine too.
    pub fn drain(&mut self) -> Value {
        let (mut further, mut least) = (Instant::now(), u64::MAX);
        loop {
            let status = self.status();
            let destinations = status["destinations"].as_array().unwrap();
            let pending = |one: &Value| one["accounting"]["pending"].as_u64().unwrap();
            let holds = &status["accounting"]["holds"];
            if *holds == Value::Bool(false) {
                self.fail(&format!("has wrong books: {status}"));
            }
            let pending = destinations.iter().map(pending).sum::<u64>();
            if pending == 0 && *holds == Value::Bool(true) {
                return status;
            }
            if pending < least {
                (further, least) = (Instant::now(), pending);
            }
            if let Some(ended) = self.ended() {
                self.fail(&format!("ended while it drained: {ended}"));
            }
            if further.elapsed() > self.patience {
                let seconds = self.patience.as_secs();
                self.fail(&format!(
                    "does not drain, no further after {seconds} s: {status:#}"
                ));
            }
            std::thread::sleep(LOOK_EVERY * 4);
        }
    }

    fn check_patience(&self, begun: Instant, what: &str) {
        if begun.elapsed() > self.patience {
            let seconds = self.patience.as_secs();
            self.fail(&format!("{what}, after {seconds} s"));
        }
        std::thread::sleep(LOOK_EVERY);
    }

    /// Counts its runs.
    pub fn runs(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.runs)
    }

    /// Numbers of the dead letters of a destination, each with its event.
    pub fn dead_letters(&self, destination: &str) -> BTreeMap<u64, u64> {
        let mut letters = BTreeMap::new();
        let mut after = String::new();
        let begun = Instant::now();
        loop {
            self.check_patience(begun, "lists dead letters without an end");
            let page = self.get(&format!(
                "/v1/dead-letters?destination={destination}{after}"
            ));
            for letter in page["items"].as_array().unwrap() {
                let event = letter["event_id"].as_str().unwrap().parse().unwrap();
                letters.insert(letter["id"].as_u64().unwrap(), event);
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return letters,
            }
        }
    }

    /// Redrives every dead letter until none is left: what arrived nowhere arrives now.
    pub fn redrive_all(&self, destinations: &[&str]) {
        let begun = Instant::now();
        loop {
            let letters = destinations.iter().flat_map(|name| self.dead_letters(name));
            let left: Vec<u64> = letters.map(|(letter, _)| letter).collect();
            if left.is_empty() {
                return;
            }
            for letter in &left {
                // One that is under way already says no, and one that has arrived is gone.
                let target = format!("/v1/dead-letters/{letter}/redrive");
                let headers = "Content-Type: application/json\r\n";
                Client::new(self.address).post(&target, headers, b"{}").ok();
            }
            let what = format!("keeps {} dead letters that were redriven", left.len());
            self.check_patience(begun, &what);
        }
    }

    /// What it said of damage; after a kill or a power cut there is none.
    pub fn alarms(&self) -> Vec<String> {
        let log = self.log();
        let alarming = |line: &&str| {
            [
                "are lost",
                "is lost",
                "is damaged",
                "put aside",
                "is missing",
            ]
            .iter()
            .any(|words| line.contains(words))
        };
        log.lines().filter(alarming).map(str::to_owned).collect()
    }

    /// Fails where it spoke of damage although nothing but its process or power ended.
    pub fn expect_no_alarm(&self) {
        if let Some(alarm) = self.alarms().first() {
            self.fail(&format!("speaks of damage after mere kills: {alarm}"));
        }
    }

    /// What is wrong with its files, its size and its log, whatever its clients see.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut bytes = 0;
        for path in files_below(&self.data()) {
            bytes += std::fs::metadata(&path).map_or(0, |it| it.len());
            if path.extension().is_some_and(|end| end == "db")
                && let Some(fault) = integrity(&path)
            {
                faults.push(format!("{}: {fault}", path.display()));
            }
        }
        if bytes > DISK_MAX {
            faults.push(format!("{bytes} bytes on disk, at most {DISK_MAX}"));
        }
        let memory = self
            .child
            .as_ref()
            .and_then(|child| memory_peak(child.id()));
        if memory.is_some_and(|bytes| bytes > MEMORY_MAX) {
            faults.push(format!("{memory:?} bytes of memory, at most {MEMORY_MAX}"));
        }
        let log = self.log();
        let mut said = [CANARY, BODY_CANARY].into_iter();
        if let Some(canary) = said.find(|canary| log.contains(canary)) {
            faults.push(format!("the log holds {canary:?}"));
        }
        faults
    }

    /// What the process said, over all its runs.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.with_extension("log")
    }

    /// A promise is broken; with the last words of the log.
    pub fn fail(&self, what: &str) -> ! {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let mut last = String::new();
        for line in &lines[lines.len().saturating_sub(LAST_WORDS)..] {
            writeln!(last, "  {line}").unwrap();
        }
        broken(&format!("the server {what}\n{last}"));
    }
}

/// Writes the configuration; synced, since a power cut must not take it.
fn write_configuration(folder: &Path, text: &str) {
    let mut file = File::create(folder.join("wayhold.toml")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
    File::open(folder).unwrap().sync_all().unwrap();
}

/// Whether no thread of a process runs or will run: stopped, ended, or in the kernel and stopped on its
/// way out.
fn is_frozen(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the command, which is in parentheses.
        let state = status.rsplit(") ").next().unwrap_or_default();
        state.is_empty() || state.starts_with(['T', 'D', 'Z', 'X'])
    })
}

/// All files below a folder; what disappears meanwhile is left out.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let below = |path: PathBuf| match path.is_dir() {
        true => files_below(&path),
        false => vec![path],
    };
    entries.map(|entry| entry.path()).flat_map(below).collect()
}

/// What SQLite finds wrong with a database; nothing of one that was removed meanwhile.
fn integrity(path: &Path) -> Option<String> {
    let checked = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).and_then(
        |connection| connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)),
    );
    match checked {
        Ok(found) if found == "ok" => None,
        Ok(found) => Some(found),
        Err(_) if !path.exists() => None,
        Err(error) => Some(error.to_string()),
    }
}

/// The most memory that a process had at once, in bytes.
fn memory_peak(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
