//! A backup of a running store.
//!
//! Commands first. Then per shard: its segments are pinned, so that nothing of them goes, and none is compacted until the end; its
//! state file is copied; then its sealed segments with their index files, and last, close together for all shards,
//! what has come since and the active segment. What is acknowledged after that copy is not in the backup. Then the
//! catalogue, which knows every destination that the copied events name, and the manifest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};

use super::manifest::{FORMAT, Manifest, ShardCopy};
use super::pace::{Pace, Stop};
use super::target::{Target, copy_connection, name_of, owner_only};
use super::{BackupError, Progress};
use crate::commands;
use crate::shard::core::{HeldSegments, Shard};
use crate::shard::mark::{MARK, Mark, MarkFile, Reach};
use crate::shard::readers::RowsError;
use crate::shard::segment::{Pin, Segment};
use crate::shard::segment_file::SegmentReader;
use crate::shards::{Name, Owner};
use crate::store::{Inner, Store};

impl Store {
    /// Copies the store into `to`, an empty or absent directory, while it goes on accepting and delivering.
    /// What was acknowledged before is in the copy, as pending or as resolved. Blocking, for as long as
    /// reading and writing everything at half of the disk's speed takes.
    ///
    /// # Errors
    /// Says what to do; what lies in the directory then is no backup.
    pub fn back_up(&self, to: &Path, progress: &Progress) -> Result<Manifest, BackupError> {
        let inner = self.inner();
        let _only_one = match inner.backing_up.try_lock() {
            Ok(guard) => guard,
            // It ended by a fault of its own and left nothing that counts.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(BackupError::Running),
        };
        let stop = || {
            if inner.stopping.load(Ordering::Acquire) {
                Some(Stop::Stopping)
            } else {
                (inner.space.wanted() > 0).then_some(Stop::Low)
            }
        };
        let pace = Pace::beside(&stop, &progress.copied);
        let backup = Backup::begin(inner, to, &pace)?;
        // Whatever failed because of it, this is the reason.
        backup.run(progress).map_err(|error| match stop() {
            Some(Stop::Stopping) => BackupError::Stopping,
            Some(Stop::Low) => BackupError::NoSpace,
            None => error,
        })
    }
}

struct Backup<'a> {
    inner: &'a Inner,
    begun_at: u64,
    target: Target<'a>,
    left_out: Vec<String>,
}

/// One shard on its way into the backup.
struct Copying {
    shard: Arc<Shard>,
    /// Segments with a database that are not copied yet, ascending.
    pinned: Vec<Pin>,
    /// Numbers of segments whose index files are in it.
    indexed: BTreeSet<u64>,
    /// Nothing is compacted meanwhile.
    _held: HeldSegments,
    /// How far the copied segments of the writer's reach, newest first.
    reaches: Vec<Reach>,
    /// The last sequence of what is copied.
    copied: u64,
    last_accepted_at: Option<u64>,
}

impl<'a> Backup<'a> {
    fn begin(inner: &'a Inner, to: &Path, pace: &'a Pace<'a>) -> Result<Self, BackupError> {
        outside(&inner.ground.dir, to)?;
        Ok(Self {
            begun_at: inner.clock.now().as_micros(),
            target: Target::begin(inner.ground.disk.as_ref(), to, pace)?,
            left_out: Vec::new(),
            inner,
        })
    }

    fn run(mut self, progress: &Progress) -> Result<Manifest, BackupError> {
        let generations = self.inner.catalog.generations();
        let mut copying: Vec<Copying> = {
            let map = self.inner.shards.map();
            map.all().map(Copying::of).collect()
        };
        let expected = copying.iter().map(Copying::bytes).sum();
        progress.expected.store(expected, Ordering::Relaxed);
        if self.target.free()? < expected {
            return Err(self.target.unusable(format_args!(
                "its volume has less than the {expected} free bytes that are needed"
            )));
        }
        // First of all: what it calls handed over must be among the events, and what was handed over later is again.
        self.copy_commands()?;
        failpoint!("backup.before-states");
        for one in &mut copying {
            self.copy_state(one)?;
        }
        failpoint!("backup.before-sealed");
        for one in &mut copying {
            self.copy_segments(one, Segment::is_closed)?;
        }
        failpoint!("backup.before-active");
        for one in &mut copying {
            if planted!("backup-without-its-end") {
                continue;
            }
            one.pin_new();
            self.copy_segments(one, |_| true)?;
        }
        for one in &copying {
            self.write_mark(one)?;
        }
        self.copy_catalog()?;
        if self.inner.catalog.generations() != generations {
            return Err(BackupError::Resharded);
        }
        failpoint!("backup.before-manifest");
        let made_at = self.inner.clock.now().as_micros();
        let (begun_at, left_out) = (self.begun_at, self.left_out);
        let node_id = self.inner.catalog.node_id().to_owned();
        self.target.finish(|files| Manifest {
            format: FORMAT,
            node_id,
            begun_at,
            made_at,
            online: true,
            shards: copying.iter().map(Copying::summary).collect(),
            files,
            left_out,
        })
    }

    fn copy_state(&mut self, copying: &Copying) -> Result<(), BackupError> {
        let shard = &copying.shard;
        self.target.make_shard(shard.generation, shard.id)?;
        let (path, connection) = shard
            .progress
            .reader_for_copy()
            .map_err(|(path, error)| source(&path, &error))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name_of(copying.name(), &name);
        let vfs = shard.options.vfs.as_deref();
        self.target
            .add_database(&name, vfs, |to, vfs, after| {
                copy_connection(&connection, to, vfs, after)
            })
            .map_err(|error| source(&path, &error))
    }

    /// Copies those of the pinned segments that are wanted now, and index files that are not copied yet.
    fn copy_segments(
        &mut self,
        copying: &mut Copying,
        wanted: impl Fn(&Segment) -> bool,
    ) -> Result<(), BackupError> {
        let ready = copying.pinned.iter().take_while(|segment| wanted(segment));
        let later = copying.pinned.split_off(ready.count());
        for segment in std::mem::replace(&mut copying.pinned, later) {
            self.copy_segment(copying, &segment)?;
        }
        for segment in copying.index_only() {
            self.copy_index(copying, &segment)?;
        }
        Ok(())
    }

    fn copy_segment(
        &mut self,
        copying: &mut Copying,
        segment: &Segment,
    ) -> Result<(), BackupError> {
        let shard = Arc::clone(&copying.shard);
        let vfs = shard.options.vfs.as_deref();
        let opened =
            SegmentReader::open(&segment.path, Some(segment.identity), shard.hash_seed, vfs);
        let reader = match opened.map_err(RowsError::from) {
            Ok((reader, _)) => reader,
            // It is damaged or gone in the store itself: what else there is must be saved all the same.
            Err(error) if error.is_lasting(&segment.path) => {
                let file = format!("{}.db", segment.number());
                let name = name_of(copying.name(), &file);
                self.left_out.push(format!("{name}: {error}"));
                return self.copy_index(copying, segment);
            }
            Err(error) => return Err(source(&segment.path, &error)),
        };
        let name = name_of(copying.name(), &format!("{}.db", segment.number()));
        let mut newest = None;
        self.target
            .add_database(&name, vfs, |to, vfs, after| {
                newest = reader.copy(to, vfs, after)?;
                Ok(())
            })
            .map_err(|error| source(&segment.path, &error))?;
        if let Some((last, accepted_at)) = newest {
            let covered = segment.identity.covers.map_or(0, |(_, last)| last);
            copying.copied = last.max(covered);
            // A mark speaks of what the writer wrote.
            if !segment.is_compacted() {
                copying.reaches.insert(
                    0,
                    Reach {
                        segment: segment.number(),
                        last,
                        wal_bytes: 0,
                    },
                );
            }
            copying.last_accepted_at = Some(accepted_at);
        }
        if segment.is_indexed() {
            self.copy_index(copying, segment)?;
        }
        Ok(())
    }

    fn copy_index(&mut self, copying: &mut Copying, segment: &Segment) -> Result<(), BackupError> {
        let name = name_of(copying.name(), &format!("{}.idx", segment.number()));
        // One that is gone has left the idempotency window.
        self.target
            .add_file(&segment.index_path, &name)
            .map_err(|error| source(&segment.index_path, &error))?;
        copying.indexed.insert(segment.number());
        Ok(())
    }

    /// Says that every copied row was synced, so that a start has nothing to prove; but not that the last run
    /// ended cleanly: a delivery may have been made of which the copied progress knows nothing.
    fn write_mark(&mut self, copying: &Copying) -> Result<(), BackupError> {
        let mut mark = Mark::default();
        for (place, reach) in mark.reaches.iter_mut().zip(&copying.reaches) {
            *place = *reach;
        }
        let name = name_of(copying.name(), MARK);
        let path = self.target.path(&name);
        let shard = &copying.shard;
        let owner = Owner::new(shard.generation, shard.id, shard.hash_seed);
        let (mut file, _, _) = MarkFile::open(self.inner.ground.disk.as_ref(), &path, owner)
            .map_err(|error| self.target.unusable(error))?;
        file.write(&mark)
            .and_then(|()| file.sync())
            .and_then(|()| owner_only(&path, 0o600))
            .and_then(|()| self.target.note(&name))
            .map_err(|error| self.target.unusable(error))
    }

    fn copy_commands(&mut self) -> Result<(), BackupError> {
        let Some(commands) = self.inner.commands().clone() else {
            return Ok(());
        };
        let vfs = self.inner.ground.options.vfs.as_deref();
        let target = &mut self.target;
        commands
            .with_reader(|connection| {
                target.add_database(commands::FILE, vfs, |to, vfs, after| {
                    copy_connection(connection, to, vfs, after)
                })
            })
            .map_err(|error| source(&self.inner.ground.dir.join(commands::FILE), &error))
    }

    fn copy_catalog(&mut self) -> Result<(), BackupError> {
        let catalog = &self.inner.catalog;
        let vfs = self.inner.ground.options.vfs.as_deref();
        let target = &mut self.target;
        catalog
            .with_connection(|connection| {
                target.add_database("catalog.db", vfs, |to, vfs, after| {
                    copy_connection(connection, to, vfs, after)
                })
            })
            .map_err(|error| source(&self.inner.ground.dir.join("catalog.db"), &error))
    }
}

impl Copying {
    fn of(shard: &Arc<Shard>) -> Self {
        let mut copying = Self {
            _held: shard.hold_segments(),
            shard: Arc::clone(shard),
            pinned: Vec::new(),
            indexed: BTreeSet::new(),
            reaches: Vec::new(),
            copied: 0,
            last_accepted_at: None,
        };
        copying.pin_new();
        copying
    }

    /// Pins every segment that has a database and begins behind what is copied.
    fn pin_new(&mut self) {
        let copied = self.copied;
        // In the order in which a segment moves, so that none is missed on its way.
        let mut segments = self.shard.segments();
        segments.extend(self.shard.retained());
        segments.retain(|segment| {
            !segment.is_replaced() && segment.span().is_some_and(|(first, _)| first > copied)
        });
        segments.sort_unstable_by_key(|segment| segment.span());
        segments.dedup_by_key(|segment| segment.number());
        // One that cannot be pinned was resolved and goes: its index file says enough.
        let pinned = segments.iter().filter_map(Segment::pin);
        self.pinned = pinned.collect();
    }

    /// Segments of which only the index file is left, as far as that is not copied yet.
    fn index_only(&self) -> Vec<Arc<Segment>> {
        let mut segments = self.shard.retained();
        segments.retain(|segment| segment.is_dropped() || segment.is_replaced());
        segments.extend(self.shard.remembered());
        segments.sort_unstable_by_key(|segment| segment.number());
        segments.dedup_by_key(|segment| segment.number());
        segments.retain(|segment| !self.indexed.contains(&segment.number()));
        segments
    }

    fn name(&self) -> Name {
        Name(self.shard.generation, self.shard.id)
    }

    fn bytes(&self) -> u64 {
        let databases = self
            .pinned
            .iter()
            .map(|one| one.bytes.load(Ordering::Relaxed));
        let known = self.shard.known();
        databases.sum::<u64>() + known.iter().map(|one| one.index_bytes()).sum::<u64>()
    }

    fn summary(&self) -> ShardCopy {
        ShardCopy {
            generation: self.shard.generation.0,
            shard: self.shard.id.0,
            last_sequence: self.copied,
            last_accepted_at: self.last_accepted_at,
        }
    }
}

/// Refuses a destination in the store's own directory, whatever links lead there.
pub(super) fn outside(data: &Path, to: &Path) -> Result<(), BackupError> {
    let refused = |reason: &str| BackupError::Destination {
        path: to.to_owned(),
        reason: reason.to_owned(),
    };
    if !to.is_absolute() {
        return Err(refused("expected an absolute path"));
    }
    let real = |path: &Path| path.canonicalize().ok();
    let parent = to.parent().and_then(real);
    let to: Option<PathBuf> = match (real(to), parent, to.file_name()) {
        (Some(to), ..) => Some(to),
        (None, Some(parent), Some(name)) => Some(parent.join(name)),
        _ => None,
    };
    let to = to.ok_or_else(|| refused("its parent directory does not exist"))?;
    match real(data) {
        Some(data) if to.starts_with(&data) || data.starts_with(&to) => Err(refused(
            "it lies in the data directory, or the data directory in it",
        )),
        _ => Ok(()),
    }
}

pub(super) fn source(path: &Path, error: &dyn std::fmt::Display) -> BackupError {
    BackupError::Source {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}
