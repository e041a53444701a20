//! The window's past, in chapters: stretches of some thousand ids in order of acceptance, whichever shard
//! they went to. A chapter knows the segments that its ids lie in. It leaves the window whole, once the
//! chapters after it hold as many ids as the window must reach back, or all of it is too old.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::table::{CHAPTERS_MAX, Live};
use crate::shard::segment::Segment;

/// Ids of a chapter, where the window is neither small nor huge: few enough that a chapter mostly lies in
/// one segment, so that a look-up asks one index.
const CHAPTER_IDS: usize = 8_192;

/// A window is never less than this many chapters, so that it holds little more than it must.
const CHAPTERS_MIN: usize = 16;

/// A chapter ends when its ids lie in this many segments: each of them is asked when one of its ids may have
/// come again.
const CHAPTER_SEGMENTS: usize = 64;

/// Chapters that the ids of a window make at most; the other half of the numbers is for those that end by
/// time.
const CHAPTERS_BY_IDS: usize = CHAPTERS_MAX / 2;

/// How far a window reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// The newest ids that it must know.
    pub(crate) ids: usize,
    /// Older ones it need not know, in microseconds.
    pub(crate) micros: u64,
}

impl Reach {
    /// A chapter ends with this many ids.
    fn chapter_ids(self) -> usize {
        (self.ids / CHAPTERS_MIN)
            .clamp(1, CHAPTER_IDS)
            .max(self.chapter_ids_min())
    }

    /// No chapter ends by its segments before it has this many ids: there is a number for every chapter.
    fn chapter_ids_min(self) -> usize {
        self.ids.div_ceil(CHAPTERS_BY_IDS).max(1)
    }

    /// Ids that the window holds at most.
    pub(super) fn ids_held(self) -> usize {
        self.ids + self.chapter_ids()
    }
}

/// Where ids go that were just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Number of the chapter.
    pub(crate) chapter: u64,
    /// How many of the ids it takes; the rest is to be placed again.
    pub(crate) ids: usize,
}

/// Chapters of the window, oldest first; the last one takes ids.
pub(super) struct Chapters {
    reach: Reach,
    chapters: VecDeque<Chapter>,
    /// Number of the last one. Numbers count up.
    newest: u64,
    /// Ids of all.
    ids: usize,
}

#[derive(Default)]
struct Chapter {
    ids: usize,
    segments: Vec<Arc<Segment>>,
    /// When its first and last id were accepted, in microseconds since the epoch.
    began: u64,
    ended: u64,
}

impl Chapters {
    pub(super) fn new(reach: Reach) -> Self {
        Self {
            reach,
            chapters: VecDeque::from([Chapter::default()]),
            newest: 1,
            ids: 0,
        }
    }

    /// Which are in the window.
    pub(super) fn live(&self) -> Live {
        Live {
            newest: self.newest,
            count: self.chapters.len(),
        }
    }

    /// Ids in the window.
    pub(super) fn ids(&self) -> usize {
        self.ids
    }

    /// Takes ids, of which there is at least one, that were accepted at `at` into a segment.
    pub(super) fn place(&mut self, segment: &Arc<Segment>, ids: usize, at: u64) -> Placed {
        self.end_if_due(at);
        let most = self.reach.chapter_ids();
        let number = self.newest;
        let Some(chapter) = self.chapters.back_mut() else {
            return Placed {
                chapter: number,
                ids,
            };
        };
        // At least one: a chapter that cannot end for want of numbers grows.
        let taken = ids.min(most.saturating_sub(chapter.ids).max(1));
        if chapter.ids == 0 {
            chapter.began = at;
        }
        chapter.ids += taken;
        chapter.ended = chapter.ended.max(at);
        if !chapter
            .segments
            .iter()
            .any(|known| Arc::ptr_eq(known, segment))
        {
            chapter.segments.push(Arc::clone(segment));
        }
        segment.chapter.fetch_max(number, Ordering::AcqRel);
        self.ids += taken;
        self.leave(0);
        Placed {
            chapter: number,
            ids: taken,
        }
    }

    /// Lets chapters go of which every id was accepted before `oldest`.
    pub(super) fn expire(&mut self, oldest: u64) {
        if self
            .chapters
            .back()
            .is_some_and(|last| last.ids > 0 && last.ended < oldest)
        {
            self.begin();
        }
        self.leave(oldest);
    }

    /// Segments of a chapter, newest first; none where it has left the window.
    pub(super) fn segments(&self, number: u64) -> Vec<Arc<Segment>> {
        let age = self.newest.checked_sub(number);
        let age = age.and_then(|age| usize::try_from(age).ok());
        let chapter = age
            .and_then(|age| self.chapters.len().checked_sub(age + 1))
            .and_then(|at| self.chapters.get(at));
        chapter.map_or_else(Vec::new, |chapter| {
            chapter.segments.iter().rev().cloned().collect()
        })
    }

    /// Whether ids in the window lie in a segment.
    pub(super) fn names(&self, segment: &Segment) -> bool {
        let live = self.live();
        let named = segment.chapter.load(Ordering::Acquire);
        named > 0 && live.newest - named.min(live.newest) < live.count as u64
    }

    /// When the oldest id in the window was accepted, in microseconds since the epoch.
    pub(super) fn oldest(&self) -> Option<u64> {
        let first = self.chapters.iter().find(|chapter| chapter.ids > 0)?;
        Some(first.began)
    }

    fn end_if_due(&mut self, at: u64) {
        let Some(chapter) = self.chapters.back() else {
            return;
        };
        let many_segments = chapter.segments.len() >= CHAPTER_SEGMENTS;
        let span = self.reach.micros / CHAPTERS_MIN as u64;
        let due = chapter.ids >= self.reach.chapter_ids()
            || many_segments && chapter.ids >= self.reach.chapter_ids_min()
            || chapter.ids > 0 && at.saturating_sub(chapter.began) > span;
        if due {
            self.begin();
        }
    }

    /// Begins a chapter, unless every number is in use.
    fn begin(&mut self) {
        if self.chapters.len() < CHAPTERS_MAX {
            self.newest += 1;
            self.chapters.push_back(Chapter::default());
        }
    }

    /// Lets go, oldest first, of what the window need not know; never of the chapter that takes ids.
    fn leave(&mut self, oldest: u64) {
        while self.chapters.len() > 1
            && let Some(first) = self.chapters.front()
            && (self.ids - first.ids >= self.reach.ids || first.ended < oldest)
        {
            self.ids -= first.ids;
            self.chapters.pop_front();
        }
    }
}
