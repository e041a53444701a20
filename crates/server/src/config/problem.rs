//! Where a value came from, and what is wrong with it.

use std::cmp::Ordering;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most problems that are told at once; whoever has more begins with these.
const PROBLEMS_SHOWN_MAX: usize = 50;

/// Where a value came from. Flags beat the environment, the environment beats files, files beat
/// defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A line of a file.
    File {
        /// The file, as it was named.
        path: Arc<Path>,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl Origin {
    /// The path as the value means it: relative to its file, or to the working directory where it came
    /// by flag or environment.
    pub(crate) fn resolve(&self, path: &str) -> PathBuf {
        match self {
            Self::File { path: file, .. } => file
                .parent()
                .map_or_else(|| path.into(), |folder| folder.join(path)),
            Self::Default | Self::Environment(_) | Self::Flag(_) => path.into(),
        }
    }

    /// Orders places as a person reads them: lines of a file from the top, then everything else.
    pub(crate) fn reading_order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::File { path: a, line: x }, Self::File { path: b, line: y }) => {
                (a, x).cmp(&(b, y))
            }
            (Self::File { .. }, _) => Ordering::Less,
            (_, Self::File { .. }) => Ordering::Greater,
            _ => Ordering::Equal,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub origin: Origin,
    /// Path of the key, such as `destinations.orders.topic`; empty where no key could be read.
    pub key: String,
    /// What was expected.
    pub message: String,
    /// A line that, added, solves it.
    pub add: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Default => {}
            origin => write!(f, "{origin}: ")?,
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)?;
        if let Some(line) = &self.add {
            write!(f, "\n  add: {line}")?;
        }
        Ok(())
    }
}

/// Everything that is wrong with a configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().take(PROBLEMS_SHOWN_MAX).enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        match self.0.len().checked_sub(PROBLEMS_SHOWN_MAX) {
            Some(more @ 1..) => write!(f, "\nand {more} more"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Problems {}
