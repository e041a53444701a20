//! Removes what is left of generations that are retired. The catalogue has said so before, so every step may
//! be repeated after a crash, and a generation of which half is gone is no fault.
//!
//! What the store does not know, or has put aside, is left where it is and named.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use wayhold_model::Generation;

use crate::catalog::CatalogError;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::opening::{Ground, unusable};
use crate::shard::mark::MARK;

/// Finishes removals that a crash cut short; one sentence per directory that has to stay. Directories that
/// the catalogue does not know are a fault: it is older than they are.
pub(crate) fn remove_retired(ground: &Ground) -> Result<Vec<String>, OpenError> {
    let known = ground.catalog.generations();
    let names = ground.disk.list(&ground.dir);
    let names = names.map_err(|error| unusable(&ground.dir, error))?;
    let mut findings = Vec::new();
    for generation in names.iter().filter_map(number) {
        if known.iter().any(|one| one.generation == generation) {
            continue;
        }
        let dir = ground.generation_dir(generation);
        let unreadable = |error: CatalogError| unusable(&ground.dir.join("catalog.db"), error);
        if !ground.catalog.is_retired(generation).map_err(unreadable)? {
            return Err(unusable(&dir, UNKNOWN));
        }
        let removed = remove_generation(ground, generation);
        findings.extend(removed.map_err(|error| unusable(&dir, error))?);
    }
    Ok(findings)
}

/// Why a start is refused rather than a directory ignored.
const UNKNOWN: &str = "holds shards that the catalogue does not know; restore the catalogue that belongs to \
                       them, or move the directory away to go on without whatever it holds";

/// Removes the directories of a generation that the catalogue names as retired.
pub(crate) fn remove_generation(
    ground: &Ground,
    generation: Generation,
) -> io::Result<Option<String>> {
    let disk = ground.disk.as_ref();
    let dir = ground.generation_dir(generation);
    let mut is_left = false;
    for shard in listed(disk, &dir)? {
        let shard = dir.join(shard);
        for name in listed(disk, &shard)? {
            if is_ours(&name) {
                disk.unlink(&shard.join(name))?;
                failpoint!("retire.file-removed");
            } else {
                is_left = true;
            }
        }
        if !is_left {
            disk.remove_directory(&shard)?;
            failpoint!("retire.shard-removed");
        }
    }
    if is_left {
        let dir = dir.display();
        return Ok(Some(format!(
            "{dir} is no longer needed, but holds files that were put aside or are not the store's"
        )));
    }
    disk.remove_directory(&dir)?;
    Ok(None)
}

/// The number of a generation's directory.
fn number(name: &OsString) -> Option<Generation> {
    let number = name.to_str()?.strip_prefix('g')?;
    number.parse().ok().map(Generation)
}

fn listed(disk: &dyn Disk, directory: &Path) -> io::Result<Vec<OsString>> {
    match disk.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}

/// Whether a file of a retired shard is the store's and of no use to anybody. That every event of it was
/// resolved and forgotten was found before it was retired.
fn is_ours(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    let is_numbered = name
        .split('.')
        .next()
        .is_some_and(|stem| !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_digit()));
    let is_known = name == MARK || name.starts_with("state") || is_numbered;
    (is_known || name.ends_with(".tmp")) && !name.contains(".quarantined.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_aside_or_is_a_strangers_is_not_ours() {
        let ours = |name: &str| is_ours(&OsString::from(name));
        for name in [
            "mark",
            "mark.tmp",
            "state-3.db",
            "state-3.db-wal",
            "7.idx",
            "7.db.gone",
        ] {
            assert!(ours(name), "{name}");
        }
        for name in [
            "7.db.quarantined.1",
            "state-3.db.quarantined.1-wal",
            "notes",
            ".",
            "x.db",
        ] {
            assert!(!ours(name), "{name}");
        }
    }
}
