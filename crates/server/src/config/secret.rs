//! A value that must never be shown.

use std::fmt;
use std::sync::Arc;

/// A secret read from the environment or a file when the configuration was loaded. Its `Debug` shows
/// nothing; whoever needs the text says so by calling `expose`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Takes a text into custody.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text itself; it must reach nothing but the receiver it is meant for.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows_in_debug() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "[redacted]");
    }
}
