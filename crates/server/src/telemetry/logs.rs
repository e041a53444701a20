//! Logs: one record a line on standard error, as JSON or for a person. Neither payloads nor secrets
//! ever enter a record; what came from outside is a field, whose control characters are written out.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::cli::output::printable;
use crate::config::{LogConfig, LogFormat};

/// Starts logging for the whole process.
///
/// # Errors
/// When it was started before.
pub fn start(config: &LogConfig) -> Result<(), TryInitError> {
    // The configuration has checked the filter.
    let filter = EnvFilter::try_new(&config.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false);
    match config.format {
        // JSON escapes control characters by itself.
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .finish()
            .try_init(),
        LogFormat::Pretty => builder.fmt_fields(plain_fields()).finish().try_init(),
    }
}

/// Records every panic like anything else. Only what stands in the source is told: a message that was
/// put together at run time may hold a payload.
pub fn record_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let words = panic
            .payload()
            .downcast_ref::<&'static str>()
            .copied()
            .unwrap_or_default();
        tracing::error!(place, words, "panicked; this is a bug");
    }));
}

/// Writes the message and then `name=value` for each field, on one line whatever the values hold.
fn plain_fields() -> impl for<'writer> FormatFields<'writer> {
    debug_fn(|writer, field, value| {
        let value = format!("{value:?}");
        match field.name() {
            "message" => write!(writer, "{}", printable(&value)),
            name => write!(writer, "{name}={}", printable(&value)),
        }
    })
    .delimited(" ")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_hostile_value_cannot_leave_its_line_or_reach_the_terminal() {
        let hostile = "a\nERROR all is lost\u{1b}[2J\u{202e}";
        let captured = Captured::default();
        let writer = captured.clone();
        let pretty = tracing_subscriber::fmt()
            .fmt_fields(plain_fields())
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(pretty, || {
            tracing::warn!(id = hostile, other = %hostile, "refused {hostile}");
        });
        let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            !text
                .trim_end()
                .chars()
                .any(|c| c.is_control() || c == '\u{202e}'),
            "{text}"
        );

        let captured = Captured::default();
        let writer = captured.clone();
        let json = tracing_subscriber::fmt()
            .json()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(json, || tracing::warn!(id = hostile, "refused"));
        let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(record["fields"]["id"], hostile);
    }
}
