//! A disk that remembers every call that changed it, so that what it may hold after a power failure can be
//! worked out, and that can be told to fail. The store runs over it unchanged: SQLite's files through a VFS,
//! all others through the store's own port.

mod files;
mod image;
mod model;
mod recorder;
mod vfs;

pub(crate) use self::files::RecordedDisk;
pub(crate) use self::image::Image;
pub(crate) use self::model::{Fate, Model};
pub(crate) use self::recorder::{Fault, Operation, Plan, Recorder, Recording};
