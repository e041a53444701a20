//! What lies in a shard's directory: files by their meaning. Our own leftovers are finished or removed, and what nobody
//! knows is put aside, never deleted.

use std::collections::BTreeSet;

use super::mark::MARK;
use super::recovery::{Opening, unusable};
use super::segment::database_path;
use crate::disk::{making, quarantine, unlink_companions, unlink_database};
use crate::error::OpenError;

/// The files of a shard by their meaning.
#[derive(Default)]
pub(super) struct Files {
    pub(super) databases: BTreeSet<u64>,
    pub(super) indexes: BTreeSet<u64>,
    /// Compacted segments that were not put in place.
    unfinished: BTreeSet<u64>,
    /// Highest number that any name holds.
    pub(super) highest: u64,
}

impl Opening<'_> {
    pub(super) fn sort_files(&self) -> Result<Files, OpenError> {
        let mut files = Files::default();
        let names = self
            .disk()
            .list(self.dir())
            .map_err(|error| unusable(self.dir(), &error))?;
        let names: Vec<String> = names
            .into_iter()
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        for name in &names {
            let (number, rest) = parse(name);
            files.highest = files.highest.max(number.unwrap_or(0));
            match (number, rest) {
                (Some(number), Some("db")) => {
                    files.databases.insert(number);
                }
                (Some(number), Some("idx")) => {
                    files.indexes.insert(number);
                }
                (Some(number), Some("db.new")) => {
                    files.unfinished.insert(number);
                }
                _ => {}
            }
        }
        self.finish_compactions(&mut files)?;
        for name in names {
            self.judge(&name, &files)?;
        }
        Ok(files)
    }

    /// A compacted segment counts once its index file is there: then it is put in place. Before, it is as if it
    /// had never been begun.
    fn finish_compactions(&self, files: &mut Files) -> Result<(), OpenError> {
        for number in std::mem::take(&mut files.unfinished) {
            let path = database_path(self.dir(), number);
            let made = making(&path);
            let is_done = files.indexes.contains(&number) && !files.databases.contains(&number);
            let finished = match is_done {
                true => unlink_companions(self.disk(), &made)
                    .and_then(|()| self.disk().rename(&made, &path)),
                false => unlink_database(self.disk(), &made),
            };
            finished.map_err(|error| unusable(&made, &error))?;
            if is_done {
                files.databases.insert(number);
            }
        }
        Ok(())
    }

    /// Removes our own leftovers and quarantines what nobody knows.
    fn judge(&self, name: &str, files: &Files) -> Result<(), OpenError> {
        let path = self.dir().join(name);
        let (number, rest) = parse(name);
        let ours = name == MARK || name.starts_with("state") || name.contains(".quarantined.");
        match (number, rest) {
            _ if ours => Ok(()),
            (Some(_), Some("db" | "idx")) => Ok(()),
            (Some(number), Some("db-wal" | "db-shm" | "db-journal"))
                if files.databases.contains(&number) =>
            {
                Ok(())
            }
            // The database was removed; its index file knows it.
            (Some(number), Some("db-wal" | "db-shm" | "db-journal"))
                if files.indexes.contains(&number) =>
            {
                self.disk()
                    .unlink(&path)
                    .map_err(|error| unusable(&path, &error))
            }
            // A database has a journal only while it is made: without one nothing was ever in it.
            (Some(_), Some("db-journal")) => self
                .disk()
                .unlink(&path)
                .map_err(|error| unusable(&path, &error)),
            // Of a compacted segment; see above.
            (Some(_), Some("db.new" | "db.new-wal" | "db.new-shm" | "db.new-journal")) => self
                .disk()
                .unlink(&path)
                .map_err(|error| unusable(&path, &error)),
            // A database that is resolved and was being removed, and a temporary name: a whole file is only
            // ever put in place by rename.
            _ if name.ends_with(".tmp") || (number.is_some() && rest == Some("db.gone")) => self
                .disk()
                .unlink(&path)
                .map_err(|error| unusable(&path, &error)),
            _ => {
                let aside =
                    quarantine(self.disk(), &path).map_err(|error| unusable(&path, &error))?;
                self.condition.degraded(format!(
                    "{} is not a file of this store; it was put aside as {}",
                    path.display(),
                    aside.display()
                ));
                Ok(())
            }
        }
    }
}

/// Number and ending of a name. A number that counting up would never reach is a stranger's.
pub(super) fn parse(name: &str) -> (Option<u64>, Option<&str>) {
    const NUMBER_MAX: u64 = u64::MAX / 2;
    let (stem, rest) = match name.split_once('.') {
        Some((stem, rest)) => (stem, Some(rest)),
        None => (name, None),
    };
    let number = stem.parse().ok().filter(|number| *number <= NUMBER_MAX);
    (number, rest)
}
