//! One ordered record of all calls below a directory. A call is made and written down under one lock, so the
//! order of the record is the order in which the disk saw them.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::image::Image;
use super::model::Model;

/// A file's number in a record, whatever its name is at the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Inode(pub(crate) u32);

/// One call that changed the disk. Paths are relative to the recorded directory.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    MakeDirectory {
        path: PathBuf,
    },
    Create {
        path: PathBuf,
        inode: Inode,
    },
    Remove {
        path: PathBuf,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    SyncDirectory {
        path: PathBuf,
    },
    Write {
        inode: Inode,
        offset: u64,
        data: Box<[u8]>,
    },
    SetLength {
        inode: Inode,
        bytes: u64,
    },
    Sync {
        inode: Inode,
    },
    /// The system dropped what was not synced of the file, and will say of the next sync that it went well.
    SyncFailed {
        inode: Inode,
    },
}

/// What a call does, to choose which one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Operation {
    Open,
    Read,
    Write,
    Truncate,
    Sync,
    SyncDirectory,
    MakeDirectory,
    Remove,
    Rename,
    List,
    SharedMemory,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// EIO.
    Io,
    /// EIO; what a sync was to make durable is gone at once, as from a page cache that needs the room, and
    /// not only after a power failure.
    Forgets,
    /// ENOSPC.
    NoSpace,
    /// Half of a write is done, then there is no space; any other call fails with EIO.
    Short,
}

/// Which calls fail.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// The number of the first call that fails, counted from 0 over those that `concerns` chooses.
    pub(crate) at: Option<u64>,
    pub(crate) fault: Option<Fault>,
    /// Whether all later ones fail as well.
    pub(crate) for_good: bool,
    /// Only calls of this kind, where given.
    pub(crate) only: Option<Operation>,
    /// Only on paths that contain this.
    pub(crate) path: Option<&'static str>,
    /// Says of every sync that it went well, and does none.
    pub(crate) lying: bool,
}

/// What was recorded: what the disk held before, and every call since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recording {
    pub(crate) before: Image,
    pub(crate) calls: Vec<Call>,
    /// Name of each file when it was first seen, for people.
    pub(crate) names: HashMap<Inode, PathBuf>,
}

/// Records the calls below one directory.
#[derive(Debug)]
pub(crate) struct Recorder {
    root: PathBuf,
    log: Mutex<Log>,
}

/// The record so far, held by whoever makes a call.
#[derive(Debug, Default)]
pub(super) struct Log {
    recording: Recording,
    present: HashMap<PathBuf, Inode>,
    plan: Plan,
    counted: u64,
    failed: Option<(Operation, PathBuf, usize)>,
}

impl Recorder {
    /// Records what is done below `root`, which holds exactly `before`.
    pub(crate) fn new(root: &Path, before: Image) -> Arc<Self> {
        let mut log = Log::default();
        for path in before.files().keys() {
            log.known(path);
        }
        log.recording.before = before;
        Arc::new(Self {
            root: root.to_owned(),
            log: Mutex::new(log),
        })
    }

    /// Directory whose calls are recorded.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.log().recording.calls.len()
    }

    /// Makes calls fail from now on; counting begins at 0.
    pub(crate) fn set_plan(&self, plan: Plan) {
        let mut log = self.log();
        log.plan = plan;
        log.counted = 0;
    }

    /// The first call that failed by the plan: what it was to do, of which file, after how many calls.
    pub(crate) fn failed(&self) -> Option<(Operation, PathBuf, usize)> {
        self.log().failed.clone()
    }

    /// Takes what was recorded.
    pub(crate) fn recording(&self) -> Recording {
        self.log().recording.clone()
    }

    /// Begins a call: what is done until the guard is dropped comes before every later call. Says how it
    /// has to fail, where it does.
    pub(super) fn enter(
        &self,
        operation: Operation,
        path: &Path,
    ) -> (MutexGuard<'_, Log>, Option<Fault>) {
        let mut log = self.log();
        let fault = log.decide(operation, path);
        (log, fault)
    }

    /// The path as the record names it; `None` outside of it.
    pub(super) fn relative<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        path.strip_prefix(&self.root).ok()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn decide(&mut self, operation: Operation, path: &Path) -> Option<Fault> {
        let plan = &self.plan;
        let (at, fault) = (plan.at?, plan.fault?);
        let concerns = plan.only.is_none_or(|only| only == operation)
            && plan
                .path
                .is_none_or(|part| path.to_string_lossy().contains(part));
        if !concerns {
            return None;
        }
        let number = self.counted;
        self.counted += 1;
        if number < at || (number > at && !plan.for_good) {
            return None;
        }
        if self.failed.is_none() {
            self.failed = Some((operation, path.to_owned(), self.recording.calls.len()));
        }
        Some(fault)
    }

    pub(super) fn lies(&self) -> bool {
        self.plan.lying
    }

    /// A sync of this file fails: nothing that it was for will ever be durable.
    pub(super) fn sync_failed(&mut self, root: &Path, inode: Inode) {
        if self.plan.fault == Some(Fault::Forgets)
            && let Some((path, _)) = self.present.iter().find(|(_, one)| **one == inode)
            && let Err(error) = self.forget(&root.join(path), inode)
        {
            eprintln!("cannot take back what was not synced: {error}");
        }
        self.record(Call::SyncFailed { inode });
    }

    /// Makes a file hold what is durable of it wherever it was written since; its length stays.
    fn forget(&self, path: &Path, inode: Inode) -> io::Result<()> {
        let mut model = Model::new(&self.recording);
        for call in &self.recording.calls {
            model.apply(call);
        }
        let (durable, written) = model.durable(inode);
        let file = std::fs::OpenOptions::new().write(true).open(path)?;
        for (offset, length) in written {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let mut bytes = vec![0; length];
            for (byte, durable) in bytes.iter_mut().zip(durable.iter().skip(start)) {
                *byte = *durable;
            }
            file.write_all_at(&bytes, offset)?;
        }
        Ok(())
    }

    pub(super) fn record(&mut self, call: Call) {
        match &call {
            Call::Create { path, inode } => {
                self.present.insert(path.clone(), *inode);
            }
            Call::Remove { path } => {
                self.present.remove(path);
            }
            Call::Rename { from, to } => {
                if let Some(inode) = self.present.remove(from) {
                    self.present.insert(to.clone(), inode);
                }
            }
            _ => {}
        }
        self.recording.calls.push(call);
    }

    /// The file of that name, which the system has just opened for writing; a new one is recorded.
    pub(super) fn opened(&mut self, path: &Path) -> (Inode, bool) {
        if let Some(inode) = self.present.get(path) {
            return (*inode, false);
        }
        let inode = self.known(path);
        self.record(Call::Create {
            path: path.to_owned(),
            inode,
        });
        (inode, true)
    }

    pub(super) fn of(&self, path: &Path) -> Option<Inode> {
        self.present.get(path).copied()
    }

    fn known(&mut self, path: &Path) -> Inode {
        let count = self.recording.names.len();
        let inode = Inode(u32::try_from(count).unwrap_or(u32::MAX));
        self.recording.names.insert(inode, path.to_owned());
        self.present.insert(path.to_owned(), inode);
        inode
    }
}

impl Fault {
    /// As the system would say it.
    pub(super) fn error(self) -> io::Error {
        let error = match self {
            Self::Io | Self::Forgets | Self::Short => rustix::io::Errno::IO,
            Self::NoSpace => rustix::io::Errno::NOSPC,
        };
        error.into()
    }
}
