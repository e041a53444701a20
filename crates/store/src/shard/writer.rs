//! The shard's one writer: takes what waits in the queue, commits it as one group, and answers.
//!
//! There is no artificial wait: while one group syncs the next one gathers. A file whose write or sync
//! failed is never appended to again, because reopening it would adopt the failed group from the page
//! cache and later acknowledged groups would hang on a hole: it is sealed at its last acknowledged
//! sequence and a new segment begins. A write refused for lack of space is rolled back instead.
//!
//! Owns the active segment and the mark. A crash at any point leaves every acknowledged row synced.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::{error, info};
use wayhold_model::{DestinationId, DestinationSet, Sequence, StoredEvent, Timestamp};

use super::core::Shard;
use super::mark::{Mark, MarkFile, Reach, SEGMENTS_MAX};
use super::preparer::Prepared;
use super::row::Row;
use super::segment::Segment;
use super::segment_file::SegmentWriter;
use crate::connection::Fault;
use crate::delivery::{NewEvent, SetAside};
use crate::error::AppendError;
use crate::options::{CHECKPOINTS_WAITING_MAX, UNINDEXED_MAX};
use crate::shards::Name;
use crate::window::{Placed, Reservations};

/// Events of one request on their way to the disk.
pub(crate) struct Request {
    pub(crate) events: Vec<Queued>,
    /// Their ids, where the producer gave them.
    pub(crate) reservations: Reservations,
    /// Answers with the sequence of the first event; the others follow it one by one.
    pub(crate) answer: oneshot::Sender<Result<u64, AppendError>>,
    /// Room in the queue, given back when the request is answered.
    pub(crate) room: OwnedSemaphorePermit,
    /// Bytes of the events.
    pub(crate) bytes: usize,
}

/// One event on its way to the disk.
pub(crate) struct Queued {
    pub(crate) new: NewEvent,
    pub(crate) id_hash: u128,
    pub(crate) fingerprint: u64,
    pub(crate) key_hash: Option<u64>,
}

/// What the writer is asked to do.
pub(crate) enum Order {
    /// Store these.
    Append(Request),
    /// Commit what was queued before, and end.
    Stop,
}

/// How long the writer waits for the keeper or a new file before it looks again.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long requests wait for a new file, or for closed segments to be sealed and checkpointed, before they
/// are refused: as long as for room in the queue. A disk that is merely slow refuses nobody.
const REFUSE_AFTER: Duration = crate::queue::ROOM_WAIT;

/// Why nothing is accepted while closed segments cannot be sealed or checkpointed.
const KEEPING_BEHIND: &str = "closed segments wait for their index files or checkpoints";

/// Why nothing is accepted while no new file can be made.
const NO_SEGMENT: &str = "a new segment cannot be made";

/// State of the writer's thread.
pub(crate) struct Writer {
    shard: Arc<Shard>,
    orders: Receiver<Order>,
    prepared: Receiver<Prepared>,
    active: Active,
    mark_file: MarkFile,
    mark: Mark,
    /// Number of the first segment of this run.
    first_segment: u64,
    /// The next sequence to give.
    next: u64,
    /// Store time: never moves backwards.
    now: Timestamp,
    /// Whether it is to end.
    stopping: bool,
    /// Whether nothing will ever be queued again: the shard is closed.
    closing: bool,
    /// Reused between groups.
    rows: Vec<Row>,
}

/// The segment that takes rows.
pub(crate) struct Active {
    pub(crate) file: SegmentWriter,
    pub(crate) segment: Arc<Segment>,
    pub(crate) rows: u32,
    /// When it got its first row.
    pub(crate) since: Option<Instant>,
}

/// Where a writer goes on from.
pub(crate) struct Start {
    pub(crate) active: Active,
    pub(crate) mark_file: MarkFile,
    pub(crate) mark: Mark,
    pub(crate) next: u64,
    pub(crate) now: Timestamp,
}

impl Writer {
    pub(crate) fn new(
        shard: Arc<Shard>,
        orders: Receiver<Order>,
        prepared: Receiver<Prepared>,
        start: Start,
    ) -> Self {
        let Start {
            active,
            mark_file,
            mark,
            next,
            now,
        } = start;
        Self {
            shard,
            orders,
            prepared,
            first_segment: active.segment.number(),
            active,
            mark_file,
            mark,
            next,
            now,
            stopping: false,
            closing: false,
            rows: Vec::new(),
        }
    }

    /// Runs until it is told to stop, or nobody can queue anything any more; then leaves a clean mark.
    pub(crate) fn run(mut self) {
        let mut group = Vec::new();
        while !self.stopping {
            self.gather(&mut group);
            if !group.is_empty() {
                self.commit(&mut group);
            }
            if self.is_full() && !self.stopping {
                self.roll();
            }
        }
        failpoint!("stop.before-mark");
        self.mark.clean = true;
        self.write_mark();
        failpoint!("stop.mark-written");
        if let Err(error) = self.mark_file.sync() {
            error!(%error, "the mark cannot be synced; the next start counts as unclean");
        }
        if self.closing {
            self.close();
        }
    }

    /// Everything that will ever lie in this shard is committed: the keeper seals the last segment, and lanes
    /// know where the end is.
    fn close(self) {
        let Self { shard, active, .. } = self;
        close(&shard, active);
        shard.bells.ring_all();
        shard.keeper.wake();
        info!(shard = %Name(shard.generation, shard.id), "closed: takes no more events, and drains");
    }

    /// Waits for requests and takes what is queued, up to the size of a group.
    fn gather(&mut self, group: &mut Vec<Request>) {
        let wait = self
            .active
            .since
            .map_or(self.shard.options.segment_age, |since| {
                self.shard
                    .options
                    .segment_age
                    .saturating_sub(since.elapsed())
            });
        let mut bytes = 0;
        let mut order = match self.orders.recv_timeout(wait) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => {
                self.end();
                return;
            }
        };
        loop {
            match order {
                Order::Stop => {
                    self.stopping = true;
                    return;
                }
                Order::Append(request) => {
                    bytes += request.bytes;
                    group.push(request);
                }
            }
            // The next request is taken only if the group has room: one request is never split, so a
            // group may exceed its size by one request.
            if bytes >= self.shard.options.group_bytes {
                return;
            }
            match self.orders.try_recv() {
                Ok(next) => order = next,
                Err(_) => return,
            }
        }
    }

    /// Nobody holds the other end of the queue any more.
    fn end(&mut self) {
        (self.stopping, self.closing) = (true, true);
    }

    fn commit(&mut self, group: &mut Vec<Request>) {
        self.now = self.now.max(self.shard.clock.now());
        self.rows.clear();
        for request in &*group {
            for queued in &request.events {
                let sequence = self.next + self.rows.len() as u64;
                self.rows
                    .push(row(queued, self.shard.position(sequence), self.now));
            }
        }
        let first = self.next;
        // Sequences of a failed group are burned, never given again.
        self.next += self.rows.len() as u64;
        let started = Instant::now();
        if planted!("mark-ahead-of-the-truth") {
            self.reached(self.next - 1);
        }
        failpoint!("group.before-commit");
        match self.active.file.append(&self.rows) {
            Ok(()) => {
                self.shard.commits.count(self.rows.len(), started.elapsed());
                self.committed(group, first);
            }
            Err((Fault::NoSpace, _)) => {
                self.shard.space.exhausted();
                let retry_after = self.shard.space.wait();
                Self::refuse(group, &AppendError::NoSpace { retry_after });
            }
            Err(_) if planted!("failure-answered-as-success") => self.committed(group, first),
            Err((_, failure)) if planted!("append-after-a-failed-sync") => {
                let reason = failure.to_string();
                Self::refuse(group, &AppendError::Unavailable { reason });
            }
            Err((_, failure)) => {
                let reason = format!(
                    "writing {} failed: {failure}",
                    self.active.segment.path.display()
                );
                self.shard.condition.set_unavailable(Some(reason.clone()));
                self.shard.condition.degraded(reason.clone());
                Self::refuse(group, &AppendError::Unavailable { reason });
                self.replace();
            }
        }
        self.rows.clear();
    }

    /// The group is synced: shows it to lanes and look-ups, then answers.
    fn committed(&mut self, group: &mut Vec<Request>, first: u64) {
        failpoint!("group.committed");
        let shard = &self.shard;
        let last = self.next - 1;
        self.active.segment.committed(&self.rows);
        self.active
            .segment
            .bytes
            .store(self.active.file.wal_bytes(), Ordering::Relaxed);
        self.active.since.get_or_insert_with(Instant::now);
        self.active.rows = self
            .active
            .rows
            .saturating_add(u32::try_from(self.rows.len()).unwrap_or(u32::MAX));
        // Before any lane can read them.
        crate::failpoint!("writer.before-set-aside");
        self.set_aside(group, first);
        shard.newest.store(last, Ordering::Release);
        shard
            .tail
            .push(self.rows.iter().map(|row| Arc::clone(&row.stored)));
        failpoint!("group.before-mark");
        self.reached(last);
        failpoint!("group.marked");
        let mut sequence = first;
        let mut placed = Placed { chapter: 0, ids: 0 };
        for request in group.drain(..) {
            let answer = sequence;
            for queued in &request.events {
                if placed.ids == 0 {
                    let left = usize::try_from(self.next - sequence).unwrap_or(usize::MAX);
                    let segment = &self.active.segment;
                    placed = self.shard.window.place(segment, left, self.now.as_micros());
                }
                placed.ids -= 1;
                self.shard.window.remember(queued.id_hash, placed.chapter);
                sequence += 1;
            }
            request.reservations.remembered();
            // A caller that has gone away needs no answer; its events are stored all the same.
            drop(request.answer.send(Ok(answer)));
            drop(request.room);
        }
        failpoint!("group.answered");
        self.ring();
    }

    /// Records the deliveries whose destinations were over their limit as dead letters. A crash before that
    /// leaves them pending.
    fn set_aside(&self, group: &[Request], first: u64) {
        let mut deliveries = Vec::new();
        let events = group.iter().flat_map(|request| &request.events);
        for (sequence, queued) in (first..).zip(events) {
            let Some(set_aside) = &queued.new.set_aside else {
                continue;
            };
            let owed = set_aside.ids().iter();
            let owed = owed.filter(|id| queued.new.destinations.contains(**id));
            deliveries.extend(owed.filter_map(|destination| {
                let lane = self.shard.lane_of(*destination)?;
                Some((lane, *destination, Sequence(sequence)))
            }));
        }
        let Some((_, _, newest)) = deliveries.last() else {
            return;
        };
        let shard = &self.shard;
        shard.set_aside_until.store(newest.0, Ordering::Release);
        shard
            .progress
            .set_aside(&deliveries, SetAside::BacklogLimit, self.now);
    }

    /// Wakes the lanes that got something.
    fn ring(&self) {
        let mut rung: Vec<DestinationId> = Vec::new();
        let mut seen: Option<&Arc<DestinationSet>> = None;
        for row in &self.rows {
            let set = &row.stored.destinations;
            if seen.is_some_and(|seen| Arc::ptr_eq(seen, set)) {
                continue;
            }
            seen = Some(set);
            rung.extend(set.ids());
        }
        rung.sort_unstable();
        rung.dedup();
        self.shard.bells.ring(&rung);
    }

    fn refuse(group: &mut Vec<Request>, error: &AppendError) {
        for request in group.drain(..) {
            // Before the answer, so that sending again need not wait.
            drop(request.reservations);
            drop(request.answer.send(Err(error.clone())));
        }
    }

    /// Lets the mark say that the active segment reaches to `last`.
    fn reached(&mut self, last: u64) {
        let reach = Reach {
            segment: self.active.segment.number(),
            last,
            wal_bytes: self.active.file.wal_bytes(),
        };
        advance(&mut self.mark, reach);
        self.write_mark();
    }

    fn write_mark(&mut self) {
        match self.mark_file.write(&self.mark) {
            Ok(()) => self.shard.mark_dirty.store(true, Ordering::Release),
            // An older mark only makes the next start copy more.
            Err(error) => self
                .shard
                .condition
                .degraded(format!("the mark cannot be written: {error}")),
        }
    }

    fn is_full(&self) -> bool {
        let options = &self.shard.options;
        self.active.rows > 0
            && (self.active.file.wal_bytes() >= options.segment_bytes
                || self.active.rows >= options.segment_rows
                || self
                    .active
                    .since
                    .is_some_and(|since| since.elapsed() >= options.segment_age))
    }

    /// Ends the active segment and goes on in the prepared one.
    fn roll(&mut self) {
        failpoint!("roll.before-mark-sync");
        if let Err(error) = self.mark_file.sync() {
            self.shard
                .condition
                .degraded(format!("the mark cannot be synced: {error}"));
        }
        failpoint!("roll.mark-synced");
        self.begin_next();
        failpoint!("roll.begun");
        self.shard.keeper.wake();
        // Accepting slows down rather than leave more work than a restart may take, and is refused where
        // that work does not get on.
        let begun = Instant::now();
        while self.backlog_of_keeping() && !self.stopping {
            self.shard.keeper.await_round(PATIENCE);
            if begun.elapsed() >= REFUSE_AFTER {
                self.refuse_for(KEEPING_BEHIND);
            }
        }
        self.accept_after(KEEPING_BEHIND);
    }

    fn backlog_of_keeping(&self) -> bool {
        let segments = self.shard.segments();
        let closed = || segments.iter().filter(|segment| segment.is_closed());
        let old = self.shard.clock.now().as_micros().saturating_sub(
            u64::try_from(self.shard.options.checkpoint_after.as_micros()).unwrap_or(u64::MAX),
        );
        let unindexed = closed().filter(|segment| !segment.is_indexed()).count();
        // What an earlier run left is due all at once and grows no further: it holds nobody up.
        let waiting = closed()
            .filter(|segment| segment.number() >= self.first_segment)
            .filter(|segment| !segment.checkpointed.load(Ordering::Relaxed))
            .filter(|segment| segment.closed_at.load(Ordering::Relaxed) < old)
            .count();
        unindexed > UNINDEXED_MAX || waiting > CHECKPOINTS_WAITING_MAX
    }

    /// After a failed write: seals the segment at its last acknowledged sequence by its index file and
    /// begins a new one. Until both are synced nothing is accepted.
    fn replace(&mut self) {
        let failed = Arc::clone(&self.active.segment);
        self.begin_next();
        while let Err(error) = failed.write_index(self.shard.disk.as_ref())
            && !self.stopping
        {
            self.shard.condition.degraded(format!(
                "{} cannot be sealed: {error}",
                failed.path.display()
            ));
            self.refuse_queued();
            std::thread::sleep(PATIENCE);
        }
        self.refuse_queued();
        self.shard.condition.set_unavailable(None);
        info!(
            segment = self.active.segment.number(),
            "accepting resumes in a new segment"
        );
    }

    /// Closes the active segment and takes the prepared one; waits for it as long as it takes.
    fn begin_next(&mut self) {
        let begun = Instant::now();
        let prepared = loop {
            if let Ok(prepared) = self.prepared.recv_timeout(PATIENCE) {
                break prepared;
            }
            if self.stopping {
                return;
            }
            // Whoever is refused for another reason already need not wait for this one.
            if begun.elapsed() >= REFUSE_AFTER || self.shard.condition.unavailable().is_some() {
                self.refuse_for(NO_SEGMENT);
            }
        };
        let segment = Arc::new(prepared.segment);
        let active = Active {
            file: prepared.file,
            segment,
            rows: 0,
            since: None,
        };
        self.shard.add_segment(Arc::clone(&active.segment));
        let closed = std::mem::replace(&mut self.active, active);
        // The connection goes first: a closed segment has a checkpointer or a writer, never both.
        drop(closed.file);
        closed
            .segment
            .closed_at
            .store(self.shard.clock.now().as_micros().max(1), Ordering::Release);
        self.accept_after(NO_SEGMENT);
    }

    /// Refuses what is queued and what comes, unless something graver is refused for already.
    fn refuse_for(&mut self, reason: &str) {
        if self.shard.condition.unavailable().is_none() {
            self.shard
                .condition
                .set_unavailable(Some(reason.to_owned()));
        }
        self.refuse_queued();
    }

    /// Ends the refusals for this reason.
    fn accept_after(&self, reason: &str) {
        if self.shard.condition.unavailable().as_deref() == Some(reason) {
            self.shard.condition.set_unavailable(None);
        }
    }

    /// Answers what queued up while nothing can be written.
    fn refuse_queued(&mut self) {
        let reason = self.shard.condition.unavailable().unwrap_or_default();
        let mut group = Vec::new();
        loop {
            match self.orders.try_recv() {
                Ok(Order::Append(request)) => group.push(request),
                Ok(Order::Stop) => self.stopping = true,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.end();
                    break;
                }
            }
        }
        Self::refuse(&mut group, &AppendError::Unavailable { reason });
    }
}

/// Ends the last segment of a shard to which nothing is added any more.
pub(crate) fn close(shard: &Shard, active: Active) {
    let Active { file, segment, .. } = active;
    // The connection goes first: a closed segment has a checkpointer or a writer, never both.
    drop(file);
    let now = shard.clock.now().as_micros().max(1);
    segment.closed_at.store(now, Ordering::Release);
    shard.closed.store(true, Ordering::Release);
}

/// Notes how far a segment is synced; remembers the newest few segments.
pub(crate) fn advance(mark: &mut Mark, reach: Reach) {
    mark.clean = false;
    let at = mark
        .reaches
        .iter()
        .position(|known| known.segment == reach.segment);
    match at.and_then(|at| mark.reaches.get_mut(at)) {
        Some(known) => *known = reach,
        None => {
            mark.reaches.rotate_right(1);
            let [newest, ..] = &mut mark.reaches;
            *newest = reach;
            debug_assert!(mark.reaches.len() == SEGMENTS_MAX);
        }
    }
}

fn row(queued: &Queued, position: wayhold_model::Position, now: Timestamp) -> Row {
    Row {
        stored: Arc::new(StoredEvent {
            position,
            accepted_at: now,
            destinations: Arc::clone(&queued.new.destinations),
            key_hash: queued.key_hash,
            event: Arc::clone(&queued.new.event),
        }),
        id_hash: queued.id_hash,
        fingerprint: queued.new.identified.then_some(queued.fingerprint),
    }
}
