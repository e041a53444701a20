//! Where each id of the window was accepted, in a little more than five bytes per id.
//!
//! An entry is 16 bits of the id's hash, its *tag*, and the 16 low bits of the chapter's number. Sixteen
//! entries are a bucket, which is one line of the processor's cache; an id may lie in either of two buckets,
//! and is put into the emptier one. What fits in neither is kept aside, whole, so that nothing is ever lost.
//!
//! Expiry costs nothing: the entries of a chapter that has left the window are dead, and are overwritten by
//! the next ids, those first that died first. An entry says where an id *may* lie: about one look-up of 2,700
//! finds the tag of another id, and numbers come round after 65,536 chapters. Whoever asks holds what was
//! found against the index of the segment.

use std::collections::BTreeSet;

/// Entries of a bucket: 64 bytes.
const BUCKET: usize = 16;

/// Ids per bucket that a table is made for. At 12 of 16 an id that finds both its buckets full is one of
/// billions.
const LOAD: usize = 12;

/// Chapters that may be alive at a time: numbers in entries have 16 bits.
pub(super) const CHAPTERS_MAX: usize = 1 << 16;

/// Which chapters are in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Live {
    /// Number of the newest one.
    pub(super) newest: u64,
    /// How many, the newest included; at most `CHAPTERS_MAX`.
    pub(super) count: usize,
}

impl Live {
    /// How many chapters began after the one of this entry, if it is in the window; more than any where it is
    /// free.
    fn age(self, entry: u32) -> usize {
        match entry {
            FREE => CHAPTERS_MAX,
            _ => usize::from(low(self.newest).wrapping_sub(low(u64::from(entry)))),
        }
    }

    fn is_alive(self, entry: u32) -> bool {
        self.age(entry) < self.count
    }

    /// The whole number of a chapter that is in the window.
    fn widen(self, entry: u32) -> u64 {
        self.newest.saturating_sub(self.age(entry) as u64)
    }
}

/// Never an entry: tags are not zero.
const FREE: u32 = 0;

/// Entries by hash.
pub(super) struct Table {
    /// Buckets from `begin`, where a line of the cache begins. Pages that no id was put into take no
    /// memory.
    entries: Box<[u32]>,
    begin: usize,
    buckets: usize,
    /// What fitted into neither bucket.
    aside: BTreeSet<(u128, u32)>,
}

/// Where an id may lie. The top bits of the hash have chosen the table.
struct Home {
    buckets: [usize; 2],
    tag: u32,
}

impl Table {
    /// A table for this many ids.
    pub(super) fn new(ids: usize) -> Self {
        let buckets = Self::buckets(ids);
        let entries = vec![FREE; Self::bytes(ids) / size_of::<u32>()].into_boxed_slice();
        let begin = entries.as_ptr().align_offset(BUCKET * size_of::<u32>());
        Self {
            // Only a nicety of speed: where it is not told, buckets take two lines.
            begin: if begin < BUCKET { begin } else { 0 },
            entries,
            buckets,
            aside: BTreeSet::new(),
        }
    }

    fn buckets(ids: usize) -> usize {
        ids.div_ceil(LOAD).max(1)
    }

    /// Bytes of a table for this many ids; one bucket more than it has, to begin with a line of the cache.
    pub(super) fn bytes(ids: usize) -> usize {
        (Self::buckets(ids) + 1) * BUCKET * size_of::<u32>()
    }

    /// Adds an id that was accepted in a chapter.
    pub(super) fn insert(&mut self, id_hash: u128, chapter: u64, live: Live) {
        let home = self.home(id_hash);
        let entry = home.tag << 16 | u32::from(low(chapter));
        let [one, other] = home
            .buckets
            .map(|bucket| Room::of(self.bucket(bucket), live));
        let (bucket, room) = match one.alive <= other.alive {
            true => (home.buckets[0], one),
            false => (home.buckets[1], other),
        };
        if room.alive == BUCKET {
            self.aside.retain(|(_, entry)| live.is_alive(*entry));
            self.aside.insert((id_hash, entry));
            return;
        }
        let at = self.begin + bucket * BUCKET + room.longest_dead;
        if let Some(place) = self.entries.get_mut(at) {
            *place = entry;
        }
    }

    /// Adds many. The buckets of all are asked for before any is changed: the processor then fetches them side
    /// by side, and most of the time of a large table is spent waiting for them.
    pub(super) fn insert_all(&mut self, ids: &[(u128, u64)], live: Live) {
        let mut fetched = 0;
        for (id_hash, _) in ids {
            for bucket in self.home(*id_hash).buckets {
                fetched ^= self.bucket(bucket).first().copied().unwrap_or(FREE);
            }
        }
        std::hint::black_box(fetched);
        for (id_hash, chapter) in ids {
            self.insert(*id_hash, *chapter, live);
        }
    }

    /// Chapters that an id may have been accepted in, newest first. Allocates only where there is one.
    pub(super) fn candidates(&self, id_hash: u128, live: Live) -> Vec<u64> {
        let home = self.home(id_hash);
        let mut found = Vec::new();
        for bucket in home.buckets {
            let matching = |entry: &&u32| **entry >> 16 == home.tag && live.is_alive(**entry);
            found.extend(
                self.bucket(bucket)
                    .iter()
                    .filter(matching)
                    .map(|entry| live.widen(*entry)),
            );
        }
        if !self.aside.is_empty() {
            let same = self.aside.range((id_hash, 0)..=(id_hash, u32::MAX));
            let alive = same.filter(|(_, entry)| live.is_alive(*entry));
            found.extend(alive.map(|(_, entry)| live.widen(*entry)));
        }
        found.sort_unstable_by_key(|chapter| std::cmp::Reverse(*chapter));
        found.dedup();
        found
    }

    /// How many ids fitted into neither of their buckets.
    #[cfg(test)]
    pub(super) fn ids_aside(&self) -> usize {
        self.aside.len()
    }

    fn home(&self, id_hash: u128) -> Home {
        let spread = |bits: u128| {
            let share = (bits & u128::from(u32::MAX)) * self.buckets as u128;
            usize::try_from(share >> 32).unwrap_or(0)
        };
        let tag = u32::from(u16::try_from(id_hash >> 64 & 0xffff).unwrap_or(0));
        Home {
            buckets: [spread(id_hash), spread(id_hash >> 32)],
            tag: tag.max(1),
        }
    }

    fn bucket(&self, bucket: usize) -> &[u32; BUCKET] {
        let from = self.entries.get(self.begin + bucket * BUCKET..);
        from.and_then(|entries| entries.first_chunk())
            .unwrap_or(&[FREE; BUCKET])
    }
}

/// What an insertion wants to know of a bucket.
struct Room {
    alive: usize,
    /// Place of a free entry, or of the one that has been dead for longest; where none is dead, of any.
    longest_dead: usize,
}

impl Room {
    /// Without a branch for an entry.
    fn of(bucket: &[u32; BUCKET], live: Live) -> Self {
        let (mut alive, mut longest) = (0, (0, 0));
        for (at, entry) in bucket.iter().enumerate() {
            let age = live.age(*entry);
            alive += usize::from(age < live.count);
            longest = longest.max((age, at));
        }
        Self {
            alive,
            longest_dead: longest.1,
        }
    }
}

fn low(number: u64) -> u16 {
    u16::try_from(number & 0xffff).unwrap_or(0)
}
