//! `wayhold serve` as a process: started on free ports, waited for, and ended by its own id only.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::http::{self, Answer};
use super::{PATIENCE, wait_for};

/// A running server.
pub(crate) struct Server {
    child: Child,
    /// Host and port of the API.
    pub(crate) authority: String,
    /// Host and port of the metrics: the ops listener where there is one.
    pub(crate) metrics: String,
    /// What it wrote to standard error so far.
    pub(crate) log: Arc<Mutex<String>>,
}

impl Server {
    /// Starts the binary in `dir` with these arguments, on a free port unless they say where, and waits
    /// until it says that it is ready.
    pub(crate) fn start(dir: &Path, arguments: &[&str]) -> Self {
        let mut command = wayhold(dir);
        command.args(["serve", "--json"]).args(arguments);
        if !arguments.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built");
        let log = Arc::<Mutex<String>>::default();
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (written, ready) = (Arc::clone(&log), Arc::<Mutex<Option<Value>>>::default());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                written.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let announced = Arc::clone(&ready);
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                *announced.lock().unwrap() = serde_json::from_str(&line).ok();
            }
        });
        let until = Instant::now() + PATIENCE;
        let places = loop {
            if let Some(places) = ready.lock().unwrap().take() {
                break places;
            }
            let ended = child.try_wait().unwrap();
            let late = Instant::now() > until;
            if ended.is_some() || late {
                child.kill().ok();
                let log = log.lock().unwrap();
                unreachable!("the server did not start: {ended:?}\n{log}");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let authority = |url: &Value| {
            url.as_str()
                .unwrap_or_default()
                .trim_start_matches("http://")
                .to_owned()
        };
        Self {
            authority: authority(&places["api"][0]),
            metrics: authority(&places["metrics"]),
            child,
            log,
        }
    }

    /// The URL for `--server`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.authority)
    }

    /// Asks it something.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        http::ask(&self.authority, method, path, headers, body).expect("the server answers")
    }

    /// Asks for a JSON answer that is a success.
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, &[], b"");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// Asks it to do something that succeeds.
    pub(crate) fn post(&self, path: &str, body: &str) -> Value {
        let answer = self.ask(
            "POST",
            path,
            &[("content-type", "application/json")],
            body.as_bytes(),
        );
        assert!(
            (200..300).contains(&answer.status),
            "{path}: {} {}",
            answer.status,
            answer.text()
        );
        answer.json()
    }

    /// Sends a plain JSON event and returns its receipt.
    pub(crate) fn send(&self, kind: &str, id: &str, key: &str) -> Value {
        let path = format!("/v1/events?type={kind}&id={id}&key={key}");
        self.post(&path, &format!(r#"{{"id":"{id}"}}"#))["receipts"][0].clone()
    }

    /// Waits until `look` finds something in the status of a destination.
    pub(crate) fn wait_for_destination(
        &self,
        name: &str,
        what: &str,
        mut holds: impl FnMut(&Value) -> bool,
    ) -> Value {
        wait_for(&format!("{name}: {what}"), || {
            let status = self.get("/v1/status");
            let destinations = status["destinations"].as_array()?.clone();
            destinations
                .into_iter()
                .find(|one| one["name"] == name && holds(one))
        })
    }

    /// Id of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits for the end, at most 10 s as promised (and a little for a slow machine).
    pub(crate) fn terminate(mut self) -> ExitStatus {
        signal(self.child.id(), "TERM");
        let until = Instant::now() + Duration::from_secs(12);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < until,
                "it did not stop in time:\n{}",
                self.log.lock().unwrap()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Only ever this child, which is not waited for elsewhere.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Sends a signal to a process that the test started.
pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args([format!("-{name}"), pid.to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

/// The binary, to be run in `dir` without the surroundings of the test.
pub(crate) fn wayhold(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wayhold"));
    command.current_dir(dir).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WAYHOLD__")) {
        command.env_remove(name);
    }
    command
}

/// Runs a command of the binary to its end.
pub(crate) fn run(dir: &Path, arguments: &[&str]) -> Output {
    wayhold(dir).args(arguments).output().unwrap()
}

/// Standard output, as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error, as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
