//! The store's port to all files that are not SQLite's, recorded call by call.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wayhold_store::disk::{Calls, OpenFile, Overwrite, Space, SystemDisk};

use super::recorder::{Call, Fault, Inode, Operation, Recorder};

/// Files below a recorder's directory.
#[derive(Clone, Debug)]
pub(crate) struct RecordedDisk(pub(crate) Arc<Recorder>);

impl RecordedDisk {
    fn name<'a>(&self, path: &'a Path) -> io::Result<&'a Path> {
        self.0.relative(path).ok_or_else(|| {
            let what = format!("{} is outside of the recorded directory", path.display());
            io::Error::other(what)
        })
    }

    /// Makes one call that says only whether it went well.
    fn change(
        &self,
        operation: Operation,
        path: &Path,
        act: impl FnOnce() -> io::Result<()>,
        call: impl FnOnce(&Path) -> Call,
    ) -> io::Result<()> {
        let name = self.name(path)?;
        let (mut log, fault) = self.0.enter(operation, name);
        if let Some(fault) = fault {
            return Err(fault.error());
        }
        act()?;
        log.record(call(name));
        Ok(())
    }

    /// Makes one call that changes nothing.
    fn look<T>(
        &self,
        operation: Operation,
        path: &Path,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let (_log, fault) = self.0.enter(operation, self.name(path)?);
        fault.map_or_else(act, |fault| Err(fault.error()))
    }

    fn opened(&self, path: &Path, inode: Inode, file: Box<dyn OpenFile>) -> Box<dyn OpenFile> {
        Box::new(RecordedFile {
            file,
            inode,
            path: path.to_owned(),
            recorder: Arc::clone(&self.0),
        })
    }
}

impl Calls for RecordedDisk {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let make = || SystemDisk.make_directory(path);
        self.change(Operation::MakeDirectory, path, make, |path| {
            Call::MakeDirectory {
                path: path.to_owned(),
            }
        })
    }

    fn is_directory(&self, path: &Path) -> bool {
        SystemDisk.is_directory(path)
    }

    fn list_names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        let list = || SystemDisk.list_names(directory);
        self.look(Operation::List, directory, list)
    }

    fn sync_names(&self, directory: &Path) -> io::Result<()> {
        // The parent of the recorded directory is none of its business.
        let Some(name) = self.0.relative(directory) else {
            return Ok(());
        };
        let (mut log, fault) = self.0.enter(Operation::SyncDirectory, name);
        if let Some(fault) = fault {
            return Err(fault.error());
        }
        if !log.lies() {
            log.record(Call::SyncDirectory {
                path: name.to_owned(),
            });
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let name = self.name(path)?;
        let (mut log, fault) = self.0.enter(Operation::Open, name);
        if let Some(fault) = fault {
            return Err(fault.error());
        }
        let file = SystemDisk.create(path)?;
        let (inode, is_new) = log.opened(name);
        if !is_new {
            log.record(Call::SetLength { inode, bytes: 0 });
        }
        Ok(self.opened(name, inode, file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let name = self.name(path)?;
        let (mut log, fault) = self.0.enter(Operation::Open, name);
        if let Some(fault) = fault {
            return Err(fault.error());
        }
        let file = SystemDisk.open(path)?;
        let (inode, _) = log.opened(name);
        Ok(self.opened(name, inode, file))
    }

    fn read_whole(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.look(Operation::Read, path, || SystemDisk.read_whole(path))
    }

    fn read_part(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let read = || SystemDisk.read_part(path, offset, length);
        self.look(Operation::Read, path, read)
    }

    fn copy_bytes(&self, from: &Path, to: &Path) -> io::Result<()> {
        let content = self.read_whole(from)?;
        self.create(to)?.write_at(&content, 0)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let remove = || SystemDisk.remove_file(path);
        self.change(Operation::Remove, path, remove, |path| Call::Remove {
            path: path.to_owned(),
        })
    }

    fn remove_empty(&self, path: &Path) -> io::Result<()> {
        let remove = || SystemDisk.remove_empty(path);
        self.change(Operation::Remove, path, remove, |path| Call::Remove {
            path: path.to_owned(),
        })
    }

    fn rename_file(&self, from: &Path, to: &Path) -> io::Result<()> {
        let to_name = self.name(to)?;
        let rename = || SystemDisk.rename_file(from, to);
        self.change(Operation::Rename, from, rename, |from| Call::Rename {
            from: from.to_owned(),
            to: to_name.to_owned(),
        })
    }

    fn has(&self, path: &Path) -> io::Result<bool> {
        match self.0.relative(path) {
            Some(_) => self.look(Operation::List, path, || SystemDisk.has(path)),
            None => SystemDisk.has(path),
        }
    }

    fn file_bytes(&self, path: &Path) -> io::Result<u64> {
        self.look(Operation::List, path, || SystemDisk.file_bytes(path))
    }

    fn volume_space(&self, path: &Path) -> io::Result<Space> {
        SystemDisk.volume_space(path)
    }
}

#[derive(Debug)]
struct RecordedFile {
    file: Box<dyn OpenFile>,
    inode: Inode,
    path: PathBuf,
    recorder: Arc<Recorder>,
}

impl RecordedFile {
    fn resize(&self, bytes: u64, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let (mut log, fault) = self.recorder.enter(Operation::Truncate, &self.path);
        if let Some(fault) = fault {
            return Err(fault.error());
        }
        act()?;
        log.record(Call::SetLength {
            inode: self.inode,
            bytes,
        });
        Ok(())
    }
}

impl Overwrite for RecordedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (mut log, fault) = self.recorder.enter(Operation::Write, &self.path);
        let (bytes, answer) = match fault {
            None => (bytes, Ok(())),
            Some(Fault::Short) => {
                let (half, _) = bytes.split_at(bytes.len() / 2);
                (half, Err(Fault::NoSpace.error()))
            }
            Some(fault) => return Err(fault.error()),
        };
        self.file.write_at(bytes, offset)?;
        log.record(Call::Write {
            inode: self.inode,
            offset,
            data: bytes.into(),
        });
        answer
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

impl OpenFile for RecordedFile {
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.resize(bytes, || self.file.allocate(bytes))
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.resize(bytes, || self.file.set_len(bytes))
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }

    fn sync_all(&self) -> io::Result<()> {
        let (mut log, fault) = self.recorder.enter(Operation::Sync, &self.path);
        if log.lies() {
            return Ok(());
        }
        let inode = self.inode;
        match fault {
            None => {
                log.record(Call::Sync { inode });
                Ok(())
            }
            Some(fault) => {
                log.sync_failed(self.recorder.root(), inode);
                Err(fault.error())
            }
        }
    }
}
