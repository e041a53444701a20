//! How far sending has come: a bar for a person, and a line now and then for a log.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use super::super::output::{Output, printable};

/// How often a line is written where nobody watches.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The bar, or what stands for it.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    bytes: u64,
    begun: Instant,
    line_due: Instant,
}

impl Progress {
    /// Progress over so many bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(
                "{bar:30} {bytes}/{total_bytes}  {msg}  {elapsed} (about {eta} to go)",
            );
            ProgressBar::new(bytes)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        let now = Instant::now();
        Self {
            bar,
            bytes,
            begun: now,
            line_due: now + LINE_EVERY,
        }
    }

    /// No bar and no lines.
    pub(super) fn silent() -> Self {
        let now = Instant::now();
        Self {
            bar: None,
            bytes: 0,
            begun: now,
            line_due: now + Duration::from_secs(u64::from(u32::MAX)),
        }
    }

    /// So many bytes are read and so many events sent.
    pub(super) fn at(&mut self, read: u64, events: u64, output: &mut Output) {
        if let Some(bar) = &self.bar {
            bar.set_position(read.min(self.bytes));
            bar.set_message(format!("{events} events"));
        } else if Instant::now() >= self.line_due {
            self.line_due = Instant::now() + LINE_EVERY;
            let percent = (read.min(self.bytes) * 100)
                .checked_div(self.bytes)
                .unwrap_or(100);
            output.note(format!(
                "{events} events sent, {percent} % of the files read"
            ));
        }
    }

    /// A line beside the bar.
    pub(super) fn say(&self, output: &mut Output, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(printable(text)),
            None => output.note(text),
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Time since the beginning.
    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}
