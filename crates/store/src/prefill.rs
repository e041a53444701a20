//! Fills the idempotency window of a new store without accepting anything: index files of segments that
//! were resolved and unlinked long ago, written by the code that seals segments, and the progress that
//! says so. What a store costs with a full window is measured on such a directory, within seconds
//! instead of after hours. For the bench alone, behind the feature `prefill`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wayhold_model::{
    Clock, DestinationSet, Event, EventParts, Generation, InvalidEvent, LaneId, Sequence, ShardId,
    hash,
};

use crate::disk::{Disk, SystemDisk};
use crate::error::OpenError;
use crate::options::Options;
use crate::progress::{Progress, ProgressOptions};
use crate::shard::index_file::{Identity, IndexFile};
use crate::shard::recent::{Entry, Recent};
use crate::shard::segment::index_path;
use crate::store::Store;

/// Ordering keys in use, so that the key lists of the files are of the usual kind.
const KEYS: u64 = 10_000;

/// What lies in the window.
#[derive(Clone, Copy, Debug)]
pub struct Prefill<'a> {
    /// How many ids.
    pub ids: u64,
    /// Tells one set of ids from another.
    pub seed: u64,
    /// To whom all of them were delivered.
    pub destination: &'a str,
}

impl Prefill<'_> {
    /// Makes a store in `dir` whose window remembers the ids, all of them delivered, and stops it. A
    /// store that is there already is left alone. Blocking.
    ///
    /// # Errors
    /// The store cannot be made, or its files cannot be written.
    pub fn make(
        &self,
        dir: &Path,
        options: &Options,
        clock: &Arc<dyn Clock>,
    ) -> Result<(), OpenError> {
        if dir.join("catalog.db").exists() {
            return Ok(());
        }
        let (store, _) = Store::open(dir, options.clone(), Arc::clone(clock))?;
        let names = [self.destination.to_owned()];
        let destinations = store.catalog().sync_destinations(&names);
        let hash_seed = store.hash_seed();
        store.stop();
        let destinations = destinations.map_err(|error| unusable(dir, &error))?;
        let Some(to) = destinations.first() else {
            return Ok(());
        };
        let shards = shards(dir).map_err(|error| unusable(dir, &error))?;
        let window = u64::try_from(options.window.as_micros()).unwrap_or(u64::MAX);
        let filling = Filling {
            prefill: *self,
            rows: u64::from(options.segment_rows),
            hash_seed,
            destinations: Arc::new(DestinationSet::new([to.id])),
            lane: to.lane,
            // Half of the window, so that none leaves it by age while something is measured.
            from: clock.now().as_micros().saturating_sub(window / 2),
            step: window / 2 / self.ids.max(1),
        };
        let count = shards.len() as u64;
        for (number, (id, path)) in (0..).zip(&shards) {
            let span = (self.ids * number / count, self.ids * (number + 1) / count);
            filling
                .shard(*id, path, span, options)
                .map_err(|error| unusable(path, &error))?;
        }
        Ok(())
    }

    /// The event of one of the ids, `number` counting from 0: accepted again it is a duplicate.
    ///
    /// # Errors
    /// Never: what is made here is a valid event.
    pub fn event(&self, number: u64) -> Result<Event, InvalidEvent> {
        Event::new(&EventParts {
            id: &format!("{:x}-{number}", self.seed),
            source: "/prefill",
            kind: "com.example.prefilled",
            key: &format!("key-{}", number % KEYS),
            ..EventParts::default()
        })
    }
}

/// What is the same for every shard.
struct Filling<'a> {
    prefill: Prefill<'a>,
    /// Rows of a segment.
    rows: u64,
    hash_seed: u64,
    destinations: Arc<DestinationSet>,
    lane: LaneId,
    /// When the first id was accepted, and the time from one to the next, in microseconds.
    from: u64,
    step: u64,
}

type Failed = Box<dyn std::error::Error>;

impl Filling<'_> {
    /// Gives a shard the ids of `(first, end)`, in segments above those that it made when it was opened.
    fn shard(
        &self,
        id: ShardId,
        dir: &Path,
        (first, end): (u64, u64),
        options: &Options,
    ) -> Result<(), Failed> {
        let generation = Generation(1);
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
        let (progress, _) = Progress::open(ProgressOptions {
            directory: dir.to_owned(),
            generation,
            shard: id,
            hash_seed: self.hash_seed,
            disk: Arc::clone(&disk),
            vfs: options.vfs.clone(),
            letters: Arc::default(),
            on_no_space: Arc::new(|| {}),
        })
        .map_err(|error| error.to_string())?;
        let mut segment = highest(dir)?;
        let mut number = first;
        while number < end {
            let until = end.min(number + self.rows);
            segment += 1;
            let identity = Identity {
                generation: generation.0,
                shard: id.0,
                number: segment,
                uuid: u128::from(self.prefill.seed) << 64 | u128::from(segment),
                covers: None,
            };
            // Sequences begin with 1 in every shard.
            let after = number - first;
            let recent = self.recent(number, until, after)?;
            let index = index_path(dir, segment);
            let file = IndexFile::write(disk.as_ref(), &index, identity, &recent)?;
            // Everything was delivered when it came.
            file.note_resolved(disk.as_ref(), file.newest.max(1))?;
            let last = after + (until - number);
            progress.deliver(self.lane, (after + 1..=last).map(Sequence));
            progress.add_accepted_base(self.lane, until - number);
            progress.raise_floor(self.lane, Sequence(last + 1));
            number = until;
        }
        progress.stop();
        Ok(())
    }

    /// The index of the segment that holds the ids from `first` to before `end`, above sequence `after`.
    fn recent(&self, first: u64, end: u64, after: u64) -> Result<Recent, InvalidEvent> {
        let mut recent = Recent::default();
        for (number, sequence) in (first..end).zip(after + 1..) {
            let event = self.prefill.event(number)?;
            recent.add(Entry {
                sequence,
                id_hash: hash::id_hash(&event, self.hash_seed),
                fingerprint: Some(hash::fingerprint(&event, self.hash_seed)),
                accepted_at: self.from + number * self.step,
                key_hash: event.key().map(|key| hash::key_hash(key, self.hash_seed)),
                destinations: Arc::clone(&self.destinations),
            });
        }
        Ok(recent)
    }
}

/// The shards of the first generation.
fn shards(dir: &Path) -> std::io::Result<Vec<(ShardId, PathBuf)>> {
    let generation = dir.join("g1");
    let names = SystemDisk.list(&generation)?;
    let mut shards: Vec<_> = names
        .iter()
        .filter_map(|name| {
            let id = name.to_str()?.strip_prefix('s')?.parse().ok()?;
            Some((ShardId(id), generation.join(name)))
        })
        .collect();
    shards.sort_unstable();
    Ok(shards)
}

/// The highest segment number that any name in a shard's folder holds.
fn highest(dir: &Path) -> std::io::Result<u64> {
    let number = |name: &std::ffi::OsString| name.to_str()?.split('.').next()?.parse().ok();
    Ok(SystemDisk
        .list(dir)?
        .iter()
        .filter_map(number)
        .max()
        .unwrap_or(0))
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> OpenError {
    OpenError::Unusable {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use wayhold_model::Timestamp;

    use super::*;
    use crate::delivery::NewEvent;

    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(1_800_000_000_000_000)
        }
    }

    const IDS: u64 = 30;
    const PREFILL: Prefill<'static> = Prefill {
        ids: IDS,
        seed: 7,
        destination: "sink",
    };

    fn prefilled(dir: &Path) -> Store {
        let options = Options {
            segment_rows: 8,
            window_ids: 1_000,
            min_free: Some(0),
            reserve_bytes: 4096,
            ..Options::default()
        };
        let clock: Arc<dyn Clock> = Arc::new(Fixed);
        PREFILL.make(dir, &options, &clock).unwrap();
        let (store, recovery) = Store::open(dir, options, clock).unwrap();
        assert_eq!((recovery.unclean, recovery.findings), (false, Vec::new()));
        store
    }

    fn append(store: &Store, event: Event) -> bool {
        let new = NewEvent {
            event: Arc::new(event),
            destinations: Arc::new(DestinationSet::new([])),
            identified: true,
            set_aside: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(store.append(vec![new])).unwrap()[0].duplicate
    }

    #[test]
    fn the_store_opens_without_findings_remembers_every_id_and_owes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let store = prefilled(dir.path());
            assert_eq!(store.health().degraded, Vec::<String>::new());
            for number in 0..IDS {
                assert!(
                    append(&store, PREFILL.event(number).unwrap()),
                    "id {number}"
                );
            }
            let to = store.catalog().destinations()[0].id;
            let totals = store.totals(to);
            assert_eq!(
                (totals.accepted, totals.delivered, totals.pending),
                (IDS, IDS, 0)
            );
            store.stop();
        }
        let store = prefilled(dir.path());
        assert!(!append(&store, PREFILL.event(IDS).unwrap()));
        store.stop();
    }
}
