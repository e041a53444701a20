//! Opening a shard: what the last run left is sealed, what cannot be proven synced is copied and synced,
//! and a new segment begins. Takes as long with millions pending as with none: only segments without an
//! index file (at most three) and the index files of the window are read.
//!
//! Nothing is deleted that might hold an acknowledged event: what is unknown or damaged is named and
//! quarantined, and the rest is served. Every step can be repeated after a crash: copies keep their
//! sequences, old segments are sealed before the mark moves on.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wayhold_model::{Generation, Sequence, ShardId, Timestamp};

use super::core::Condition;
use super::found::{Files, parse};
use super::index_file::{IndexError, IndexFile};
use super::mark::{MARK, Mark, MarkError, MarkFile, Reach};
use super::preparer::Recipe;
use super::recent::Recent;
use super::resolved::own_lane;
use super::row::Row;
use super::segment::{Segment, database_path, index_path};
use super::segment_file::{SegmentError, SegmentReader};
use super::writer::{Active, Start, advance};
use crate::disk::{Disk, copy_database_aside, quarantine, quarantine_database, unlink_database};
use crate::error::OpenError;
use crate::progress::Progress;
use crate::shards::Owner;

/// Rows copied in one transaction.
const COPY_ROWS: usize = 4096;

/// What was found and what goes on from there.
pub(crate) struct Recovered {
    /// With something unresolved, as far as progress knows, and the new one.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Resolved, with a database.
    pub(crate) retained: Vec<Arc<Segment>>,
    pub(crate) remembered: Vec<Arc<Segment>>,
    pub(crate) start: Start,
    /// Number of the next segment to make.
    pub(crate) next_number: u64,
    pub(crate) unproven: u64,
    pub(crate) unclean: bool,
}

/// What opening needs.
pub(crate) struct Opening<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) progress: &'a Progress,
    pub(crate) condition: &'a Condition,
    pub(crate) now: Timestamp,
}

impl Opening<'_> {
    /// Opens the shard's files.
    pub(crate) fn run(self) -> Result<Recovered, OpenError> {
        let (mark_file, mark) = self.open_mark()?;
        failpoint!("recover.begun");
        let recorded = self.finish_removals()?;
        let recorded = recorded.max(self.progress.newest_compacted());
        failpoint!("recover.removals-finished");
        let mut files = self.sort_files()?;
        // Without a mark nobody knows how the last run ended, if there was one.
        let unclean = mark.map_or(!files.databases.is_empty(), |mark| !mark.clean);
        // A mark without a whole slot proves nothing: what follows the sealed segments is copied.
        let mark = mark.unwrap_or_default();
        let (mut segments, remembered) = self.indexed(&mut files)?;
        let written = segments.iter().chain(&remembered);
        let written = written.filter(|segment| !segment.is_compacted());
        let sealed = written.map(|segment| segment.number()).max().unwrap_or(0);
        let mut left = self.unindexed(&files, &mark, sealed)?;

        let number = files.highest.max(mark.newest()).max(recorded) + 1;
        let made = self.recipe.make(number);
        failpoint!("recover.segment-made");
        let made = made.map_err(|error| unusable(&database_path(self.dir(), number), &error))?;
        let mut active = Active {
            file: made.file,
            segment: Arc::new(made.segment),
            rows: 0,
            since: None,
        };
        let unproven: Vec<Row> = std::mem::take(&mut left.unproven).into_values().collect();
        self.copy(&unproven, &mut active)?;
        failpoint!("recover.copied");
        self.seal(&mut left, &mut segments)?;
        failpoint!("recover.sealed");

        let newest = self
            .newest_sequence(&segments, &remembered, &active, &mark)
            .max(left.highest);
        let mut start = Start {
            next: newest + 1,
            now: self.store_time(&segments, &remembered, &active),
            active,
            mark_file,
            mark,
        };
        self.move_mark(&mut start, newest)?;
        failpoint!("recover.mark-moved");
        let parted = self.part_resolved(segments);
        let (retained, mut segments, remembered) = self.part_replaced(parted, remembered)?;
        failpoint!("recover.compactions-finished");
        segments.push(Arc::clone(&start.active.segment));
        Ok(Recovered {
            segments,
            retained,
            remembered,
            start,
            next_number: number + 1,
            unproven: unproven.len() as u64,
            unclean,
        })
    }

    /// Opens the mark; where it proves nothing although there are segments, that is named.
    fn open_mark(&self) -> Result<(MarkFile, Option<Mark>), OpenError> {
        let path = self.dir().join(MARK);
        let owner = Owner::new(
            Generation(self.recipe.generation),
            ShardId(self.recipe.shard),
            self.recipe.hash_seed,
        );
        let opened = MarkFile::open(self.disk(), &path, owner);
        let (file, found, aside) = opened.map_err(|error| mark_error(&path, error))?;
        let names = self.disk().list(self.dir());
        let names = names.map_err(|error| unusable(self.dir(), &error))?;
        let is_segment = |name: &OsString| {
            let parsed = name.to_str().map(parse);
            matches!(parsed, Some((Some(_), Some("db" | "idx"))))
        };
        if let Some(trouble) = found.trouble()
            && (aside.is_some() || names.iter().any(is_segment))
        {
            let aside = aside.map(|aside| format!(" and was put aside as {}", aside.display()));
            self.condition.degraded(format!(
                "{} {trouble}{}; what is not sealed was copied and synced again",
                path.display(),
                aside.unwrap_or_default()
            ));
        }
        Ok((file, found.mark()))
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        self.recipe.disk.as_ref()
    }

    pub(super) fn dir(&self) -> &Path {
        &self.recipe.dir
    }

    /// Opens sealed segments, and those of which only the index file is left. What was sealed without a row
    /// is removed.
    #[expect(clippy::type_complexity, reason = "two lists of the same thing")]
    fn indexed(
        &self,
        files: &mut Files,
    ) -> Result<(Vec<Arc<Segment>>, Vec<Arc<Segment>>), OpenError> {
        let (mut whole, mut remembered) = (Vec::new(), Vec::new());
        for &number in &files.indexes {
            let path = index_path(self.dir(), number);
            let file = match IndexFile::open(self.disk(), &path) {
                Ok(file) if self.belongs(&file, number) => file,
                Ok(_) => {
                    self.set_aside_index(&path, "belongs to another segment")?;
                    continue;
                }
                Err(IndexError::Newer(found)) => {
                    let known = super::index_file::FORMAT;
                    return Err(OpenError::Newer {
                        file: path,
                        found,
                        known,
                    });
                }
                Err(error) => {
                    self.set_aside_index(&path, &error.to_string())?;
                    continue;
                }
            };
            let segment = Segment::indexed(self.dir(), file);
            if segment.rows() == 0 {
                let removed = unlink_database(self.disk(), &segment.path)
                    .and_then(|()| self.disk().unlink(&path));
                removed.map_err(|error| unusable(&path, &error))?;
                files.databases.remove(&number);
            } else if files.databases.contains(&number) {
                self.note_closed(&segment);
                whole.push(Arc::new(segment));
            } else {
                remembered.push(Arc::new(segment));
            }
        }
        Ok((whole, remembered))
    }

    fn belongs(&self, file: &IndexFile, number: u64) -> bool {
        let identity = file.identity;
        identity.number == number
            && identity.generation == self.recipe.generation
            && identity.shard == self.recipe.shard
    }

    /// A damaged index file is put aside; where the database is there, it is made again from it.
    fn set_aside_index(&self, path: &Path, reason: &str) -> Result<(), OpenError> {
        let aside = quarantine(self.disk(), path).map_err(|error| unusable(path, &error))?;
        self.condition.degraded(format!(
            "{} {reason}; it was put aside as {}",
            path.display(),
            aside.display()
        ));
        Ok(())
    }

    fn note_closed(&self, segment: &Segment) {
        segment
            .closed_at
            .store(self.now.as_micros().max(1), Ordering::Release);
        let wal_bytes = segment.measure(self.disk());
        segment
            .checkpointed
            .store(wal_bytes == 0, Ordering::Relaxed);
    }

    /// Names a segment that should be there: it was never found resolved and holds deliveries that
    /// are not resolved.
    pub(super) fn report_missing(&self, segment: &Segment) {
        if segment.resolved_at().is_some() {
            return;
        }
        let Ok(index) = segment.load(self.disk()) else {
            return;
        };
        let unresolved: usize = segment
            .counts()
            .into_keys()
            .map(|destination| {
                let lane = own_lane(destination);
                let sequences: Vec<u64> = index.lane_after(destination, 0).collect();
                self.progress.view(lane, |view| {
                    sequences
                        .iter()
                        .filter(|sequence| view.is_held(Sequence(**sequence)))
                        .count()
                })
            })
            .sum();
        if unresolved > 0 {
            self.condition.degraded(format!(
                "{} is missing with {unresolved} unresolved deliveries",
                segment.path.display()
            ));
        }
    }

    /// Reads the segments that have no index file: the last active one, closed ones that the keeper had
    /// not come to, a prepared one.
    ///
    /// `sealed` is the newest segment of the writer's that has one.
    fn unindexed(&self, files: &Files, mark: &Mark, sealed: u64) -> Result<Left, OpenError> {
        let mut left = Left::default();
        // Before a segment takes a row, or is sealed, the one before it was synced to its end.
        let closed_below = mark.newest().max(sealed);
        for number in files.databases.iter().copied() {
            // An index file that was put aside counts as absent.
            let path = database_path(self.dir(), number);
            if self
                .disk()
                .exists(&index_path(self.dir(), number))
                .unwrap_or(false)
            {
                continue;
            }
            match SegmentReader::open(
                &path,
                None,
                self.recipe.hash_seed,
                self.recipe.vfs.as_deref(),
            ) {
                Ok((reader, identity))
                    if identity.number == number
                        && identity.generation == self.recipe.generation
                        && identity.shard == self.recipe.shard =>
                {
                    let marked = mark.reach(number).map_or(0, |reach| reach.last);
                    let is_proven = number < closed_below || identity.covers.is_some();
                    let proven = match is_proven || planted!("unproven-served") {
                        true => u64::MAX,
                        false => marked,
                    };
                    let (recent, last, is_whole) = self.read(&reader, &path, proven, &mut left);
                    drop(reader);
                    if last < marked {
                        self.condition.degraded(format!(
                            "the tail of {} is damaged: sequences {} to {marked} are lost",
                            path.display(),
                            last + 1
                        ));
                    }
                    if !is_whole || last < marked {
                        self.keep_copy(&path);
                    }
                    left.sealable
                        .push(Segment::unindexed(self.dir(), identity, recent));
                }
                Ok((reader, _)) => {
                    drop(reader);
                    self.set_aside_database(&path, number, mark, "holds another segment's data")?;
                }
                Err(SegmentError::Newer(found)) => {
                    let known = super::segment_file::FORMAT;
                    return Err(OpenError::Newer {
                        file: path,
                        found,
                        known,
                    });
                }
                // A file that was being made when the process ended never held an acknowledged row.
                Err(_)
                    if mark.reach(number).is_none()
                        && number > mark.newest()
                        && self.is_unborn(&path) =>
                {
                    unlink_database(self.disk(), &path).map_err(|error| unusable(&path, &error))?;
                }
                Err(error) => self.set_aside_database(&path, number, mark, &error.to_string())?,
            }
        }
        Ok(left)
    }

    /// Whether a file has no schema yet.
    fn is_unborn(&self, path: &Path) -> bool {
        let mut wal = path.to_owned().into_os_string();
        wal.push("-wal");
        let len = |path: &Path| self.disk().len(path).unwrap_or(0);
        // The schema and the first row are committed apart; a WAL that holds rows holds more than the
        // schema's few pages.
        len(path) <= u64::from(self.recipe.page_size)
            && len(Path::new(&wal)) <= 16 * u64::from(self.recipe.page_size)
    }

    /// Reads what there is of a segment: rows up to `proven` are where they belong, those above it are
    /// left to be copied. Also the last sequence that the file names, and whether all of it was whole.
    fn read(
        &self,
        reader: &SegmentReader,
        path: &Path,
        proven: u64,
        left: &mut Left,
    ) -> (Recent, u64, bool) {
        let mut recent = Recent::default();
        let mut last = 0;
        let mut is_whole = true;
        let whole = reader.each(|row| match row {
            Ok(row) => {
                let sequence = row.stored.position.sequence.0;
                last = last.max(sequence);
                if sequence <= proven {
                    recent.push(&row);
                } else {
                    left.unproven.insert(sequence, row);
                }
            }
            Err(damaged) => {
                is_whole = false;
                last = last.max(damaged.sequence);
                self.condition.degraded(format!(
                    "event g{}.s{}.{} in {} is damaged on disk",
                    self.recipe.generation,
                    self.recipe.shard,
                    damaged.sequence,
                    path.display()
                ));
            }
        });
        if let Err(error) = whole {
            is_whole = false;
            self.condition.degraded(format!(
                "{} cannot be read whole, what lies on its damaged pages is lost: {error}",
                path.display()
            ));
        }
        left.highest = left.highest.max(last);
        (recent, last, is_whole)
    }

    /// What is damaged is kept as it was found: the segment goes once the rest of it is delivered, and
    /// its index will know only that rest.
    fn keep_copy(&self, path: &Path) {
        let path_shown = path.display();
        self.condition
            .degraded(match copy_database_aside(self.disk(), path) {
                Ok(aside) => format!(
                    "{path_shown} was copied to {} as it was found",
                    aside.display()
                ),
                // No reason not to serve the rest.
                Err(error) => {
                    format!("{path_shown} cannot be copied aside as it was found: {error}")
                }
            });
    }

    fn set_aside_database(
        &self,
        path: &Path,
        number: u64,
        mark: &Mark,
        reason: &str,
    ) -> Result<(), OpenError> {
        let aside =
            quarantine_database(self.disk(), path).map_err(|error| unusable(path, &error))?;
        let lost = mark.reach(number).map_or_else(String::new, |reach| {
            format!("; it held sequences up to {}", reach.last)
        });
        self.condition.degraded(format!(
            "{} {reason}; it was put aside as {}{lost}",
            path.display(),
            aside.display()
        ));
        Ok(())
    }

    /// Copies unproven rows into the new segment and syncs them there, sequences kept.
    fn copy(&self, rows: &[Row], active: &mut Active) -> Result<(), OpenError> {
        for rows in rows.chunks(COPY_ROWS) {
            active
                .file
                .append(rows)
                .map_err(|(_, error)| unusable(&active.segment.path, &error))?;
            active.segment.committed(rows);
            active.rows += u32::try_from(rows.len()).unwrap_or(u32::MAX);
        }
        active
            .segment
            .bytes
            .store(active.file.wal_bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// Writes the index files of what the last run left; removes what held no proven row.
    fn seal(&self, left: &mut Left, segments: &mut Vec<Arc<Segment>>) -> Result<(), OpenError> {
        for segment in left.sealable.drain(..) {
            if segment.rows() == 0 {
                unlink_database(self.disk(), &segment.path)
                    .map_err(|error| unusable(&segment.path, &error))?;
                continue;
            }
            segment
                .write_index(self.disk())
                .map_err(|error| unusable(&segment.index_path, &error))?;
            self.note_closed(&segment);
            segments.push(Arc::new(segment));
        }
        segments.sort_by_cached_key(|segment| segment.place());
        Ok(())
    }

    /// The highest sequence that any file names.
    fn newest_sequence(
        &self,
        segments: &[Arc<Segment>],
        remembered: &[Arc<Segment>],
        active: &Active,
        mark: &Mark,
    ) -> u64 {
        let spans = segments.iter().chain(remembered).chain([&active.segment]);
        let rows = spans
            .filter_map(|segment| segment.span())
            .map(|(_, last)| last);
        let marked = mark.reaches.iter().map(|reach| reach.last);
        rows.chain(marked)
            .chain([self.progress.highest().0])
            .max()
            .unwrap_or(0)
    }

    fn store_time(
        &self,
        segments: &[Arc<Segment>],
        remembered: &[Arc<Segment>],
        active: &Active,
    ) -> Timestamp {
        let newest = segments
            .iter()
            .chain(remembered)
            .chain([&active.segment])
            .map(|segment| segment.newest())
            .max();
        self.now.max(Timestamp::from_micros(newest.unwrap_or(0)))
    }

    /// Everything below is sealed: the mark may speak of the new segment, and keeps the highest sequence
    /// even when every file that named it is gone.
    fn move_mark(&self, start: &mut Start, newest: u64) -> Result<(), OpenError> {
        let active = &start.active;
        let number = active.segment.number();
        // What came before; of the new segment it may only say what lies in it, or the next start would
        // miss the rest.
        let before = Reach {
            segment: number - 1,
            last: newest,
            wal_bytes: 0,
        };
        advance(&mut start.mark, before);
        if let Some((_, last)) = active.segment.span() {
            let copied = Reach {
                segment: number,
                last,
                wal_bytes: active.file.wal_bytes(),
            };
            advance(&mut start.mark, copied);
        }
        let path = self.dir().join(MARK);
        start
            .mark_file
            .write(&start.mark)
            .and_then(|()| start.mark_file.sync())
            .map_err(|error| unusable(&path, &error))
    }
}

/// What the last run left without an index file.
#[derive(Default)]
struct Left {
    /// The highest sequence that any of its rows names, damaged or not.
    highest: u64,
    sealable: Vec<Segment>,
    /// By sequence: after a crash between copying and sealing a row lies in two files.
    unproven: BTreeMap<u64, Row>,
}

fn mark_error(path: &Path, error: MarkError) -> OpenError {
    match error {
        MarkError::Newer { found, known } => OpenError::Newer {
            file: path.to_owned(),
            found,
            known,
        },
        MarkError::Io(error) => unusable(path, &error),
    }
}

pub(super) fn unusable(path: &Path, error: &dyn std::fmt::Display) -> OpenError {
    OpenError::Unusable {
        path: PathBuf::from(path),
        reason: error.to_string(),
    }
}
