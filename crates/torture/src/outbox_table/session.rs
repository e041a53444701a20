//! A session of a database's own command-line client: statements go in, lines come out, and an error ends it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Lines that may wait to be read.
const LINES_MAX: usize = 1_024;

/// How long one answer may take before the session counts as gone: longer than the longest transaction that another
/// may wait for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The session has ended, with or without having done what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// One client, which ends with this value, unfinished transactions with it.
pub struct Session {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Session {
    /// Starts a client; what it complains of is added to this log.
    pub fn start(mut client: Command, log: File) -> std::io::Result<Self> {
        let mut child = client
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(std::io::Error::other("a client without input or output"));
        };
        let (sender, lines) = sync_channel(LINES_MAX);
        // Ends with the client.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            input,
            lines,
        })
    }

    /// Has the client begin with these statements.
    ///
    /// # Errors
    /// When it has ended.
    pub fn send(&mut self, statements: &str) -> Result<(), Gone> {
        let sent = self.input.write_all(statements.as_bytes());
        sent.and_then(|()| self.input.write_all(b"\n"))
            .and_then(|()| self.input.flush())
            .map_err(|_| Gone)
    }

    /// The lines that came up to this one, which the statements print at their end.
    ///
    /// # Errors
    /// When it ended before, or says nothing for too long.
    pub fn until(&mut self, last: &str) -> Result<Vec<String>, Gone> {
        let mut before = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line == last => return Ok(before),
                Ok(line) => before.push(line),
                Err(_) => return Err(Gone),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
