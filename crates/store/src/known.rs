//! Finding an event by its id: what the window and the indexes know of it.

use std::sync::Arc;
use std::time::Duration;

use wayhold_model::{Generation, Position, Sequence, ShardId};

use crate::error::ReadError;
use crate::shard::core::Shard;
use crate::shard::index_file::Identified;
use crate::shard::look_up::unreadable;
use crate::shard::segment::Segment;
use crate::store::Inner;

/// An event that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) position: Position,
    /// In microseconds since the epoch.
    accepted_at: u64,
    pub(crate) fingerprint: Option<u64>,
}

impl Known {
    fn new(segment: &Segment, found: Identified) -> Self {
        let identity = segment.identity;
        Self {
            position: Position {
                generation: Generation(identity.generation),
                shard: ShardId(identity.shard),
                sequence: Sequence(found.sequence),
            },
            accepted_at: found.accepted_at,
            fingerprint: found.fingerprint,
        }
    }
}

impl Inner {
    /// The newest acceptance of an id within the window, given by its producer, among the chapters that it
    /// may lie in. May read the disk.
    pub(crate) fn confirm(
        &self,
        id_hash: u128,
        chapters: &[u64],
    ) -> Result<Option<Known>, ReadError> {
        let oldest = self.now().saturating_sub(self.window.reach().micros);
        for segment in self.segments_of(chapters) {
            let found = self.look_up(&segment, id_hash)?;
            let counts =
                |found: &Identified| found.fingerprint.is_some() && found.accepted_at >= oldest;
            if let Some(found) = found.filter(counts) {
                return Ok(Some(Known::new(&segment, found)));
            }
        }
        Ok(None)
    }

    /// Whether confirming would read no disk.
    pub(crate) fn is_in_memory(&self, chapters: &[u64]) -> bool {
        self.segments_of(chapters)
            .all(|segment| !segment.is_indexed())
    }

    /// The newest event of an id that any index knows. The window says where inside it to look; what lies
    /// beyond is all asked. May read the disk.
    pub(crate) fn newest_of(&self, id_hash: u128) -> Option<Known> {
        // A damaged index is named in health; the others still answer.
        let ask = |segment: Arc<Segment>| {
            let found = self.look_up(&segment, id_hash).ok().flatten()?;
            Some(Known::new(&segment, found))
        };
        let inside = self.window.candidates(id_hash);
        let inside = self.segments_of(&inside).find_map(ask);
        // Beyond the window an id may have been accepted again, with another key in another shard.
        inside.or_else(|| {
            let map = self.shards.now();
            map.all()
                .filter_map(|shard| self.beyond(shard).into_iter().find_map(ask))
                .max_by_key(|known| known.accepted_at)
        })
    }

    /// Segments of a shard of which nothing lies in the window, newest first.
    fn beyond(&self, shard: &Shard) -> Vec<Arc<Segment>> {
        let mut segments = shard.known();
        segments.retain(|segment| !self.window.names(segment));
        segments.reverse();
        segments
    }

    /// How many ids the window knows, and how long ago the oldest was accepted.
    pub(crate) fn remembered(&self) -> (u64, Duration) {
        let now = self.now();
        let reach = self
            .window
            .oldest()
            .map_or(0, |oldest| now.saturating_sub(oldest));
        let reach = reach.min(self.window.reach().micros);
        (self.window.len() as u64, Duration::from_micros(reach))
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    fn segments_of(&self, chapters: &[u64]) -> impl Iterator<Item = Arc<Segment>> {
        chapters
            .iter()
            .flat_map(|chapter| self.window.segments(*chapter))
    }

    fn look_up(&self, segment: &Segment, id_hash: u128) -> Result<Option<Identified>, ReadError> {
        let Some(shard) = self.shard_of(segment) else {
            return Ok(None);
        };
        let disk = shard.disk.as_ref();
        let found = match segment.find(disk, id_hash) {
            Err(error) if shard.mend_index(segment, &error) => segment.find(disk, id_hash),
            other => other,
        };
        found.or_else(
            |error| match self.window.names(segment) || segment.index_path.exists() {
                true => Err(unreadable(segment, &error)),
                // It left the window, and was unlinked, while this looked.
                false => Ok(None),
            },
        )
    }

    fn shard_of(&self, segment: &Segment) -> Option<Arc<Shard>> {
        let identity = segment.identity;
        let map = self.shards.now();
        let shard = map.of(Position {
            generation: Generation(identity.generation),
            shard: ShardId(identity.shard),
            sequence: Sequence(0),
        });
        shard.cloned()
    }
}
