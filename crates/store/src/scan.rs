//! Reads events that are still held, whoever they were for, in the order in which they were accepted or
//! backwards: what lists and replays of events are made from.
//!
//! Shards of a generation are read side by side, by when their events were accepted; generations one after the
//! other. An event is held while anything of its segment is owed, for the retention after that, and as long as a
//! replay needs it.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use thiserror::Error;
use wayhold_model::{Generation, StoredEvent, Timestamp};

use crate::error::ReadError;
use crate::lane::unreadable;
use crate::shard::core::Shard;
use crate::shard::index_file::{SharedIndex, Wanted};
use crate::shard::segment::Segment;
use crate::shards::{Shards, Shared};

/// Events of one shard that are read at once: what is left over of them is read again by whoever goes on.
const BATCH_MAX: usize = 256;

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanOrder {
    /// As events were accepted: those of a key in their order.
    OldestFirst,
    /// The other way.
    NewestFirst,
}

/// Events by when they were accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    /// The first moment that belongs to it.
    pub from: Timestamp,
    /// The first moment after it.
    pub until: Timestamp,
}

impl Default for TimeRange {
    /// All of time.
    fn default() -> Self {
        Self {
            from: Timestamp::EPOCH,
            until: Timestamp::from_micros(u64::MAX),
        }
    }
}

impl TimeRange {
    /// Whether anything between these two, both included, can belong to it.
    pub(crate) fn meets(&self, oldest: u64, newest: u64) -> bool {
        oldest < self.until.as_micros() && newest >= self.from.as_micros()
    }
}

/// How far a scan has come: the last sequence of each shard that it gave. Its text is opaque to whoever carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPlace {
    generation: Generation,
    /// By number of the shard; `None` where nothing of it was read.
    sequences: Vec<Option<u64>>,
}

/// A text that is no place of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected `next` of the page before")]
pub struct InvalidPlace;

impl fmt::Display for ScanPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.generation.0)?;
        self.sequences.iter().try_for_each(|sequence| {
            f.write_str(".")?;
            sequence.map_or(Ok(()), |sequence| write!(f, "{sequence}"))
        })
    }
}

impl FromStr for ScanPlace {
    type Err = InvalidPlace;

    fn from_str(text: &str) -> Result<Self, InvalidPlace> {
        let mut parts = text.strip_prefix('g').ok_or(InvalidPlace)?.split('.');
        let generation = parts.next().and_then(|number| number.parse().ok());
        let sequences = parts.map(|part| match part {
            "" => Ok(None),
            part => part.parse().map(Some).map_err(|_| InvalidPlace),
        });
        Ok(Self {
            generation: Generation(generation.ok_or(InvalidPlace)?),
            sequences: sequences.collect::<Result<_, _>>()?,
        })
    }
}

/// Reads held events; one owner.
pub struct Scan {
    shards: Arc<Shards>,
    order: ScanOrder,
    range: TimeRange,
    place: Option<ScanPlace>,
    /// What was read of the generation that is being read, and not given yet.
    readers: Vec<Reader>,
}

impl Scan {
    /// From the beginning, or from where another scan of the same order and range had come to.
    pub(crate) fn new(
        shards: Arc<Shards>,
        order: ScanOrder,
        range: TimeRange,
        place: Option<ScanPlace>,
    ) -> Self {
        Self {
            shards,
            order,
            range,
            place,
            readers: Vec::new(),
        }
    }

    /// How far it has come; `None` where it gave nothing yet.
    pub fn place(&self) -> Option<&ScanPlace> {
        self.place.as_ref()
    }

    /// The next event; `None`: there are no more. Reads the disk. Damaged events are left out and named in health.
    ///
    /// # Errors
    /// A file cannot be read; reading again may help.
    pub fn read(&mut self) -> Result<Option<Arc<StoredEvent>>, ReadError> {
        loop {
            if self.readers.is_empty() && !self.open_generation() {
                return Ok(None);
            }
            for reader in &mut self.readers {
                reader.fill(self.order, self.range)?;
            }
            let next = self.readers.iter_mut();
            let next = next.filter(|reader| !reader.read.is_empty());
            let next = match self.order {
                ScanOrder::OldestFirst => next.min_by_key(|reader| reader.head()),
                ScanOrder::NewestFirst => next.max_by_key(|reader| reader.head()),
            };
            if let Some(event) = next.and_then(|reader| reader.read.pop_front()) {
                self.note(&event);
                return Ok(Some(event));
            }
            self.readers.clear();
            if !self.leave_generation() {
                return Ok(None);
            }
        }
    }

    /// Begins to read the generation of the place; whether there is one.
    fn open_generation(&mut self) -> bool {
        let map = self.shards.map();
        let is_ahead = |one: &&Arc<Shared>| match (&self.place, self.order) {
            (None, _) => true,
            (Some(place), ScanOrder::OldestFirst) => one.generation >= place.generation,
            (Some(place), ScanOrder::NewestFirst) => one.generation <= place.generation,
        };
        let mut ahead = map.generations().iter().filter(is_ahead);
        let next = match self.order {
            ScanOrder::OldestFirst => ahead.next(),
            ScanOrder::NewestFirst => ahead.next_back(),
        };
        let Some(next) = next else { return false };
        // One that was being read may have been retired since.
        if self
            .place
            .as_ref()
            .is_none_or(|place| place.generation != next.generation)
        {
            self.place = Some(ScanPlace {
                generation: next.generation,
                sequences: vec![None; next.shards.len()],
            });
        }
        let given = self.place.iter().flat_map(|place| &place.sequences);
        let given = given.copied().chain(std::iter::repeat(None));
        let readers = next.shards.iter().zip(given);
        self.readers = readers
            .map(|(shard, given)| Reader::new(shard, given))
            .collect();
        true
    }

    /// Goes on to the next generation; whether there is one.
    fn leave_generation(&mut self) -> bool {
        let Some(place) = &self.place else {
            return false;
        };
        let map = self.shards.map();
        let mut others = map.generations().iter().filter(|one| match self.order {
            ScanOrder::OldestFirst => one.generation > place.generation,
            ScanOrder::NewestFirst => one.generation < place.generation,
        });
        let next = match self.order {
            ScanOrder::OldestFirst => others.next(),
            ScanOrder::NewestFirst => others.next_back(),
        };
        let Some(next) = next else { return false };
        self.place = Some(ScanPlace {
            generation: next.generation,
            sequences: vec![None; next.shards.len()],
        });
        true
    }

    fn note(&mut self, event: &StoredEvent) {
        let shard = usize::from(event.position.shard.0);
        if let Some(place) = &mut self.place
            && let Some(given) = place.sequences.get_mut(shard)
        {
            *given = Some(event.position.sequence.0);
        }
    }
}

/// One shard's part of a scan.
struct Reader {
    shard: Arc<Shard>,
    /// The last sequence that was read.
    reached: Option<u64>,
    /// Read and not given, in the order of the scan.
    read: VecDeque<Arc<StoredEvent>>,
    is_over: bool,
    /// The index file that is being walked, kept loaded between reads.
    walked: Option<SharedIndex>,
}

impl Reader {
    fn new(shard: &Arc<Shard>, given: Option<u64>) -> Self {
        Self {
            shard: Arc::clone(shard),
            reached: given,
            read: VecDeque::new(),
            is_over: false,
            walked: None,
        }
    }

    fn head(&self) -> Option<(Timestamp, u16)> {
        let first = self.read.front()?;
        Some((first.accepted_at, first.position.shard.0))
    }

    /// Has something to give, unless there is nothing more.
    fn fill(&mut self, order: ScanOrder, range: TimeRange) -> Result<(), ReadError> {
        while self.read.is_empty() && !self.is_over {
            let Some(segment) = self.next_segment(order, range) else {
                self.is_over = true;
                break;
            };
            match self.read_segment(&segment, order, range) {
                // It was removed or compacted while this read it: the lists say what there is now.
                Err(_) if segment.is_dropped() || segment.is_replaced() => {}
                read => read?,
            }
        }
        Ok(())
    }

    /// What is left to be read, as sequences `(above, through]`.
    fn rest(&self, order: ScanOrder) -> (u64, u64) {
        // What is newer is not shown yet.
        let newest = self.shard.newest.load(Ordering::Acquire);
        match (order, self.reached) {
            (ScanOrder::OldestFirst, reached) => (reached.unwrap_or(0), newest),
            (ScanOrder::NewestFirst, None) => (0, newest),
            (ScanOrder::NewestFirst, Some(reached)) => (0, newest.min(reached.saturating_sub(1))),
        }
    }

    /// The next segment that can hold something of the rest.
    fn next_segment(&self, order: ScanOrder, range: TimeRange) -> Option<Arc<Segment>> {
        let (above, through) = self.rest(order);
        let mut held = held_segments(&self.shard);
        held.retain(|segment| {
            let spans = |(first, last)| last > above && first <= through;
            segment.span().is_some_and(spans) && segment.newest() >= range.from.as_micros()
        });
        match order {
            ScanOrder::OldestFirst => held.into_iter().next(),
            ScanOrder::NewestFirst => held.into_iter().next_back(),
        }
    }

    fn read_segment(
        &mut self,
        segment: &Segment,
        order: ScanOrder,
        range: TimeRange,
    ) -> Result<(), ReadError> {
        let shard = Arc::clone(&self.shard);
        let (above, through) = self.rest(order);
        let (first, last) = segment.span().unwrap_or_default();
        let wanted = Wanted {
            order,
            above,
            through,
            range,
            max: BATCH_MAX,
        };
        if segment.is_indexed() {
            self.walked = segment.load(shard.disk.as_ref()).ok();
        }
        let sequences = segment
            .wanted(shard.disk.as_ref(), &wanted)
            .map_err(|error| unreadable(&shard, segment, &error))?;
        if sequences.is_empty() {
            self.reached = Some(match order {
                ScanOrder::OldestFirst => last.min(through),
                ScanOrder::NewestFirst => first,
            });
            self.walked = None;
            // Whatever comes later was accepted later.
            self.is_over |= order == ScanOrder::OldestFirst && is_past(segment, &shard, range);
            return Ok(());
        }
        let mut sequences = sequences.as_slice();
        let rows = loop {
            let rows = shard.rows(segment, sequences)?;
            // A read that was cut for its size gave the oldest.
            match order {
                ScanOrder::NewestFirst if rows.len() < sequences.len() && sequences.len() > 1 => {
                    let (_, newer) = sequences.split_at(sequences.len().div_ceil(2));
                    sequences = newer;
                }
                _ => break rows,
            }
        };
        self.reached = match order {
            ScanOrder::OldestFirst => sequences.get(rows.len().saturating_sub(1)).copied(),
            ScanOrder::NewestFirst => sequences.first().copied(),
        };
        let events = rows.into_iter().flatten();
        match order {
            ScanOrder::OldestFirst => self.read.extend(events),
            ScanOrder::NewestFirst => events.for_each(|event| self.read.push_front(event)),
        }
        Ok(())
    }
}

/// Whether a segment goes on beyond the range.
fn is_past(segment: &Segment, shard: &Shard, range: TimeRange) -> bool {
    let oldest = segment.oldest(shard.disk.as_ref()).ok().flatten();
    oldest.is_some_and(|oldest| oldest >= range.until.as_micros())
}

/// Segments whose events can be read, ascending by sequence.
fn held_segments(shard: &Shard) -> Vec<Arc<Segment>> {
    // In the order in which a segment moves, so that none is missed on its way.
    let mut held = shard.segments();
    held.extend(shard.retained());
    held.retain(|segment| !segment.is_dropped() && !segment.is_replaced());
    held.sort_by_cached_key(|segment| segment.place());
    held.dedup_by_key(|segment| segment.number());
    held
}

impl Shard {
    /// Whether everything of a time that was accepted here is still held.
    pub(crate) fn holds_all(&self, range: TimeRange) -> bool {
        let disk = self.disk.as_ref();
        let oldest = |segment: &Segment| segment.oldest(disk).ok().flatten().unwrap_or(0);
        let known = self.known();
        let (first, begun) = match known.iter().find(|segment| segment.rows() > 0) {
            Some(first) => (first.span().map_or(0, |(first, _)| first), oldest(first)),
            None => (self.newest.load(Ordering::Acquire) + 1, u64::MAX),
        };
        // Of what lies before the first segment that is known, only that it is older is known.
        if first > 1 && range.from.as_micros() < begun {
            return false;
        }
        let held: Vec<u64> = held_segments(self)
            .iter()
            .map(|segment| segment.number())
            .collect();
        let is_whole =
            |segment: &Segment| held.contains(&segment.number()) && !segment.is_compacted();
        known
            .iter()
            .filter(|segment| segment.rows() > 0 && !is_whole(segment))
            .all(|segment| !range.meets(oldest(segment), segment.newest()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_carried_as_text_and_nothing_else_is_one() {
        for (generation, sequences) in [
            (1, vec![Some(7)]),
            (3, vec![None, Some(0), Some(u64::MAX)]),
            (u32::MAX, vec![None]),
        ] {
            let place = ScanPlace {
                generation: Generation(generation),
                sequences,
            };
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for text in ["", "g", "1.2", "g1.x", "g-1.2", "g1.-2", "gx.1"] {
            assert_eq!(text.parse::<ScanPlace>(), Err(InvalidPlace), "{text}");
        }
    }
}
