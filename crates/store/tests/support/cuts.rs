//! A data directory as it is before each change that a running store makes: what a crash at that moment leaves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::disk::HookedDisk;
use crate::support::copy_of;

/// The copies, each with the operation before which it was made.
#[derive(Default)]
pub struct Cuts {
    copies: Arc<Mutex<Vec<(String, tempfile::TempDir)>>>,
    is_watched: Arc<AtomicBool>,
}

impl Cuts {
    /// Those of this directory, and the disk on which its store has to be opened.
    pub fn of(dir: &Path) -> (Self, HookedDisk) {
        Self::before(dir, |_, _| true)
    }

    /// The same, of the changes that are meant only: by the name of the operation, and its path.
    pub fn before(
        dir: &Path,
        is_meant: impl Fn(&'static str, &Path) -> bool + Send + Sync + 'static,
    ) -> (Self, HookedDisk) {
        let cuts = Self::default();
        let disk: Arc<OnceLock<HookedDisk>> = Arc::default();
        let hook = {
            let (copies, is_watched) = (Arc::clone(&cuts.copies), Arc::clone(&cuts.is_watched));
            let disk = Arc::clone(&disk);
            let path = dir.to_owned();
            move |operation: &'static str, at: &Path| {
                if is_watched.load(Ordering::SeqCst) && is_meant(operation, at) {
                    let mut copies = copies.lock().unwrap();
                    let copy = disk.get().unwrap().still(|| copy_of(&path));
                    copies.push((format!("{operation} {}", at.display()), copy));
                }
                Ok(())
            }
        };
        let disk = disk.get_or_init(|| HookedDisk::new(hook)).clone();
        (cuts, disk)
    }

    /// Makes copies from now on, or no more.
    pub fn watch(&self, is_watched: bool) {
        self.is_watched.store(is_watched, Ordering::SeqCst);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.copies.lock().unwrap().len()
    }

    /// All of them.
    pub fn take(&self) -> Vec<(String, tempfile::TempDir)> {
        std::mem::take(&mut *self.copies.lock().unwrap())
    }
}
