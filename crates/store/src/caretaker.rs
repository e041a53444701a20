//! Sees to generations that take no more events, on one thread for all of them: ends the threads of shards
//! that are drained, removes what was kept for the retention and the idempotency window, and retires a
//! generation of which nothing is left.
//!
//! Retiring: the catalogue records it with what the lanes counted, then the map forgets it, then its files
//! and directories go. After a crash in between the next start removes the rest.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use wayhold_model::LaneId;

use crate::delivery::LaneTotals;
use crate::leftovers::remove_generation;
use crate::shard::core::Shard;
use crate::shard::{keeper, remover};
use crate::shards::Shared;
use crate::store::Inner;

/// How often it looks: nothing of this is urgent.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Starts the thread. It ends with the store.
pub(crate) fn start(inner: &Arc<Inner>) -> std::io::Result<()> {
    let inner = Arc::downgrade(inner);
    let builder = std::thread::Builder::new().name("caretaker".to_owned());
    builder.spawn(move || run(&inner))?;
    Ok(())
}

fn run(inner: &Weak<Inner>) {
    let begun = Instant::now();
    loop {
        std::thread::sleep(LOOK_EVERY);
        // Not held while it sleeps: a store that nobody has any more ends.
        let Some(inner) = inner.upgrade() else { return };
        let _caring = inner.caring();
        if inner.stopping.load(Ordering::Acquire) {
            return;
        }
        inner.look(begun.elapsed());
    }
}

impl Inner {
    fn look(&self, at: Duration) {
        let map = self.shards.map();
        for generation in map.older() {
            for shard in &generation.shards {
                self.see_to(shard);
            }
            if generation.is_drained() {
                self.retire_if_empty(generation);
            }
        }
        let mut changing = self.changing();
        changing.note_rates(&map, at, |generation| self.pending_of(generation));
    }

    fn see_to(&self, shard: &Arc<Shard>) {
        if shard.is_closed() && shard.segments().iter().all(|segment| segment.is_indexed()) {
            // What its newest events occupied in memory is for those who take new ones.
            shard.tail.clear();
        }
        if !shard.is_drained() {
            return;
        }
        let mut all = self.threads();
        let own = all.iter().position(|(other, _)| Arc::ptr_eq(other, shard));
        let own = own.map(|at| all.swap_remove(at));
        drop(all);
        match own {
            Some((shard, mut threads)) => threads.join(&shard),
            None => {
                keeper::forget(shard);
                remover::run_once(shard, &self.stopping);
            }
        }
    }

    /// Retires a drained generation if nobody needs any file of it.
    fn retire_if_empty(&self, generation: &Arc<Shared>) {
        if !generation.shards.iter().all(|shard| shard.is_empty()) {
            return;
        }
        let records = self.catalog.destinations();
        let totals: Vec<(LaneId, LaneTotals)> = records
            .iter()
            .map(|record| {
                let shards = generation.shards.iter();
                let totals = shards.map(|shard| shard.totals(record.lane, record.id));
                (
                    record.lane,
                    totals.fold(LaneTotals::default(), LaneTotals::plus),
                )
            })
            .collect();
        failpoint!("retire.before-recording");
        let number = generation.generation;
        if let Err(error) = self.catalog.retire_generation(number, &totals) {
            // Health says why it takes no changes.
            warn!(generation = number.0, %error, "a drained generation cannot be retired yet");
            return;
        }
        failpoint!("retire.recorded");
        let changing = self.changing();
        let map = self.shards.map();
        self.shards
            .replace(map.without(number, self.catalog.retired_totals()));
        drop(changing);
        for shard in &generation.shards {
            shard.progress.stop();
        }
        match remove_generation(&self.ground, number) {
            Ok(None) => info!(
                generation = number.0,
                "retired: all of it is delivered and forgotten"
            ),
            Ok(Some(finding)) => warn!(generation = number.0, finding),
            Err(error) => {
                warn!(generation = number.0, %error, "a retired generation cannot be removed; the next start does");
            }
        }
    }
}

impl Shard {
    /// Whether nothing is left in it that anybody could ask for.
    fn is_empty(&self) -> bool {
        self.is_drained()
            && self.known().is_empty()
            && matches!(self.progress.has_letters(), Ok(false))
    }
}
