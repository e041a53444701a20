//! Makes a store of a backup in an empty directory. It is another node: what it accepts lies in a generation of
//! its own, so that its receipts name no place that the original gives or ever gave, and every destination is
//! paused, so that it does not forward beside the original until somebody says so.
//!
//! Nothing is written before every file of the backup was verified. A marker is the first file that is written
//! and the last that goes; as long as it is there the directory cannot be opened, and the same restore can
//! be repeated.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use wayhold_model::{Clock, Timestamp};

use super::manifest::{FileCopy, MANIFEST, Manifest, Unreadable};
use super::target::{UNFINISHED, checksum_of, files_below, owner_only};
use crate::catalog::{Anew, CatalogError, renew};
use crate::disk::{DATABASE_SUFFIXES, Disk, SystemDisk, unlink_database, with_suffix};
use crate::opening::lock_directory;

/// Name of the file that is in the data directory as long as a restore is not complete.
const RESTORING: &str = "restoring";

/// Name of the catalogue while it is made the new node's.
const CATALOG_ON_ITS_WAY: &str = "catalog.db.restoring";

/// What was restored.
#[derive(Clone, Debug)]
pub struct Restored {
    /// What the backup was.
    pub manifest: Manifest,
    /// The name of the new node.
    pub node_id: String,
    /// The generation that takes new events.
    pub generation: u32,
    /// Destinations that are paused now.
    pub paused: Vec<String>,
}

/// Nothing was restored, or not all; the directory cannot be opened as a store.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// The backup is not whole: nothing was written. Take another one.
    #[error("the backup in {path} cannot be used: {}", problems.join("; "))]
    Backup {
        /// Its directory.
        path: PathBuf,
        /// Everything that is wrong with it.
        problems: Vec<String>,
    },
    /// A newer version made it; run that. Nothing was written.
    #[error("{file} has format {found}, this binary knows up to {known}; run the newer version")]
    Newer {
        /// The manifest.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// The destination is not an empty directory, or is in use. Nothing was written.
    #[error("cannot restore into {path}: {reason}")]
    Destination {
        /// The data directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file could not be written; repeat the restore once that is mended.
    #[error("{path}: {reason}; the restore is not complete, repeat it")]
    Failed {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

/// Restores the backup in `from` into `data`, which is empty or absent, in the name of `by`. Blocking.
///
/// # Errors
/// Says what to do.
pub fn restore(
    from: &Path,
    data: &Path,
    by: &str,
    clock: &Arc<dyn Clock>,
) -> Result<Restored, RestoreError> {
    restore_on(&SystemDisk, (from, data), by, clock)
}

/// The same with another file access, for fault injection.
///
/// # Errors
/// As of `restore`.
pub fn restore_on(
    disk: &dyn Disk,
    (from, data): (&Path, &Path),
    by: &str,
    clock: &Arc<dyn Clock>,
) -> Result<Restored, RestoreError> {
    let manifest = verify(disk, from)?;
    let refused = |reason: String| RestoreError::Destination {
        path: data.to_owned(),
        reason,
    };
    // Held until the end; an absent directory is made for its owner alone.
    let _lock = lock_directory(data, disk).map_err(|error| refused(error.to_string()))?;
    let marker = data.join(RESTORING);
    let names = files_below(disk, data).map_err(|error| refused(error.to_string()))?;
    if disk
        .exists(&marker)
        .map_err(|error| refused(error.to_string()))?
    {
        let begun = disk.read(&marker).unwrap_or_default();
        if begun != manifest.checksum().as_bytes() {
            let reason = "a restore of another backup was begun there; choose an empty directory";
            return Err(refused(reason.to_owned()));
        }
    } else if let Some(name) = names
        .iter()
        .find(|name| *name != "LOCK" && *name != RESTORING_ON_ITS_WAY)
    {
        return Err(refused(format!(
            "it is not empty, {name} lies in it; choose an empty directory"
        )));
    }
    let restoring = Restoring {
        disk,
        from,
        data,
        manifest,
    };
    restoring.run(by, clock.now())
}

/// Name of the marker while it is written.
const RESTORING_ON_ITS_WAY: &str = "restoring.tmp";

/// Refuses a directory in which a restore is not complete.
pub(crate) fn require_restored(directory: &Path, disk: &dyn Disk) -> Result<(), CatalogError> {
    let path = directory.join(RESTORING);
    match disk.exists(&path) {
        Ok(false) => Ok(()),
        Ok(true) => Err(CatalogError::Unusable {
            path,
            reason: "a restore into this directory is not complete; repeat it".to_owned(),
        }),
        Err(error) => Err(CatalogError::Unusable {
            path,
            reason: error.to_string(),
        }),
    }
}

/// Reads the whole backup and compares it with its manifest.
fn verify(disk: &dyn Disk, from: &Path) -> Result<Manifest, RestoreError> {
    let unusable = |problems| RestoreError::Backup {
        path: from.to_owned(),
        problems,
    };
    let file = from.join(MANIFEST);
    let text = match disk.read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let reason = "it has no manifest.json: it is not a backup, or one that is not complete";
            return Err(unusable(vec![reason.to_owned()]));
        }
        Err(error) => return Err(unusable(vec![format!("{MANIFEST}: {error}")])),
    };
    let manifest = Manifest::decode(&text).map_err(|reason| match reason {
        Unreadable::Damaged(reason) => unusable(vec![format!("{MANIFEST}: {reason}")]),
        Unreadable::Newer(found) => RestoreError::Newer {
            file,
            found,
            known: super::manifest::FORMAT,
        },
    })?;
    let mut problems: Vec<String> = manifest
        .files
        .iter()
        .filter_map(|file| Some(format!("{}: {}", file.name, problem_of(disk, from, file)?)))
        .collect();
    let present = files_below(disk, from).map_err(|error| unusable(vec![error.to_string()]))?;
    let is_known = |name: &String| {
        name == MANIFEST
            || name == UNFINISHED
            || manifest.files.iter().any(|file| file.name == *name)
    };
    let foreign = present.iter().filter(|name| !is_known(name));
    problems.extend(foreign.map(|name| format!("{name}: it is no part of the backup")));
    problems.sort();
    match problems.is_empty() {
        true => Ok(manifest),
        false => Err(unusable(problems)),
    }
}

/// What is wrong with a file of the backup.
fn problem_of(disk: &dyn Disk, from: &Path, file: &FileCopy) -> Option<String> {
    let Some(path) = file.below(from) else {
        return Some("no backup has a file of that name".to_owned());
    };
    match disk.len(&path) {
        Ok(bytes) if bytes != file.bytes => {
            return Some(format!("it has {bytes} bytes; expected {}", file.bytes));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some("it is missing".to_owned());
        }
        Err(error) => return Some(error.to_string()),
    }
    match checksum_of(disk, &path) {
        Ok((_, checksum)) if checksum == file.checksum => None,
        Ok(_) => Some("it is damaged: its content does not match its checksum".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

struct Restoring<'a> {
    disk: &'a dyn Disk,
    from: &'a Path,
    data: &'a Path,
    manifest: Manifest,
}

impl Restoring<'_> {
    fn run(self, by: &str, now: Timestamp) -> Result<Restored, RestoreError> {
        let disk = self.disk;
        let marker = self.data.join(RESTORING);
        disk.replace(&marker, self.manifest.checksum().as_bytes())
            .map_err(|error| failed(&marker, &error))?;
        // Before anything of the backup: an earlier try may have come as far as this.
        let catalog = self.data.join("catalog.db");
        unlink_database(disk, &catalog).map_err(|error| failed(&catalog, &error))?;
        for shard in &self.manifest.shards {
            let parent = self.data.join(format!("g{}", shard.generation));
            let directory = parent.join(format!("s{}", shard.shard));
            for directory in [&parent, &directory] {
                disk.create_directory(directory)
                    .and_then(|()| owner_only(directory, 0o700))
                    .map_err(|error| failed(directory, &error))?;
            }
        }
        let (catalogs, files): (Vec<_>, Vec<_>) = self
            .manifest
            .files
            .iter()
            .partition(|file| file.name.starts_with("catalog.db"));
        for file in files {
            self.copy(&file.name, &self.data.join(&file.name))?;
        }
        let anew = self.renew_catalog(&catalogs, (by, now))?;
        disk.unlink(&marker)
            .map_err(|error| failed(&marker, &error))?;
        Ok(Restored {
            node_id: anew.node_id,
            generation: anew.generation.0,
            paused: anew.paused,
            manifest: self.manifest,
        })
    }

    fn copy(&self, name: &str, to: &Path) -> Result<(), RestoreError> {
        self.disk
            .copy(&self.from.join(name), to)
            .and_then(|()| owner_only(to, 0o600))
            .map_err(|error| failed(to, &error))
    }

    /// Makes the catalogue that of another node, beside its place, and then puts it there.
    fn renew_catalog(
        &self,
        catalogs: &[&FileCopy],
        (by, now): (&str, Timestamp),
    ) -> Result<Anew, RestoreError> {
        let disk = self.disk;
        let aside = self.data.join(CATALOG_ON_ITS_WAY);
        unlink_database(disk, &aside).map_err(|error| failed(&aside, &error))?;
        for file in catalogs {
            let name = file.name.replace("catalog.db", CATALOG_ON_ITS_WAY);
            self.copy(&file.name, &self.data.join(name))?;
        }
        let reason = format!(
            "restored from the backup of {} of node {}; resume it when the original sends no more",
            Timestamp::from_micros(self.manifest.begun_at),
            self.manifest.node_id
        );
        let anew = renew(&aside, by, &reason, now).map_err(|error| failed(&aside, &error))?;
        let catalog = self.data.join("catalog.db");
        // The log is empty; left behind, nobody would know whose it was.
        for suffix in DATABASE_SUFFIXES {
            let companion = with_suffix(&aside, suffix);
            disk.unlink(&companion)
                .map_err(|error| failed(&companion, &error))?;
        }
        disk.overwrite(&aside)
            .and_then(|file| file.sync())
            .and_then(|()| disk.rename(&aside, &catalog))
            .map_err(|error| failed(&catalog, &error))?;
        Ok(anew)
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> RestoreError {
    RestoreError::Failed {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}
