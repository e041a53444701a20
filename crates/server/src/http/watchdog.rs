//! Time limits of connections without a timer per request. Each connection says in one word what it is
//! doing; a sweep a few times a second counts how long it has been doing it, and closes what takes too
//! long. The hot path only stores a number.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::limits::SharedLimits;
use crate::config::Limits;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Open, and nothing was ever received.
    New,
    /// The head of a request has begun to arrive.
    Head,
    /// The server works; nothing is asked of the client.
    Working,
    /// The server waits for more of a body.
    Body,
    /// Between requests; the last answer may still be on its way.
    Idle,
}

const PHASES: [Phase; 5] = [
    Phase::New,
    Phase::Head,
    Phase::Working,
    Phase::Body,
    Phase::Idle,
];

/// One connection, as it and the watchdog see it.
#[derive(Debug)]
pub(super) struct Watch {
    // Number of the request times 8, plus the phase: two requests never look like one that is slow.
    state: AtomicU64,
    body_bytes: AtomicU64,
    called: Notify,
    overdue: AtomicBool,
}

/// Why a connection is called while it is being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// It took too long: close it.
    Overdue,
    /// The server stops: answer what was asked, then close.
    Stop,
}

const REQUEST: u64 = 8;

impl Watch {
    fn new() -> Self {
        Self {
            state: AtomicU64::new(Phase::New as u64),
            body_bytes: AtomicU64::new(0),
            called: Notify::new(),
            overdue: AtomicBool::new(false),
        }
    }

    /// Something was received.
    pub(super) fn received(&self) {
        let state = self.state.load(Ordering::Relaxed);
        if matches!(phase_of(state), Phase::New | Phase::Idle) {
            self.enter(Phase::Head);
        }
    }

    /// A request's head is whole; the next thing is the server's.
    pub(super) fn begin_request(&self) {
        let state = self.state.load(Ordering::Relaxed);
        let next = state / REQUEST * REQUEST + REQUEST + Phase::Working as u64;
        self.state.store(next, Ordering::Relaxed);
    }

    /// The connection does this now.
    pub(super) fn enter(&self, phase: Phase) {
        let state = self.state.load(Ordering::Relaxed);
        self.state
            .store(state / REQUEST * REQUEST + phase as u64, Ordering::Relaxed);
    }

    /// So many bytes of a body arrived.
    pub(super) fn body_received(&self, bytes: usize) {
        self.body_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Resolves once the connection must close. Its own and nobody else's: a future of the whole server,
    /// polled with every request, would have all connections meet at one lock.
    pub(super) async fn called(&self) -> Call {
        self.called.notified().await;
        match self.overdue.load(Ordering::Relaxed) {
            true => Call::Overdue,
            false => Call::Stop,
        }
    }

    /// Resolves once the connection is overdue, whatever else it was called for.
    pub(super) async fn overdue(&self) {
        while self.called().await != Call::Overdue {}
    }

    /// Calls the connection.
    pub(super) fn call(&self, call: Call) {
        if call == Call::Overdue {
            self.overdue.store(true, Ordering::Relaxed);
        }
        self.called.notify_one();
    }
}

fn phase_of(state: u64) -> Phase {
    let index = usize::try_from(state % REQUEST).unwrap_or_default();
    PHASES.get(index).copied().unwrap_or(Phase::Working)
}

/// How long each phase may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) first_byte: Duration,
    pub(super) head: Duration,
    pub(super) idle: Duration,
    /// Slowest body, in bytes a second over `body_window`.
    pub(super) body_rate: u64,
    pub(super) body_window: Duration,
}

impl Patience {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            first_byte: limits.first_byte_timeout,
            head: limits.header_timeout,
            idle: limits.idle_timeout,
            body_rate: limits.body_rate as u64,
            body_window: limits.body_rate_window,
        }
    }
}

/// How often the watchdog looks; limits are kept to within one look.
const SWEEP: Duration = Duration::from_millis(250);

/// What the watchdog saw of a connection at its last looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    state: u64,
    /// How long it has been in this state; for a body, how long the current window has lasted.
    lasted: Duration,
    body_bytes: u64,
}

impl Seen {
    /// Takes the next look, `passed` after the last; true when the connection must be closed.
    fn look(&mut self, state: u64, body_bytes: u64, passed: Duration, patience: &Patience) -> bool {
        if state != self.state && !(same_request(state, self.state) && is_body(state, self.state)) {
            *self = Self {
                state,
                lasted: Duration::ZERO,
                body_bytes,
            };
            return false;
        }
        self.state = state;
        match phase_of(state) {
            Phase::Working => return false,
            Phase::New | Phase::Head | Phase::Idle => self.lasted += passed,
            Phase::Body => {
                self.lasted += passed;
                if self.lasted < patience.body_window {
                    return false;
                }
                let received = body_bytes - self.body_bytes;
                let expected = patience.body_rate * self.lasted.as_secs().max(1);
                *self = Self {
                    state,
                    lasted: Duration::ZERO,
                    body_bytes,
                };
                return received < expected;
            }
        }
        let limit = match phase_of(state) {
            Phase::New => patience.first_byte,
            Phase::Head => patience.head,
            Phase::Idle | Phase::Working | Phase::Body => patience.idle,
        };
        self.lasted >= limit
    }
}

fn same_request(a: u64, b: u64) -> bool {
    a / REQUEST == b / REQUEST
}

/// A body's reader works between waits; both belong to one window.
fn is_body(a: u64, b: u64) -> bool {
    [a, b]
        .into_iter()
        .all(|state| matches!(phase_of(state), Phase::Working | Phase::Body))
}

/// All open connections: how many there are, and whether they make progress.
#[derive(Debug)]
pub(super) struct Watchdog {
    limits: SharedLimits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, (Arc<Watch>, Seen)>,
    addresses: HashMap<IpAddr, usize>,
}

/// A connection's place among the open ones; dropping it gives the place back.
pub(super) struct Place {
    watchdog: Arc<Watchdog>,
    number: u64,
    address: Option<IpAddr>,
    pub(super) watch: Arc<Watch>,
}

impl Watchdog {
    pub(super) fn new(limits: SharedLimits) -> Self {
        Self {
            limits,
            open: Mutex::default(),
        }
    }

    /// A place for a new connection, or `None` when there are too many, in all or from its address.
    pub(super) fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Place> {
        let limits = self.limits.now();
        let mut open = self.lock();
        if open.connections.len() >= limits.connections {
            return None;
        }
        if let Some(address) = address {
            let count = open.addresses.entry(address).or_insert(0);
            if *count >= limits.connections_per_address {
                return None;
            }
            *count += 1;
        }
        let number = open.next;
        open.next += 1;
        let watch = Arc::new(Watch::new());
        open.connections
            .insert(number, (Arc::clone(&watch), Seen::default()));
        Some(Place {
            watchdog: Arc::clone(self),
            number,
            address,
            watch,
        })
    }

    /// Looks at all connections again and again; runs until dropped.
    pub(super) async fn run(&self) {
        let mut looks = tokio::time::interval(SWEEP);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.sweep(SWEEP);
        }
    }

    /// Calls every connection to close once it has answered. A connection that is admitted later sees for
    /// itself that the server stops.
    pub(super) fn stop(&self) {
        for (watch, _) in self.lock().connections.values() {
            watch.call(Call::Stop);
        }
    }

    fn sweep(&self, passed: Duration) {
        let patience = Patience::new(&self.limits.now());
        for (watch, seen) in self.lock().connections.values_mut() {
            let state = watch.state.load(Ordering::Relaxed);
            let body_bytes = watch.body_bytes.load(Ordering::Relaxed);
            if seen.look(state, body_bytes, passed, &patience) {
                watch.call(Call::Overdue);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.watchdog.lock();
        open.connections.remove(&self.number);
        let Some(address) = self.address else { return };
        if let Some(count) = open.addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.addresses.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        first_byte: Duration::from_secs(5),
        head: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        body_rate: 1024,
        body_window: Duration::from_secs(5),
    };

    /// Seconds until a connection that stays in `phase`, receiving `rate` bytes a second, is closed.
    fn closed_after(phase: Phase, rate: u64) -> Option<u64> {
        let mut seen = Seen::default();
        let state = 3 * REQUEST + phase as u64;
        (0..1000).find(|&second| seen.look(state, second * rate, Duration::from_secs(1), &PATIENCE))
    }

    #[test]
    fn each_phase_has_its_patience() {
        for (phase, rate, expected) in [
            (Phase::New, 0, Some(5)),
            (Phase::Head, 0, Some(10)),
            (Phase::Head, 1, Some(10)),
            (Phase::Idle, 0, Some(60)),
            (Phase::Working, 0, None),
            (Phase::Body, 0, Some(5)),
            (Phase::Body, 1, Some(5)),
            (Phase::Body, 1023, Some(5)),
            (Phase::Body, 1024, None),
        ] {
            assert_eq!(
                closed_after(phase, rate),
                expected,
                "{phase:?} at {rate} B/s"
            );
        }
    }

    #[test]
    fn a_body_that_stalls_after_a_fast_start_is_closed_within_two_windows() {
        let mut seen = Seen::default();
        let state = REQUEST + Phase::Body as u64;
        let closed =
            (0..100).find(|_| seen.look(state, 1_000_000, Duration::from_secs(1), &PATIENCE));
        assert!(closed.is_some_and(|second| second <= 10), "{closed:?}");
    }

    #[test]
    fn a_new_request_starts_anew() {
        let watch = Watch::new();
        let mut seen = Seen::default();
        for _ in 0..100 {
            watch.received();
            watch.begin_request();
            watch.enter(Phase::Idle);
            let state = watch.state.load(Ordering::Relaxed);
            assert!(!seen.look(state, 0, Duration::from_secs(59), &PATIENCE));
        }
    }

    #[test]
    fn connections_are_counted_in_all_and_per_address() {
        let limits = Limits {
            connections: 3,
            connections_per_address: 2,
            ..Limits::default()
        };
        let watchdog = Arc::new(Watchdog::new((&limits).into()));
        let (eve, ada) = (
            Some(IpAddr::from([10, 0, 0, 1])),
            Some(IpAddr::from([10, 0, 0, 2])),
        );
        let first = watchdog.admit(eve).unwrap();
        let _second = watchdog.admit(eve).unwrap();
        assert!(watchdog.admit(eve).is_none());
        let _third = watchdog.admit(ada).unwrap();
        assert!(watchdog.admit(None).is_none());
        drop(first);
        assert!(watchdog.admit(eve).is_some());
    }
}
