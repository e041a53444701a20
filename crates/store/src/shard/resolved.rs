//! What a start makes of segments of which everything was resolved: removals are finished, and what is
//! kept stays kept. Two witnesses say what is resolved: progress, and, should that be lost, the index files.

use std::collections::BTreeSet;
use std::sync::Arc;

use wayhold_model::{DestinationId, LaneId, Sequence};

use super::recovery::{Opening, unusable};
use super::segment::{Segment, database_path};
use crate::disk::{leaving, unlink_database};
use crate::error::OpenError;
use crate::progress::{LaneView, ResolvedSegment};

impl Opening<'_> {
    /// Finishes removals of resolved segments whose databases have left their names; the highest number that
    /// is recorded as resolved, which must not be given again while that record may still be on disk.
    pub(super) fn finish_removals(&self) -> Result<u64, OpenError> {
        let mut highest = 0;
        for resolved in self.progress.resolved_segments() {
            highest = highest.max(resolved.segment);
            let path = database_path(self.dir(), resolved.segment);
            let is_kept = self.disk().exists(&path);
            if is_kept.map_err(|error| unusable(&path, &error))? {
                continue;
            }
            unlink_database(self.disk(), &path)
                .and_then(|()| self.disk().unlink(&leaving(&path)))
                .map_err(|error| unusable(&path, &error))?;
            self.progress.forget_segment(resolved.segment);
        }
        Ok(highest)
    }

    /// Parts resolved segments from the others. Progress says which are; where it was lost, the index files
    /// say it, so that not everything is delivered again.
    pub(super) fn part_resolved(
        &self,
        segments: Vec<Arc<Segment>>,
    ) -> (Vec<Arc<Segment>>, Vec<Arc<Segment>>) {
        let recorded: BTreeSet<u64> = self
            .progress
            .resolved_segments()
            .into_iter()
            .map(|resolved| resolved.segment)
            .collect();
        segments.into_iter().partition(|segment| {
            if recorded.contains(&segment.number()) {
                self.note_resolved(segment);
                return true;
            }
            segment.resolved_at().is_some() && {
                self.take_over_resolved(segment);
                true
            }
        })
    }

    /// The last run may have ended between recording it and noting it.
    fn note_resolved(&self, segment: &Segment) {
        if segment.resolved_at().is_none()
            && let Err(error) = segment.note_resolved(self.disk(), self.now.as_micros())
        {
            self.condition.degraded(format!(
                "{} cannot say that its segment is resolved: {error}",
                segment.index_path.display()
            ));
        }
    }

    /// Records a segment that only its index file knows as resolved. How its deliveries ended is lost with
    /// progress: it counts for what progress still knows of it, so that the accounting holds.
    fn take_over_resolved(&self, segment: &Segment) {
        let Some((first, last)) = segment.span() else {
            return;
        };
        let (first, last) = (Sequence(first), Sequence(last));
        let known: Vec<(LaneId, u64)> = segment
            .counts()
            .into_keys()
            .filter_map(|destination| {
                let lane = own_lane(destination);
                let stretch = segment.stretch(destination, lane)?;
                // What lies below a floor was counted when the floor rose above it.
                let known = |view: LaneView<'_>| match last < view.floor() {
                    true => 0,
                    false => view.count_resolved(&stretch),
                };
                Some((lane, self.progress.view(lane, known)))
            })
            .collect();
        let resolved = ResolvedSegment {
            segment: segment.number(),
            first,
            last,
        };
        // Written soon; before its database goes the remover makes sure of that.
        self.progress.take_over_segment(resolved, &known);
    }
}

/// A destination's own lane has the destination's number.
pub(crate) fn own_lane(destination: DestinationId) -> LaneId {
    LaneId(destination.0)
}
