//! A backup of a stopped store: with its lock nobody else has a file of it open, so the files are copied as
//! they are, with whatever the last run left, and the copy starts as the original would.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wayhold_model::{Clock, ShardId};

use super::manifest::{FORMAT, Manifest, ShardCopy, is_of_shard};
use super::online::{outside, source};
use super::pace::Pace;
use super::target::{Target, log_of, name_of};
use super::{BackupError, Progress};
use crate::commands;
use crate::disk::{Disk, SystemDisk};
use crate::error::OpenError;
use crate::shard::mark::{self, MARK};
use crate::shards::{Name, Owner};
use crate::store::Store;

impl Store {
    /// Copies the stopped store in `data` into `to`, an empty or absent directory. Blocking.
    ///
    /// # Errors
    /// Says what to do; what lies in the directory then is no backup. `Source` also where the store runs.
    pub fn back_up_stopped(
        data: &Path,
        to: &Path,
        clock: &Arc<dyn Clock>,
        progress: &Progress,
    ) -> Result<Manifest, BackupError> {
        back_up_on(&SystemDisk, (data, to), clock, progress)
    }
}

/// The same with another file access.
pub(super) fn back_up_on(
    disk: &dyn Disk,
    (data, to): (&Path, &Path),
    clock: &Arc<dyn Clock>,
    progress: &Progress,
) -> Result<Manifest, BackupError> {
    let catalog_file = data.join("catalog.db");
    if !disk.exists(&catalog_file).unwrap_or(false) {
        return Err(source(&catalog_file, &"it is not there"));
    }
    outside(data, to)?;
    let alone = Store::catalog_alone(data, Arc::clone(clock)).map_err(|error| match error {
        OpenError::Unusable { path, reason } => source(&path, &reason),
        other => source(data, &other),
    })?;
    let catalog = &alone.catalog;
    let begun_at = clock.now().as_micros();
    let pace = Pace::alone(&progress.copied);
    let mut shards = Vec::new();
    let mut files = Vec::new();
    for generation in catalog.generations() {
        for id in (0..generation.shards).map(ShardId) {
            let shard = Name(generation.generation, id);
            let directory = data.join(name_of(shard, ""));
            // One that was named and not made yet holds nothing.
            let names = match disk.list(&directory) {
                Ok(names) => names,
                Err(error) if error.kind() == io::ErrorKind::NotFound && !generation.made => {
                    continue;
                }
                Err(error) => return Err(source(&directory, &error)),
            };
            let names = names.into_iter().filter_map(|name| name.into_string().ok());
            let mut names: Vec<String> = names.filter(|name| is_of_shard(name)).collect();
            names.sort();
            files.extend(names.into_iter().map(|name| name_of(shard, &name)));
            shards.push(shard);
        }
    }
    files.push("catalog.db".to_owned());
    let log = log_of(&catalog_file);
    if disk.len(&log).is_ok_and(|bytes| bytes > 0) {
        files.push("catalog.db-wal".to_owned());
    }
    let commands_file = data.join(commands::FILE);
    if disk.exists(&commands_file).unwrap_or(false) {
        files.push(commands::FILE.to_owned());
        if disk
            .len(&log_of(&commands_file))
            .is_ok_and(|bytes| bytes > 0)
        {
            files.push(format!("{}-wal", commands::FILE));
        }
    }
    let bytes = |name: &String| disk.len(&data.join(name)).unwrap_or(0);
    let expected: u64 = files.iter().map(bytes).sum();
    progress.expected.store(expected, Ordering::Relaxed);
    let mut target = Target::begin(disk, to, &pace)?;
    if target.free()? < expected {
        return Err(target.unusable(format_args!(
            "its volume has less than the {expected} free bytes that are needed"
        )));
    }
    for shard in &shards {
        target.make_shard(shard.0, shard.1)?;
    }
    for name in &files {
        let path = data.join(name);
        match target.add_file(&path, name) {
            Ok(true) => {}
            Ok(false) => return Err(source(&path, &"it went away")),
            Err(error) => return Err(source(&path, &error)),
        }
    }
    let shards = shards.into_iter().map(|shard| ShardCopy {
        generation: shard.0.0,
        shard: shard.1.0,
        last_sequence: last_marked(
            disk,
            &target.path(&name_of(shard, MARK)),
            Owner::new(shard.0, shard.1, catalog.hash_seed()),
        ),
        last_accepted_at: None,
    });
    let shards = shards.collect();
    let node_id = catalog.node_id().to_owned();
    let made_at = clock.now().as_micros();
    target.finish(|files| Manifest {
        format: FORMAT,
        node_id,
        begun_at,
        made_at,
        online: false,
        shards,
        files,
        left_out: Vec::new(),
    })
}

/// The last sequence that a copied mark speaks of.
fn last_marked(disk: &dyn Disk, path: &Path, owner: Owner) -> u64 {
    if !disk.exists(path).unwrap_or(false) {
        return 0;
    }
    let found = disk.read(path).ok();
    let mark = found.and_then(|bytes| mark::read(&bytes, owner).ok()?.mark());
    let reaches = mark.into_iter().flat_map(|mark| mark.reaches);
    reaches.map(|reach| reach.last).max().unwrap_or(0)
}
