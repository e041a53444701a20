//! How far the measuring has come: a bar for a person, nothing for a log.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often the bar shows how much time has gone.
const TICK: Duration = Duration::from_millis(200);

/// The bar, where somebody watches.
#[derive(Debug)]
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// Over so many steps.
    pub fn over(steps: usize) -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:20} {pos}/{len}  {elapsed}  {msg}");
            let bar = ProgressBar::new(steps as u64)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(TICK);
            bar
        }))
    }

    /// The next step begins and may take so long.
    pub fn begin(&mut self, words: &str, share: Duration) {
        if let Some(bar) = &self.0 {
            bar.inc(1);
            bar.set_message(format!("{words}, about {:.0} s", share.as_secs_f64()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
