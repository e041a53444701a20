//! The idempotency window: which ids were accepted lately, in all shards, and which are on their way to the
//! disk.
//!
//! In memory there are 5.4 bytes per id (`table`): enough to say of nearly every new id that it is new, and
//! of one that may have come before in which *chapter* that was (`chapters`). A chapter names its segments,
//! whose indexes have the whole id: they are asked, and only then. Ids therefore live on disk, a look-up
//! costs the same whatever their number, and what the memory cannot know is never guessed.
//!
//! An id is *reserved* before its event is queued, so that two requests with one id cannot both be stored;
//! the second waits for the first one's commit. Rebuilt at open from index files.

mod chapters;
mod reservations;
mod table;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::shard::segment::Segment;
use chapters::Chapters;
pub(crate) use chapters::{Placed, Reach};
pub(crate) use reservations::Reservations;
use table::{Live, Table};

/// Independently locked parts, so that connections rarely meet: a lock is held for one look-up.
const STRIPES: usize = 16;

/// Bytes of the tables of a window over so many ids, once all of them are in use.
pub(crate) fn bytes(ids: u64) -> u64 {
    let reach = Reach {
        ids: usize::try_from(ids).unwrap_or(usize::MAX),
        micros: u64::MAX,
    };
    (STRIPES * Table::bytes(reach.ids_held().div_ceil(STRIPES))) as u64
}

/// Ids that are put into a table together at open: some more than a processor fetches from memory at a time.
const RESTORED_TOGETHER: usize = 32;

/// The ids of the window.
pub(crate) struct Window {
    stripes: Box<[Stripe]>,
    chapters: Mutex<Chapters>,
    /// Which chapters are in the window, as `pack` has it. Changes with `chapters` locked, and before the
    /// first id of a new chapter is remembered.
    live: AtomicU64,
    reach: Reach,
}

struct Stripe {
    ids: Mutex<Ids>,
    /// Wakes those who wait for a reservation to end.
    ended: Notify,
}

struct Ids {
    table: Table,
    reserved: HashMap<u128, Waited>,
}

/// Whether anybody waits for a reservation to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    No,
    Yes,
}

/// Answer to a reservation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// Reserved. Where the id may have been accepted before: to be confirmed.
    Reserved(Candidates),
    /// Another request has it: wait with `ended` and try again.
    Taken,
}

/// Numbers of chapters, newest first; nearly always none.
pub(crate) type Candidates = Vec<u64>;

impl Window {
    /// An empty window that reaches so far.
    pub(crate) fn new(reach: Reach) -> Self {
        let chapters = Chapters::new(reach);
        let ids = reach.ids_held().div_ceil(STRIPES);
        let stripe = || Stripe {
            ids: Mutex::new(Ids {
                table: Table::new(ids),
                reserved: HashMap::new(),
            }),
            ended: Notify::new(),
        };
        Self {
            stripes: std::iter::repeat_with(stripe).take(STRIPES).collect(),
            live: AtomicU64::new(pack(chapters.live())),
            chapters: Mutex::new(chapters),
            reach,
        }
    }

    /// How far it reaches.
    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// Reserves an id, unless another request has it.
    pub(crate) fn reserve(&self, id_hash: u128) -> Reserve {
        let mut ids = self.ids(id_hash);
        match ids.reserved.entry(id_hash) {
            Entry::Occupied(mut taken) => {
                taken.insert(Waited::Yes);
                return Reserve::Taken;
            }
            Entry::Vacant(free) => {
                free.insert(Waited::No);
            }
        }
        Reserve::Reserved(ids.table.candidates(id_hash, self.live()))
    }

    /// Waits until some reservation near this id ended; `reserve` again then. Create the future before
    /// the call of `reserve` that decides to await it, or the end can be missed.
    pub(crate) fn ended(&self, id_hash: u128) -> tokio::sync::futures::Notified<'_> {
        self.stripe(id_hash).ended.notified()
    }

    /// Gives a reservation up: nothing was stored.
    fn release(&self, id_hash: u128) {
        let waited = self.ids(id_hash).reserved.remove(&id_hash);
        self.wake(id_hash, waited);
    }

    /// Gives a chapter to ids, at least one, that were accepted at `at` (microseconds since the epoch) into a
    /// segment whose index has them already. May take fewer: then the rest is placed again.
    pub(crate) fn place(&self, segment: &Arc<Segment>, ids: usize, at: u64) -> Placed {
        let mut chapters = lock(&self.chapters);
        let placed = chapters.place(segment, ids, at);
        self.live.store(pack(chapters.live()), Ordering::Release);
        placed
    }

    /// Remembers an id that was placed, and ends its reservation.
    pub(crate) fn remember(&self, id_hash: u128, chapter: u64) {
        let waited = {
            let mut ids = self.ids(id_hash);
            ids.table.insert(id_hash, chapter, self.live());
            ids.reserved.remove(&id_hash)
        };
        self.wake(id_hash, waited);
    }

    /// Remembers ids at open. Fastest where they are in order of their hashes.
    pub(crate) fn restore(&self, mut placed: impl Iterator<Item = (u128, u64)>) {
        let mut batch = Vec::with_capacity(RESTORED_TOGETHER);
        loop {
            batch.extend(placed.by_ref().take(RESTORED_TOGETHER));
            if batch.is_empty() {
                return;
            }
            for same in batch.chunk_by(|(one, _), (other, _)| stripe_of(*one) == stripe_of(*other))
            {
                if let Some((id_hash, _)) = same.first() {
                    let mut ids = self.ids(*id_hash);
                    ids.table.insert_all(same, self.live());
                }
            }
            batch.clear();
        }
    }

    /// Without confirming: where the id may have been accepted.
    pub(crate) fn candidates(&self, id_hash: u128) -> Candidates {
        self.ids(id_hash).table.candidates(id_hash, self.live())
    }

    /// Segments of a chapter, newest first; none where it has left the window.
    pub(crate) fn segments(&self, chapter: u64) -> Vec<Arc<Segment>> {
        lock(&self.chapters).segments(chapter)
    }

    /// Lets go of ids that were all accepted before `oldest`, in microseconds since the epoch.
    pub(crate) fn expire(&self, oldest: u64) {
        let mut chapters = lock(&self.chapters);
        chapters.expire(oldest);
        self.live.store(pack(chapters.live()), Ordering::Release);
    }

    /// Whether ids in the window lie in a segment.
    pub(crate) fn names(&self, segment: &Segment) -> bool {
        lock(&self.chapters).names(segment)
    }

    /// Ids remembered.
    pub(crate) fn len(&self) -> usize {
        lock(&self.chapters).ids()
    }

    /// When the oldest id that is remembered was accepted, in microseconds since the epoch.
    pub(crate) fn oldest(&self) -> Option<u64> {
        lock(&self.chapters).oldest()
    }

    /// To be read with the ids locked that it is held against: they may be newer than what was read before.
    fn live(&self) -> Live {
        unpack(self.live.load(Ordering::Acquire))
    }

    fn stripe(&self, id_hash: u128) -> &Stripe {
        self.stripes
            .get(stripe_of(id_hash))
            .expect("the index is below the number of stripes")
    }

    fn ids(&self, id_hash: u128) -> MutexGuard<'_, Ids> {
        lock(&self.stripe(id_hash).ids)
    }

    fn wake(&self, id_hash: u128, waited: Option<Waited>) {
        if waited == Some(Waited::Yes) {
            self.stripe(id_hash).ended.notify_waiters();
        }
    }
}

/// By the top bits of the hash: the table inside uses the low ones.
fn stripe_of(id_hash: u128) -> usize {
    usize::try_from(id_hash >> 124).unwrap_or(0) % STRIPES
}

const COUNT_BITS: u32 = 17;

fn pack(live: Live) -> u64 {
    live.newest << COUNT_BITS | live.count as u64
}

fn unpack(packed: u64) -> Live {
    let count = packed & ((1 << COUNT_BITS) - 1);
    Live {
        newest: packed >> COUNT_BITS,
        count: usize::try_from(count).unwrap_or(0),
    }
}

fn lock<T>(locked: &Mutex<T>) -> MutexGuard<'_, T> {
    locked.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
