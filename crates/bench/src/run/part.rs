//! A part of the comparison: figures that are measured together. Every part does one round at a time,
//! and all parts take turns within a round, so that what disturbs the machine disturbs them all.

use std::path::Path;

use tempfile::TempDir;

use super::plan::Plan;
use super::series::Figures;
use super::verdict::Target;
use super::wanted::Wanted;
use crate::BenchError;

/// Figures that are measured together.
pub struct Part {
    /// Every figure that it gives.
    pub names: &'static [&'static str],
    /// What is expected of them.
    pub targets: &'static [Target],
    /// Measures each once, or in every round of the plan where the part runs apart. Figures that nobody wants may be left out.
    pub round: fn(&Round<'_>, &mut Figures) -> Result<(), BenchError>,
}

/// One round, as a part sees it.
pub struct Round<'a> {
    /// Which one, counting from 0.
    pub number: usize,
    /// How long and how much.
    pub plan: &'a Plan,
    /// On the disk that is measured.
    pub folder: &'a Path,
    /// Which figures.
    pub wanted: &'a Wanted,
}

impl Round<'_> {
    /// Whether a figure is asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.wanted.wants(name)
    }

    /// Whether any figure that begins so is asked for.
    pub fn wants_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.wants(name))
    }

    /// An empty folder for one server.
    pub fn data(&self) -> Result<TempDir, BenchError> {
        Ok(tempfile::tempdir_in(self.folder)?)
    }
}
