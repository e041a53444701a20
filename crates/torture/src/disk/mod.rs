//! A disk that remembers every call that changed it, so that what it may hold after a power failure can be
//! worked out, and that can be told to fail. The store runs over it unchanged: SQLite's files through a VFS,
//! all others through the store's own port.

mod files;
mod image;
mod model;
mod recorder;
mod vfs;

use std::path::Path;
use std::sync::Arc;

use wayhold_store::disk::Disk;

pub(crate) use self::image::Image;
pub(crate) use self::model::{Fate, Model};
pub(crate) use self::recorder::{Call, Fault, Operation, Plan, Recorder, Recording};

/// A directory whose calls are recorded, whichever way they come.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) recorder: Arc<Recorder>,
    _attached: Arc<vfs::Attached>,
}

impl Recorded {
    /// Records what is done below `root`, which holds exactly `before`.
    pub(crate) fn new(root: &Path, before: Image) -> Self {
        let recorder = Recorder::new(root, before);
        let attached = Arc::new(vfs::Attached::new(&recorder));
        Self {
            recorder,
            _attached: attached,
        }
    }

    /// The port to files that are not SQLite's.
    pub(crate) fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(files::RecordedDisk(Arc::clone(&self.recorder)))
    }

    /// The name of the VFS for SQLite's.
    pub(crate) fn vfs(&self) -> String {
        vfs::name()
    }
}
