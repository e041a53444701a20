//! Live figures of the demo: four lines that change for a person, a line every two seconds for a log.
//! All are seen from outside the server: what was acknowledged, and what arrived.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use super::super::output::Output;

/// How often a line is written where nobody watches.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// What there is to see at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Events acknowledged.
    pub accepted: u64,
    /// Of these, arrived in the archive (repeats included).
    pub archive: u64,
    /// Of these, confirmed by the portal (repeats included).
    pub portal: u64,
    /// Requests that the portal answered 503.
    pub rejected: u64,
    /// Half of the last requests, and 99 of 100, were acknowledged within these times.
    pub latency: Option<(Duration, Duration)>,
}

/// Shows moments and says what happens.
pub struct Figures {
    screen: Option<ProgressBar>,
    begun: Instant,
    line_due: Instant,
}

impl Figures {
    /// Time counts from now; on the terminal, where there is one.
    pub fn begin() -> Self {
        let screen = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg}");
            ProgressBar::new_spinner()
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        });
        let now = Instant::now();
        Self {
            screen,
            begun: now,
            line_due: now,
        }
    }

    /// Shows the moment, if it is time to.
    pub fn show(&mut self, moment: &Moment, output: &mut Output) {
        let seconds = self.begun.elapsed().as_secs_f64();
        if let Some(screen) = &self.screen {
            screen.set_message(moment.block(seconds));
            screen.tick();
        } else if Instant::now() >= self.line_due {
            self.line_due = Instant::now() + LINE_EVERY;
            output.note(moment.line(seconds));
        }
    }

    /// Says what happens now.
    pub fn say(&self, text: &str, output: &mut Output) {
        let line = format!("{:5.1} s  {text}", self.begun.elapsed().as_secs_f64());
        match &self.screen {
            Some(screen) => screen.println(line),
            None => output.note(line),
        }
    }

    /// Leaves the last figures and what was said on the screen.
    pub fn finish(&self) {
        if let Some(screen) = &self.screen {
            screen.abandon();
        }
    }
}

impl Moment {
    /// Acknowledged events that have not arrived yet; one that arrived before its acknowledgement
    /// is not counted below zero.
    fn pending(&self, delivered: u64) -> u64 {
        self.accepted.saturating_sub(delivered)
    }

    fn latencies(&self) -> String {
        match self.latency {
            None => String::new(),
            Some((half, nearly_all)) => format!(
                "acknowledged in {:.1} ms (p50), {:.1} ms (p99)",
                half.as_secs_f64() * 1e3,
                nearly_all.as_secs_f64() * 1e3
            ),
        }
    }

    fn block(&self, seconds: f64) -> String {
        format!(
            "{seconds:5.1} s\n  accepted {:>8}   {}\n  archive  {:>8} delivered {:>8} pending\n  portal   {:>8} delivered {:>8} pending   answered 503: {}",
            self.accepted,
            self.latencies(),
            self.archive,
            self.pending(self.archive),
            self.portal,
            self.pending(self.portal),
            self.rejected,
        )
    }

    fn line(&self, seconds: f64) -> String {
        format!(
            "{seconds:5.1} s  accepted {}, archive {} delivered {} pending, portal {} delivered {} pending, {}",
            self.accepted,
            self.archive,
            self.pending(self.archive),
            self.portal,
            self.pending(self.portal),
            self.latencies(),
        )
    }
}
