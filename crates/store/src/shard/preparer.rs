//! Makes the next segment's file before it is needed, so that no request waits for one. A thread of its
//! own: a rendezvous with the writer keeps exactly one file ready and numbers in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{error, warn};

use super::index_file::Identity;
use super::recent::Recent;
use super::segment::{Segment, database_path};
use super::segment_file::SegmentWriter;
use crate::connection::ConnectionError;
use crate::disk::{Disk, unlink_database};

/// A new, empty segment.
pub(crate) struct Prepared {
    pub(crate) file: SegmentWriter,
    pub(crate) segment: Segment,
}

/// What a new segment is made with.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: std::path::PathBuf,
    pub(crate) generation: u32,
    pub(crate) shard: u16,
    pub(crate) hash_seed: u64,
    pub(crate) page_size: u32,
    pub(crate) vfs: Option<String>,
}

/// How long to wait before trying again to make a file.
const RETRY: Duration = Duration::from_millis(200);

impl Recipe {
    /// Makes segment `number`. A file whose making failed is removed: it holds nothing, and its name must
    /// not stand in the way of the next try.
    pub(crate) fn make(&self, number: u64) -> Result<Prepared, ConnectionError> {
        let made = self.create(number);
        if made.is_err() {
            let path = database_path(&self.dir, number);
            if let Err(error) = unlink_database(self.disk.as_ref(), &path) {
                warn!(number, %error, "an unfinished segment cannot be removed; the next start does");
            }
        }
        made
    }

    fn create(&self, number: u64) -> Result<Prepared, ConnectionError> {
        let identity = Identity {
            generation: self.generation,
            shard: self.shard,
            number,
            uuid: draw_uuid()?,
            covers: None,
        };
        failpoint!("prepare.before-creating");
        let path = database_path(&self.dir, number);
        let settings = (self.page_size, self.vfs.as_deref());
        let file = SegmentWriter::create(
            self.disk.as_ref(),
            &path,
            identity,
            self.hash_seed,
            settings,
        )?;
        Ok(Prepared {
            file,
            segment: Segment::unindexed(&self.dir, identity, Recent::default()),
        })
    }
}

/// What tells a segment from every other.
pub(super) fn draw_uuid() -> Result<u128, ConnectionError> {
    let mut uuid = [0; 16];
    getrandom::fill(&mut uuid)
        .map_err(|error| ConnectionError::Make(std::io::Error::other(error)))?;
    Ok(u128::from_le_bytes(uuid))
}

/// Starts making segments, each with the next number. The thread ends when the receiver is dropped, and takes the
/// unused file with it; `stop` ends it even while no file can be made.
pub(crate) fn start(
    recipe: Recipe,
    numbers: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> std::io::Result<(Receiver<Prepared>, JoinHandle<()>)> {
    let (sender, receiver) = sync_channel(0);
    let thread = std::thread::Builder::new()
        .name(format!("g{}.s{}-prepare", recipe.generation, recipe.shard))
        .spawn(move || run(&recipe, &numbers, &sender, &stop))?;
    Ok((receiver, thread))
}

fn run(recipe: &Recipe, numbers: &AtomicU64, sender: &SyncSender<Prepared>, stop: &AtomicBool) {
    let mut is_failing = false;
    while !stop.load(Ordering::Acquire) {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let prepared = match recipe.make(number) {
            Ok(prepared) => prepared,
            Err(failure) => {
                // Once per trouble: a full disk may stay full for hours.
                if !std::mem::replace(&mut is_failing, true) {
                    error!(number, error = %failure, "a new segment cannot be made; trying again");
                }
                std::thread::sleep(RETRY);
                continue;
            }
        };
        is_failing = false;
        failpoint!("prepare.made");
        if let Err(unused) = sender.send(prepared) {
            let Prepared { file, segment } = unused.0;
            drop(file);
            // It never held a row; left behind, the next start would remove it.
            drop(unlink_database(recipe.disk.as_ref(), &segment.path));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    #[test]
    fn a_file_that_could_not_be_made_does_not_stand_in_the_way_of_the_next_try() {
        let dir = tempfile::tempdir().unwrap();
        let mut recipe = Recipe {
            disk: Arc::new(SystemDisk),
            dir: dir.path().to_owned(),
            generation: 1,
            shard: 0,
            hash_seed: 1,
            page_size: 4096,
            vfs: Some("absent".to_owned()),
        };
        assert!(recipe.make(1).is_err());
        assert!(SystemDisk.list(dir.path()).unwrap().is_empty());
        recipe.vfs = None;
        recipe.make(1).unwrap();
    }
}
