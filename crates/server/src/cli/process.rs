//! This same binary as a process of its own. Dropping it ends the process, so that nothing is left
//! behind whatever happens to the command that started it.

use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};
use std::time::Duration;

use tokio::time::Instant;

/// How often is looked whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A command of this binary that the environment cannot configure: whoever starts it says all.
///
/// # Errors
/// When the operating system does not say where the binary is.
pub fn this_binary() -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    let overrides = std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.as_encoded_bytes().starts_with(b"WAYHOLD__"));
    for name in overrides {
        command.env_remove(name);
    }
    Ok(command)
}

/// A running process that was started here.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn start(command: &mut Command) -> std::io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its standard output and error, where they were piped; once.
    pub fn take_streams(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.0.stdout.take(), self.0.stderr.take())
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok()?
    }

    /// Waits for its end, at most so long; `None` when it still runs then.
    pub async fn end_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            match self.ended() {
                Some(status) => return Some(status),
                None if Instant::now() >= until => return None,
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Asks it to stop.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn ask_to_stop(&self) -> std::io::Result<()> {
        let process = rustix::process::Pid::from_child(&self.0);
        Ok(rustix::process::kill_process(
            process,
            rustix::process::Signal::TERM,
        )?)
    }

    /// `kill -9`: nothing is flushed, nothing said goodbye to.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill(mut self) -> std::io::Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to do.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
