//! The idempotency window: which ids were accepted lately, and which are on their way to the disk.
//!
//! A fixed table in memory, allocated at open: per id 12 bytes in a ring, in order of acceptance, and
//! an open-addressing table of ring slots at most half full. A look-up costs the same whatever the
//! number of segments. The table keeps 64 bits of the identity and 32 of the sequence; a hit, and only
//! a hit, is confirmed against the segment's index, which has the whole.
//!
//! An id is *reserved* before its event is queued, so that two requests with one id cannot both be
//! stored; the second waits for the first one's commit. Rebuilt at open from index files.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Independently locked parts, so that connections rarely meet: a lock is held for one look-up.
const STRIPES: usize = 16;

/// No slot.
const NONE: u32 = u32::MAX;

/// The ids of the window.
pub(crate) struct Window {
    stripes: Box<[Stripe]>,
}

struct Stripe {
    table: Mutex<Table>,
    /// Wakes those who wait for a reservation to end.
    ended: Notify,
}

struct Table {
    /// Ring slots by hash, linear probing, `NONE` where free. Its length is a power of two.
    slots: Box<[u32]>,
    ring: Box<[Remembered]>,
    /// Where the next id goes in the ring; once it has gone round, the oldest is forgotten.
    next: usize,
    filled: usize,
    reserved: HashMap<u128, Waited>,
}

#[derive(Clone, Copy, Default)]
struct Remembered {
    hash: [u32; 2],
    sequence_low: u32,
}

impl Remembered {
    fn hash(self) -> u64 {
        u64::from(self.hash[0]) | u64::from(self.hash[1]) << 32
    }
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
    /// Reserved. The low halves of the sequences under which the id may have been accepted before,
    /// newest first: to be confirmed.
    Reserved(Candidates),
    /// Another request has it: wait with `ended` and try again.
    Taken,
}

/// Low halves of sequences; nearly always none or one.
pub(crate) type Candidates = Vec<u32>;

/// Ids that one request has reserved. They travel with it, so that they are given up when it ends in any
/// other way than by a commit: refused, abandoned, or never taken from the queue of a store that stopped.
pub(crate) struct Reservations {
    window: Arc<Window>,
    ids: Vec<u128>,
}

impl Reservations {
    /// None yet.
    pub(crate) fn new(window: &Arc<Window>) -> Self {
        Self {
            window: Arc::clone(window),
            ids: Vec::new(),
        }
    }

    /// Reserves an id, after the request that has it ended.
    pub(crate) async fn reserve(&mut self, id_hash: u128) -> Candidates {
        loop {
            let ended = self.window.ended(id_hash);
            match self.window.reserve(id_hash) {
                Reserve::Reserved(candidates) => {
                    self.ids.push(id_hash);
                    return candidates;
                }
                Reserve::Taken => ended.await,
            }
        }
    }

    /// Gives the id up that was reserved last.
    pub(crate) fn give_up_last(&mut self) {
        if let Some(id_hash) = self.ids.pop() {
            self.window.release(id_hash);
        }
    }

    /// Every id of it was remembered, which ended its reservation.
    pub(crate) fn remembered(mut self) {
        self.ids.clear();
    }
}

impl Drop for Reservations {
    fn drop(&mut self) {
        for id_hash in &self.ids {
            self.window.release(*id_hash);
        }
    }
}

impl Window {
    /// A window over at most `ids` ids.
    pub(crate) fn new(ids: usize) -> Self {
        let per_stripe = ids.div_ceil(STRIPES).clamp(1, (NONE - 1) as usize);
        let stripes = (0..STRIPES)
            .map(|_| Stripe {
                table: Mutex::new(Table {
                    slots: vec![NONE; (per_stripe * 2).next_power_of_two()].into_boxed_slice(),
                    ring: vec![Remembered::default(); per_stripe].into_boxed_slice(),
                    next: 0,
                    filled: 0,
                    reserved: HashMap::new(),
                }),
                ended: Notify::new(),
            })
            .collect();
        Self { stripes }
    }

    /// Reserves an id, unless another request has it.
    pub(crate) fn reserve(&self, id_hash: u128) -> Reserve {
        let mut table = self.table(id_hash);
        match table.reserved.entry(id_hash) {
            std::collections::hash_map::Entry::Occupied(mut taken) => {
                taken.insert(Waited::Yes);
                return Reserve::Taken;
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(Waited::No);
            }
        }
        Reserve::Reserved(table.candidates(low(id_hash)))
    }

    /// Waits until some reservation near this id ended; `reserve` again then. Create the future before
    /// the call of `reserve` that decides to await it, or the end can be missed.
    pub(crate) fn ended(&self, id_hash: u128) -> tokio::sync::futures::Notified<'_> {
        self.stripe(id_hash).ended.notified()
    }

    /// Gives a reservation up: nothing was stored.
    fn release(&self, id_hash: u128) {
        let waited = self.table(id_hash).reserved.remove(&id_hash);
        self.wake(id_hash, waited);
    }

    /// Turns a reservation into a remembered id.
    pub(crate) fn remember(&self, id_hash: u128, sequence: u64) {
        let waited = {
            let mut table = self.table(id_hash);
            table.insert(low(id_hash), sequence);
            table.reserved.remove(&id_hash)
        };
        self.wake(id_hash, waited);
    }

    /// Adds an id at open, oldest first.
    pub(crate) fn restore(&self, id_hash: u128, sequence: u64) {
        self.table(id_hash).insert(low(id_hash), sequence);
    }

    /// Without confirming: low halves of the sequences the id may lie at, newest first.
    pub(crate) fn candidates(&self, id_hash: u128) -> Candidates {
        self.table(id_hash).candidates(low(id_hash))
    }

    /// Ids remembered.
    pub(crate) fn len(&self) -> usize {
        self.stripes
            .iter()
            .map(|stripe| lock(&stripe.table).filled)
            .sum()
    }

    /// Low half of the sequence of the oldest id remembered in any one part: how far back the window
    /// reaches, within one part in `STRIPES`.
    pub(crate) fn oldest(&self) -> Option<u32> {
        let table = lock(&self.stripes.first()?.table);
        let oldest = if table.filled < table.ring.len() {
            0
        } else {
            table.next
        };
        (table.filled > 0)
            .then(|| table.ring.get(oldest).map(|id| id.sequence_low))
            .flatten()
    }

    fn stripe(&self, id_hash: u128) -> &Stripe {
        // The top bits: the table inside uses the low ones.
        let index = usize::try_from(id_hash >> 124).unwrap_or(0) % STRIPES;
        self.stripes
            .get(index)
            .expect("the index is below the number of stripes")
    }

    fn table(&self, id_hash: u128) -> MutexGuard<'_, Table> {
        lock(&self.stripe(id_hash).table)
    }

    fn wake(&self, id_hash: u128, waited: Option<Waited>) {
        if waited == Some(Waited::Yes) {
            self.stripe(id_hash).ended.notify_waiters();
        }
    }
}

impl Table {
    fn candidates(&self, hash: u64) -> Candidates {
        let mut found: Vec<(usize, u32)> = self
            .probe(hash)
            .filter_map(|(_, slot)| Some((slot, self.ring.get(slot)?)))
            .filter(|(_, id)| id.hash() == hash)
            .map(|(slot, id)| (self.age(slot), id.sequence_low))
            .collect();
        found.sort_unstable_by_key(|(age, _)| *age);
        found
            .into_iter()
            .map(|(_, sequence_low)| sequence_low)
            .collect()
    }

    /// How many ids were remembered after the one in this ring slot.
    fn age(&self, slot: usize) -> usize {
        (self.next + self.ring.len() - slot - 1) % self.ring.len()
    }

    /// Table positions and their ring slots from a hash's home up to the first free position.
    fn probe(&self, hash: u64) -> impl Iterator<Item = (usize, usize)> {
        let mask = self.slots.len() - 1;
        let home = usize::try_from(hash & mask as u64).unwrap_or(0);
        (0..self.slots.len())
            .map(move |step| (home + step) & mask)
            .map_while(|at| Some((at, *self.slots.get(at)?)))
            .take_while(|(_, slot)| *slot != NONE)
            .map(|(at, slot)| (at, slot as usize))
    }

    fn insert(&mut self, hash: u64, sequence: u64) {
        let slot = self.next;
        if self.filled == self.ring.len() {
            self.forget(slot);
        } else {
            self.filled += 1;
        }
        if let Some(id) = self.ring.get_mut(slot) {
            let [low, high] = [hash, hash >> 32].map(low_half);
            *id = Remembered {
                hash: [low, high],
                sequence_low: low_half(sequence),
            };
        }
        let mask = self.slots.len() - 1;
        let mut at = usize::try_from(hash & mask as u64).unwrap_or(0);
        while let Some(taken) = self.slots.get_mut(at) {
            if *taken == NONE {
                *taken = u32::try_from(slot).unwrap_or(NONE);
                break;
            }
            at = (at + 1) & mask;
        }
        self.next = (slot + 1) % self.ring.len();
    }

    /// Removes the id of a ring slot from the table, moving later ones back so that no probe breaks
    /// (Knuth, volume 3, algorithm 6.4 R).
    fn forget(&mut self, slot: usize) {
        let Some(hash) = self.ring.get(slot).map(|id| id.hash()) else {
            return;
        };
        let found = self.probe(hash).find(|(_, candidate)| *candidate == slot);
        let Some((mut hole, _)) = found else { return };
        let mask = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let moved = self.slots.get(at).copied().unwrap_or(NONE);
            if moved == NONE {
                break;
            }
            let home = self.ring.get(moved as usize).map_or(0, |id| id.hash());
            let home = usize::try_from(home & mask as u64).unwrap_or(0);
            // It may move into the hole unless its home lies cyclically in (hole, at].
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                if let Some(free) = self.slots.get_mut(hole) {
                    *free = moved;
                }
                hole = at;
            }
        }
        if let Some(free) = self.slots.get_mut(hole) {
            *free = NONE;
        }
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn low(id_hash: u128) -> u64 {
    u64::try_from(id_hash & u128::from(u64::MAX)).unwrap_or(0)
}

fn low_half(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0)
}

/// The newest sequence not above `newest` whose low half is `sequence_low`.
pub(crate) fn widen(sequence_low: u32, newest: u64) -> Option<u64> {
    let candidate = (newest & !u64::from(u32::MAX)) | u64::from(sequence_low);
    if candidate <= newest {
        Some(candidate)
    } else {
        candidate.checked_sub(1 << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Identities that collide in the table as real ones would once in a lifetime.
    fn id(number: u64) -> u128 {
        u128::from(number % 4) << 124 | u128::from(number) << 64 | u128::from(number * 0x11)
    }

    #[test]
    fn a_second_reservation_is_refused_until_the_first_ends() {
        let window = Window::new(100);
        assert_eq!(window.reserve(id(1)), Reserve::Reserved(vec![]));
        assert_eq!(window.reserve(id(1)), Reserve::Taken);
        window.release(id(1));
        assert_eq!(window.reserve(id(1)), Reserve::Reserved(vec![]));
        window.remember(id(1), 7);
        assert_eq!(window.reserve(id(1)), Reserve::Reserved(vec![7]));
    }

    #[tokio::test]
    async fn who_waits_for_a_reservation_is_woken_by_its_end() {
        let window = Arc::new(Window::new(100));
        window.reserve(id(1));
        let mut waiting = Reservations::new(&window);
        let waiter = tokio::spawn(async move { waiting.reserve(id(1)).await });
        tokio::task::yield_now().await;
        window.remember(id(1), 42);
        assert_eq!(waiter.await.unwrap(), vec![42]);
    }

    #[tokio::test]
    async fn ids_of_a_request_are_free_again_when_it_ends_without_a_commit() {
        let window = Arc::new(Window::new(100));
        let mut request = Reservations::new(&window);
        for number in [1, 2, 3] {
            request.reserve(id(number)).await;
        }
        request.give_up_last();
        assert_eq!(window.reserve(id(3)), Reserve::Reserved(vec![]));
        assert_eq!(window.reserve(id(1)), Reserve::Taken);
        drop(request);
        assert_eq!(window.reserve(id(1)), Reserve::Reserved(vec![]));
        // What another request reserved since is not touched by one that was committed.
        let committed = Reservations {
            window: Arc::clone(&window),
            ids: vec![id(1)],
        };
        committed.remembered();
        assert_eq!(window.reserve(id(1)), Reserve::Taken);
    }

    #[test]
    fn sequences_beyond_32_bits_are_widened_from_the_newest() {
        for (sequence, newest) in [
            (5, 5),
            (5, 4_000_000_000),
            (u64::MAX, u64::MAX),
            (1 << 40, (1 << 40) + 9),
            ((1 << 32) - 1, 1 << 32),
        ] {
            assert_eq!(widen(low_half(sequence), newest), Some(sequence));
        }
        assert_eq!(widen(9, 5), None);
    }

    proptest! {
        #[test]
        fn it_remembers_exactly_the_newest_ids(
            numbers in prop::collection::vec(0_u64..200, 1..600),
            capacity in 1_usize..40,
        ) {
            let window = Window::new(capacity * STRIPES);
            let mut accepted: Vec<(u128, u64)> = Vec::new();
            for (at, number) in numbers.iter().enumerate() {
                let (hash, sequence) = (id(*number), at as u64);
                prop_assert!(matches!(window.reserve(hash), Reserve::Reserved(_)));
                window.remember(hash, sequence);
                accepted.push((hash, sequence));
            }
            for number in 0..200 {
                let hash = id(number);
                let expected: Vec<u32> = accepted
                    .iter()
                    .rev()
                    .filter(|(other, _)| other >> 124 == hash >> 124)
                    .take(capacity)
                    .filter(|(other, _)| *other == hash)
                    .map(|(_, sequence)| low_half(*sequence))
                    .collect();
                prop_assert_eq!(window.candidates(hash), expected);
            }
        }
    }
}
