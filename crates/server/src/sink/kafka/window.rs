//! What one Kafka destination has under way: which attempts wait for their turn, which are with the
//! client, and who goes next. No clock of its own, no IO: the sink's thread and its callers share it
//! under one lock.
//!
//! One of several topics may have a quarter of the window with the client; more of it wait here. While
//! a topic is stalled, what waits for it is given back, so that it cannot fill the window for the
//! others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wayhold_model::Position;

use crate::sink::Attempt;

/// A topic whose oldest record has had no report for this long is stalled: far above the time of a
/// healthy broker, far below an attempt's timeout.
const STALL: Duration = Duration::from_secs(2);

/// Most events remembered as too large for the batch they were in; one that is forgotten is only
/// batched once more.
const SUSPECTS_MAX: usize = 10_000;

/// Names an attempt to the client; never used twice.
pub(super) type Ticket = usize;

/// An attempt on its way.
#[derive(Debug)]
pub(super) struct Flight {
    /// The attempt.
    pub(super) attempt: Attempt,
    /// Where it goes.
    pub(super) topic: Arc<str>,
    /// When its time is up.
    pub(super) deadline: Instant,
    /// Whether nothing else of its topic is with the client: then an error of the batch is its own.
    pub(super) alone: bool,
    /// When it came.
    pub(super) submitted: Instant,
}

/// All attempts of one destination that have not ended.
#[derive(Debug)]
pub(super) struct Window {
    share: usize,
    next_ticket: Ticket,
    topics: HashMap<Arc<str>, Topic>,
    with_client: HashMap<Ticket, Flight>,
    suspects: HashSet<Position>,
}

#[derive(Debug, Default)]
struct Topic {
    waiting: VecDeque<Flight>,
    with_client: usize,
    alone: bool,
}

impl Window {
    /// A window in which one topic may have `share` attempts with the client.
    pub(super) fn new(share: usize) -> Self {
        Self {
            share: share.max(1),
            next_ticket: 1,
            topics: HashMap::new(),
            with_client: HashMap::new(),
            suspects: HashSet::new(),
        }
    }

    /// Takes an attempt in, behind those of its topic; the topic's shared name comes back.
    pub(super) fn enter(&mut self, attempt: Attempt, topic: &str, now: Instant) -> Arc<str> {
        let name = match self.topics.get_key_value(topic) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(topic),
        };
        let flight = Flight {
            deadline: now + attempt.timeout,
            submitted: now,
            alone: self.suspects.contains(&attempt.event.position),
            topic: Arc::clone(&name),
            attempt,
        };
        self.topics
            .entry(Arc::clone(&name))
            .or_default()
            .waiting
            .push_back(flight);
        name
    }

    /// The next attempt of this topic that may go to the client, counted as being there.
    pub(super) fn release(&mut self, topic: &str) -> Option<(Ticket, &Flight)> {
        let state = self.topics.get_mut(topic)?;
        let next = state.waiting.front()?;
        let room = if next.alone {
            state.with_client == 0
        } else {
            state.with_client < self.share
        };
        if !room || state.alone {
            return None;
        }
        let flight = state.waiting.pop_front()?;
        state.with_client += 1;
        state.alone = flight.alone;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        Some((ticket, self.with_client.entry(ticket).or_insert(flight)))
    }

    /// Takes out an attempt that ended; `None` when it ended before.
    pub(super) fn end(&mut self, ticket: Ticket) -> Option<Flight> {
        let flight = self.with_client.remove(&ticket)?;
        if let Some(state) = self.topics.get_mut(&flight.topic) {
            state.with_client -= 1;
            state.alone = false;
            if state.with_client == 0 && state.waiting.is_empty() {
                self.topics.remove(&flight.topic);
            }
        }
        self.suspects.remove(&flight.attempt.event.position);
        Some(flight)
    }

    /// The next attempt of this event goes to the client alone.
    pub(super) fn suspect(&mut self, position: Position) {
        if self.suspects.len() < SUSPECTS_MAX {
            self.suspects.insert(position);
        }
    }

    /// Every topic with attempts.
    pub(super) fn topics(&self) -> Vec<Arc<str>> {
        self.topics.keys().cloned().collect()
    }

    /// How many are with the client.
    pub(super) fn with_client(&self) -> usize {
        self.with_client.len()
    }

    /// Whether any that is with the client has had its time.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.with_client
            .values()
            .any(|flight| flight.deadline <= now)
    }

    /// Takes out what waits here and has had its time, or waits behind a stalled topic's share.
    pub(super) fn give_back(&mut self, now: Instant) -> Vec<Flight> {
        let stalled: HashSet<Arc<str>> = self
            .with_client
            .values()
            .filter(|flight| now.duration_since(flight.submitted) >= STALL)
            .map(|flight| Arc::clone(&flight.topic))
            .collect();
        let mut back = Vec::new();
        for (name, state) in &mut self.topics {
            let is_stalled = stalled.contains(name);
            let (gone, kept): (VecDeque<_>, _) = std::mem::take(&mut state.waiting)
                .into_iter()
                .partition(|flight| is_stalled || flight.deadline <= now);
            state.waiting = kept;
            back.extend(Vec::from(gone));
        }
        self.forget_empty_topics();
        back
    }

    /// Takes out everything that waits here.
    pub(super) fn drain_waiting(&mut self) -> Vec<Flight> {
        let back = self
            .topics
            .values_mut()
            .flat_map(|state| state.waiting.drain(..))
            .collect();
        self.forget_empty_topics();
        back
    }

    /// Takes out everything that is with the client; reports that still come find nothing.
    pub(super) fn drain_with_client(&mut self) -> Vec<Flight> {
        let tickets: Vec<_> = self.with_client.keys().copied().collect();
        tickets
            .into_iter()
            .filter_map(|ticket| self.end(ticket))
            .collect()
    }

    fn forget_empty_topics(&mut self) {
        self.topics
            .retain(|_, state| state.with_client > 0 || !state.waiting.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::sink::contract::event;

    fn attempt() -> Attempt {
        let (finished, _) = mpsc::channel(1);
        Attempt::new(
            event("1", None, b"1"),
            1,
            Duration::from_secs(10),
            0,
            finished,
        )
    }

    fn released(window: &mut Window, topic: &str) -> Vec<Ticket> {
        std::iter::from_fn(|| window.release(topic).map(|(ticket, _)| ticket)).collect()
    }

    #[test]
    fn one_topic_has_at_most_its_share_with_the_client_and_others_have_theirs() {
        let mut window = Window::new(4);
        let now = Instant::now();
        for _ in 0..10 {
            window.enter(attempt(), "a", now);
        }
        window.enter(attempt(), "b", now);
        let with_client = released(&mut window, "a");
        assert_eq!(with_client.len(), 4);
        assert_eq!(released(&mut window, "b").len(), 1);
        assert!(window.end(with_client[0]).is_some());
        assert!(window.end(with_client[0]).is_none(), "an attempt ends once");
        assert_eq!(released(&mut window, "a").len(), 1);
    }

    #[test]
    fn a_suspect_goes_alone_and_those_behind_it_wait() {
        let mut window = Window::new(4);
        let now = Instant::now();
        window.suspect(event("1", None, b"1").position);
        window.enter(attempt(), "a", now);
        let first = released(&mut window, "a");
        window.enter(attempt(), "a", now);
        assert_eq!((first.len(), released(&mut window, "a").len()), (1, 0));
        assert!(window.end(first[0]).unwrap().alone);
        // Ending it cleared the suspicion for attempts that enter later.
        assert_eq!(released(&mut window, "a").len(), 1);
    }

    #[test]
    fn what_waits_behind_a_stalled_topic_is_given_back_and_others_are_not() {
        let mut window = Window::new(2);
        let start = Instant::now();
        for _ in 0..3 {
            window.enter(attempt(), "stalled", start);
        }
        assert_eq!(released(&mut window, "stalled").len(), 2);
        let later = start + STALL;
        for _ in 0..3 {
            window.enter(attempt(), "fine", later);
        }
        assert_eq!(released(&mut window, "fine").len(), 2);
        let back = window.give_back(later);
        assert_eq!((back.len(), &*back[0].topic), (1, "stalled"));
        assert!(!window.is_overdue(later));
        assert!(window.is_overdue(start + Duration::from_secs(10)));
        assert_eq!(window.drain_waiting().len(), 1);
        assert_eq!(window.drain_with_client().len(), 4);
        assert!(window.topics().is_empty());
    }

    #[test]
    fn what_waits_too_long_is_given_back() {
        let mut window = Window::new(2);
        let start = Instant::now();
        window.enter(attempt(), "a", start);
        assert!(window.give_back(start + Duration::from_secs(9)).is_empty());
        assert_eq!(window.give_back(start + Duration::from_secs(10)).len(), 1);
        assert!(window.topics().is_empty());
    }
}
