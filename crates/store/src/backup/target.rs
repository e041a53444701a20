//! The directory that a backup is written into: it must be empty, and is a backup once its manifest is there.
//! What an interrupted backup left there is known by its marker and cleaned up by the next one.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use wayhold_model::{Generation, ShardId, hash::FileChecksum};

use super::BackupError;
use super::manifest::{FileCopy, MANIFEST, Manifest, hexadecimal, is_ours};
use super::pace::Pace;
use crate::connection::{self, ConnectionError};
use crate::disk::{Disk, Overwrite, with_suffix};
use crate::shards::Name;

/// Name of the file that is there as long as the manifest is not.
pub(super) const UNFINISHED: &str = "unfinished";

/// Bytes of a file that are read at once.
const PIECE: usize = 1024 * 1024;

/// A backup that is being written.
pub(super) struct Target<'a> {
    disk: &'a dyn Disk,
    directory: PathBuf,
    files: Vec<FileCopy>,
    pace: &'a Pace<'a>,
}

impl<'a> Target<'a> {
    /// Makes the directory, or takes one that is empty but for what an interrupted backup left.
    pub(super) fn begin(
        disk: &'a dyn Disk,
        directory: &Path,
        pace: &'a Pace<'a>,
    ) -> Result<Self, BackupError> {
        let target = Self {
            disk,
            directory: directory.to_owned(),
            files: Vec::new(),
            pace,
        };
        let failed = |error: io::Error| target.unusable(error);
        if !disk.exists(directory).map_err(failed)? {
            target.make(directory).map_err(failed)?;
        }
        let mut names = files_below(disk, directory).map_err(failed)?;
        names.sort();
        let has = |name: &str| names.iter().any(|other| other == name);
        if has(MANIFEST) {
            return Err(target.unusable("it holds a backup already; choose an empty directory"));
        }
        let is_leaving = has(UNFINISHED);
        let ours = |name: &str| {
            let name = name.strip_suffix(".tmp").unwrap_or(name);
            is_leaving && (is_ours(without_companion(name)) || name == MANIFEST)
        };
        let foreign = names
            .iter()
            .find(|name| *name != UNFINISHED && *name != TEMPORARY_MARKER && !ours(name));
        if let Some(foreign) = foreign {
            return Err(target.unusable(format_args!(
                "it is not empty, {foreign} lies in it; choose an empty directory"
            )));
        }
        target.write(UNFINISHED, MARKER).map_err(failed)?;
        for name in names.iter().filter(|name| ours(name)) {
            disk.unlink(&directory.join(name)).map_err(failed)?;
        }
        Ok(target)
    }

    /// Makes the directory of a shard.
    pub(super) fn make_shard(
        &self,
        generation: Generation,
        shard: ShardId,
    ) -> Result<(), BackupError> {
        let parent = self.directory.join(format!("g{}", generation.0));
        let directory = parent.join(format!("s{}", shard.0));
        self.make(&parent)
            .and_then(|()| self.make(&directory))
            .map_err(|error| self.unusable(error))
    }

    /// Copies a database as the open transaction of `source` sees it.
    pub(super) fn add_database(
        &mut self,
        name: &str,
        vfs: Option<&str>,
        copy: impl FnOnce(
            &Path,
            Option<&str>,
            &mut dyn FnMut() -> io::Result<()>,
        ) -> Result<(), ConnectionError>,
    ) -> Result<(), ConnectionError> {
        let path = self.directory.join(name);
        let disk = self.disk;
        // Syncing as it grows: one sync of everything would hold up the store's own for as long.
        let mut file: Option<Box<dyn Overwrite>> = None;
        let pace = self.pace;
        let done = copy(&path, vfs, &mut || {
            let file = match &mut file {
                Some(file) => file,
                none => none.insert(disk.overwrite(&path)?),
            };
            pace.step(|| file.sync())
        });
        drop(file);
        done?;
        let synced = disk.overwrite(&path).and_then(|file| file.sync());
        synced
            .and_then(|()| disk.sync_directory(path.parent().unwrap_or(&self.directory)))
            .and_then(|()| self.note(name))
            .map_err(ConnectionError::Make)
    }

    /// Copies a file that is no open database. `false` where it is gone.
    pub(super) fn add_file(&mut self, from: &Path, name: &str) -> io::Result<bool> {
        let path = self.directory.join(name);
        match self.pace.step(|| self.disk.copy(from, &path)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.disk.exists(from)? => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        owner_only(&path, 0o600)?;
        self.note(name)?;
        Ok(true)
    }

    /// Where a file of that name lies.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Takes a file that the caller put there, durably.
    pub(super) fn note(&mut self, name: &str) -> io::Result<()> {
        let path = self.directory.join(name);
        let (bytes, checksum) = checksum_of(self.disk, &path)?;
        self.pace.copied(bytes);
        self.files.push(FileCopy {
            name: name.to_owned(),
            bytes,
            checksum,
        });
        Ok(())
    }

    /// Writes the manifest: from then on it is a backup.
    pub(super) fn finish(
        self,
        manifest: impl FnOnce(Vec<FileCopy>) -> Manifest,
    ) -> Result<Manifest, BackupError> {
        let mut files = self.files.clone();
        files.sort_by(|one, other| one.name.cmp(&other.name));
        let manifest = manifest(files);
        let failed = |error: io::Error| self.unusable(error);
        self.write(MANIFEST, &manifest.encode()).map_err(failed)?;
        let marker = self.directory.join(UNFINISHED);
        self.disk.unlink(&marker).map_err(failed)?;
        Ok(manifest)
    }

    /// Free bytes of its volume.
    pub(super) fn free(&self) -> Result<u64, BackupError> {
        let space = self.disk.space(&self.directory);
        Ok(space.map_err(|error| self.unusable(error))?.free)
    }

    /// The destination cannot be used.
    pub(super) fn unusable(&self, reason: impl std::fmt::Display) -> BackupError {
        BackupError::Destination {
            path: self.directory.clone(),
            reason: reason.to_string(),
        }
    }

    fn make(&self, directory: &Path) -> io::Result<()> {
        self.disk.create_directory(directory)?;
        owner_only(directory, 0o700)
    }

    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.directory.join(name);
        self.disk.replace(&path, content)?;
        owner_only(&path, 0o600)
    }
}

/// What the marker says to a person.
const MARKER: &[u8] = b"A backup into this directory was begun and is not complete. \
    Make it again into this directory, or remove it.\n";

/// Name of the marker while it is written.
const TEMPORARY_MARKER: &str = "unfinished.tmp";

/// The database that a file of SQLite's belongs to.
fn without_companion(name: &str) -> &str {
    crate::disk::DATABASE_SUFFIXES
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name)
}

/// The name of a shard's file below the directory.
pub(super) fn name_of(shard: Name, file: &str) -> String {
    format!("g{}/s{}/{file}", shard.0.0, shard.1.0)
}

/// Length and checksum of a file.
pub(super) fn checksum_of(disk: &dyn Disk, path: &Path) -> io::Result<(u64, String)> {
    let length = disk.len(path)?;
    let mut checksum = FileChecksum::default();
    let mut offset = 0;
    while offset < length {
        let piece = disk.read_range(path, offset, PIECE)?;
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        checksum.add(&piece);
        offset += piece.len() as u64;
    }
    Ok((length, hexadecimal(checksum.value())))
}

/// Files below a directory, at most two directories deep, which is as deep as a backup goes; what lies deeper
/// is named by its directory.
pub(super) fn files_below(disk: &dyn Disk, directory: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    let mut open = vec![(PathBuf::new(), 0)];
    while let Some((relative, depth)) = open.pop() {
        for name in disk.list(&directory.join(&relative))? {
            let relative = relative.join(name);
            let is_directory = directory.join(&relative).is_dir();
            if is_directory && depth < 2 {
                open.push((relative, depth + 1));
            } else {
                files.push(relative.to_string_lossy().into_owned());
            }
        }
    }
    Ok(files)
}

/// A copy is for its owner alone, as what it is a copy of.
pub(super) fn owner_only(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Copies the database behind a connection, which reads it in a transaction of its own meanwhile.
pub(super) fn copy_connection(
    connection: &Connection,
    path: &Path,
    vfs: Option<&str>,
    after: impl FnMut() -> io::Result<()>,
) -> Result<(), ConnectionError> {
    let moment = connection.unchecked_transaction()?;
    moment.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    connection::copy(&moment, path, vfs, after)
}

/// The log beside a database.
pub(super) fn log_of(path: &Path) -> PathBuf {
    with_suffix(path, "-wal")
}
