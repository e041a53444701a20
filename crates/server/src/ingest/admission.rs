//! Admission: whether an event is let in while so much is pending. The backlog is measured aside, ten times
//! a second where a limit is configured, and not at all where none is; at the door that costs an event one
//! look at a number, as long as no limit is nearly reached. The decision is `wayhold_model::admission`'s.
//!
//! Owns nothing durable: a start measures before it accepts.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use wayhold_model::admission::{
    self, Admission as Decision, Backlog, BacklogLimits, Fill, Full, Measure, OnLimit, Share,
};
use wayhold_model::condition::Condition;
use wayhold_model::{Clock, DestinationId, DestinationSet, Event, Timestamp};
use wayhold_store::{BacklogMeter, Backlogs, Pending, Store};

use crate::blocking::blocking;
use crate::config::{Config, DestinationName};

/// How often the backlog is measured: what is accepted meanwhile may exceed a limit.
const MEASURE_EVERY: Duration = Duration::from_millis(100);

/// Measuring may take one part in so many of a core; with a very large backlog it becomes rarer instead.
const MEASURE_SHARE: u32 = 20;

/// Over how many seconds the drain is measured: long enough for a destination that takes batches, short
/// enough to follow one that comes back.
const DRAIN_SECONDS: usize = 10;

/// Bounds of a measured wait: less than a second only brings the same refusal, and after more than some
/// minutes the rate is no longer the same.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// How long to wait where nothing drains: whatever ends that, a client that comes back twice a minute
/// sees it soon.
const WAIT_UNKNOWN: Duration = Duration::from_secs(30);

/// Decides who is let in. A cheap handle.
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    /// The most that any limit holds against events, in thousandths.
    highest: AtomicU32,
    /// The lowest mark of the sources.
    lowest: Fill,
    sources: Vec<Source>,
    whole: Limit,
    /// Destinations with limits, ascending.
    destinations: Vec<(DestinationId, Limit)>,
}

/// Events that are refused before others.
struct Source {
    when: Option<Condition>,
    admit_until: Fill,
}

/// Limits on one backlog, and how it stands.
struct Limit {
    /// The destination; `None` for the whole.
    name: Option<String>,
    limits: BacklogLimits,
    on_limit: OnLimit,
    /// What is held against events, in thousandths.
    held: AtomicU32,
    standing: Mutex<Standing>,
}

#[derive(Clone, Default)]
struct Standing {
    backlog: Backlog,
    /// By measure.
    held: [Fill; Measure::ALL.len()],
    drain: Drain,
    /// Since when somebody is refused.
    since: Option<Timestamp>,
}

/// How many events were resolved lately: a count a second.
#[derive(Clone, Default)]
struct Drain(VecDeque<(Instant, i64)>);

/// A limit that refuses an event, as its producer is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullLimit {
    /// Whose; `None` for the whole backlog.
    pub destination: Option<String>,
    /// What it limits.
    pub measure: Measure,
    /// The fraction from which on events like this one are refused.
    pub admit_until: Fill,
    /// When to come back: how long the backlog needs to drain down to where accepting begins again.
    pub retry_after: Duration,
}

/// How one limit stands, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitReport {
    /// Whose; `None` for the whole backlog.
    pub destination: Option<String>,
    /// What it limits.
    pub measure: Measure,
    /// How much is used: events, bytes or milliseconds.
    pub used: u64,
    /// How much may be.
    pub limit: u64,
    /// What happens to events at it.
    pub on_limit: OnLimit,
    /// Since when events are refused (or set aside) for it, those that are refused before others at least.
    pub since: Option<Timestamp>,
}

impl Admission {
    /// The limits of a configuration, over the durable ids that the catalogue gave to its destinations.
    pub fn new(config: &Config, id_of: impl Fn(&DestinationName) -> DestinationId) -> Self {
        let sources: Vec<Source> = config
            .sources
            .events
            .iter()
            .filter(|source| source.admit_until < Fill::FULL)
            .map(|source| Source {
                when: source.when.clone(),
                admit_until: source.admit_until,
            })
            .collect();
        let limited = config
            .destinations
            .iter()
            .filter(|destination| !destination.limits.is_none());
        let mut destinations: Vec<(DestinationId, Limit)> = limited
            .map(|destination| {
                let name = Some(destination.name.to_string());
                let limit = Limit::new(name, destination.limits, destination.on_limit);
                (id_of(&destination.name), limit)
            })
            .collect();
        destinations.sort_unstable_by_key(|(id, _)| *id);
        let whole = Limit::new(None, config.limits.backlog, OnLimit::Refuse);
        Self::of(sources, whole, destinations)
    }

    /// The limits of a newer configuration. A limit goes on as it stood: what refused events refuses them until
    /// it has drained as far as ever.
    pub(crate) fn succeeding(
        &self,
        config: &Config,
        id_of: impl Fn(&DestinationName) -> DestinationId,
    ) -> Self {
        let next = Self::new(config, id_of);
        for limit in next.limits() {
            let same = |before: &&Limit| before.name == limit.name && before.limits == limit.limits;
            if let Some(before) = self.limits().find(same) {
                limit.go_on_from(before);
            }
        }
        next
    }

    /// Lets everybody in.
    pub fn unlimited() -> Self {
        let whole = Limit::new(None, BacklogLimits::default(), OnLimit::Refuse);
        Self::of(Vec::new(), whole, Vec::new())
    }

    fn of(sources: Vec<Source>, whole: Limit, destinations: Vec<(DestinationId, Limit)>) -> Self {
        let marks = sources.iter().map(|source| source.admit_until);
        Self(Arc::new(Inner {
            highest: AtomicU32::new(0),
            lowest: marks.min().unwrap_or(Fill::FULL),
            sources,
            whole,
            destinations,
        }))
    }

    /// Whether anything is limited.
    fn is_limited(&self) -> bool {
        !self.0.whole.limits.is_none() || !self.0.destinations.is_empty()
    }

    /// Measures once, and goes on to do so in a task on the current runtime until the last handle is gone.
    /// Blocking. Where nothing is limited it does nothing.
    pub(crate) fn watch(&self, store: &Store, clock: Arc<dyn Clock>) {
        if !self.is_limited() {
            return;
        }
        let ages = self.limits().any(|limit| limit.limits.age.is_some());
        let mut meter = store.backlog_meter(ages);
        self.observe(&meter.measure(), clock.now(), Instant::now());
        tokio::spawn(measure(Arc::downgrade(&self.0), meter, clock));
    }

    /// Whether nobody of this mark is refused anywhere: then nothing more needs to be asked.
    pub(crate) fn is_open(&self, admit_until: Fill) -> bool {
        let inner = &self.0;
        inner.highest.load(Ordering::Relaxed) < admit_until.min(inner.lowest).thousandths()
    }

    /// What becomes of an event whose sender is admitted until this mark.
    ///
    /// # Errors
    /// It is refused, by the limit that is told.
    pub(crate) fn decide(
        &self,
        event: &Event,
        destinations: &DestinationSet,
        admit_until: Fill,
    ) -> Result<Vec<DestinationId>, FullLimit> {
        let inner = &self.0;
        let until = inner.mark_of(event, admit_until);
        let shares = destinations.ids().iter().filter_map(|id| {
            let limit = inner.limit_of(*id)?;
            Some(Share {
                destination: *id,
                held: limit.held(),
                on_limit: limit.on_limit,
            })
        });
        match admission::decide(until, inner.whole.held(), shares) {
            Decision::Admit => Ok(Vec::new()),
            Decision::SetAside(ids) => Ok(ids),
            Decision::Refuse(Full::Backlog) => Err(inner.whole.refusal(until)),
            Decision::Refuse(Full::Destination(id)) => {
                let limit = inner.limit_of(id).unwrap_or(&inner.whole);
                Err(limit.refusal(until))
            }
        }
    }

    /// How every limit stands.
    pub fn report(&self) -> Vec<LimitReport> {
        self.limits().flat_map(Limit::report).collect()
    }

    /// One sentence for each limit that refuses somebody.
    pub fn findings(&self) -> Vec<String> {
        self.report()
            .iter()
            .filter_map(LimitReport::finding)
            .collect()
    }

    fn limits(&self) -> impl Iterator<Item = &Limit> {
        let destinations = self.0.destinations.iter().map(|(_, limit)| limit);
        std::iter::once(&self.0.whole).chain(destinations)
    }

    /// Takes what was measured at this moment.
    fn observe(&self, backlogs: &Backlogs, now: Timestamp, at: Instant) {
        let inner = &self.0;
        inner.whole.observe(&backlogs.whole, inner.lowest, now, at);
        for (id, pending) in &backlogs.destinations {
            if let Some(limit) = inner.limit_of(*id) {
                limit.observe(pending, inner.lowest, now, at);
            }
        }
        let highest = self.limits().map(Limit::held).max().unwrap_or_default();
        inner
            .highest
            .store(highest.thousandths(), Ordering::Relaxed);
    }
}

/// Measures until nobody decides by it any more.
async fn measure(admission: Weak<Inner>, mut meter: BacklogMeter, clock: Arc<dyn Clock>) {
    let mut pause = MEASURE_EVERY;
    loop {
        tokio::time::sleep(pause).await;
        if admission.strong_count() == 0 {
            return;
        }
        let started = Instant::now();
        let measured = blocking(move || (meter.measure(), meter)).await;
        let (Some(admission), Ok((backlogs, same))) = (admission.upgrade(), measured) else {
            return;
        };
        meter = same;
        Admission(admission).observe(&backlogs, clock.now(), Instant::now());
        pause = MEASURE_EVERY.max(started.elapsed() * (MEASURE_SHARE - 1));
    }
}

impl Inner {
    fn limit_of(&self, id: DestinationId) -> Option<&Limit> {
        let place = self.destinations.binary_search_by_key(&id, |(id, _)| *id);
        self.destinations.get(place.ok()?).map(|(_, limit)| limit)
    }

    /// At which filling this event is refused. A condition without an answer is not met.
    fn mark_of(&self, event: &Event, admit_until: Fill) -> Fill {
        let meets = |source: &&Source| {
            let condition = source.when.as_ref();
            condition.is_none_or(|condition| condition.holds(event).unwrap_or(false))
        };
        let sources = self.sources.iter().filter(meets);
        let marks = sources.map(|source| source.admit_until);
        marks.fold(admit_until, Fill::min)
    }
}

impl Limit {
    fn new(name: Option<String>, limits: BacklogLimits, on_limit: OnLimit) -> Self {
        Self {
            name,
            limits,
            on_limit,
            held: AtomicU32::new(0),
            standing: Mutex::default(),
        }
    }

    /// Takes over how another one stood.
    fn go_on_from(&self, before: &Self) {
        *self.standing() = before.standing().clone();
        self.held
            .store(before.held.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn held(&self) -> Fill {
        Fill::from_thousandths(self.held.load(Ordering::Relaxed))
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn observe(&self, pending: &Pending, lowest: Fill, now: Timestamp, at: Instant) {
        if self.limits.is_none() {
            return;
        }
        let mut standing = self.standing();
        standing.backlog = Backlog {
            events: pending.events,
            bytes: pending.bytes,
            age: pending
                .oldest
                .map_or(Duration::ZERO, |oldest| now.since(oldest)),
        };
        standing.drain.note(at, pending.resolved);
        let backlog = standing.backlog;
        for (measure, held) in Measure::ALL.into_iter().zip(&mut standing.held) {
            let used = self.limits.used(measure, &backlog);
            *held = used.map_or_else(Fill::default, |(used, limit)| {
                Fill::of(used, limit).held(*held)
            });
        }
        let held = standing.held.into_iter().max().unwrap_or_default();
        self.held.store(held.thousandths(), Ordering::Relaxed);
        let whose = self.name.as_deref().unwrap_or("all");
        match (held >= lowest, standing.since) {
            (true, None) => {
                standing.since = Some(now);
                tracing::warn!(
                    destination = whose,
                    events = backlog.events,
                    bytes = backlog.bytes,
                    "the backlog has reached a limit: new events are refused, or set aside where that is configured"
                );
            }
            (false, Some(_)) => {
                standing.since = None;
                tracing::info!(
                    destination = whose,
                    events = backlog.events,
                    "the backlog is below its limits again"
                );
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    fn refusal(&self, until: Fill) -> FullLimit {
        let standing = self.standing();
        let fullest = Measure::ALL.into_iter().zip(standing.held);
        let fullest = fullest.max_by_key(|(_, held)| *held);
        let per_second = standing.drain.per_second();
        let wait = self.limits.wait(&standing.backlog, until, per_second);
        FullLimit {
            destination: self.name.clone(),
            measure: fullest.map_or(Measure::Events, |(measure, _)| measure),
            admit_until: until,
            retry_after: wait.map_or(WAIT_UNKNOWN, |wait| wait.clamp(WAIT.0, WAIT.1)),
        }
    }

    fn report(&self) -> Vec<LimitReport> {
        let standing = self.standing();
        // Of several measures only those that hold as much as any name the time.
        let most = standing.held.into_iter().max().unwrap_or_default();
        let measures = Measure::ALL.into_iter().zip(standing.held);
        let report = measures.filter_map(|(measure, held)| {
            let (used, limit) = self.limits.used(measure, &standing.backlog)?;
            Some(LimitReport {
                destination: self.name.clone(),
                measure,
                used,
                limit,
                on_limit: self.on_limit,
                since: standing.since.filter(|_| held == most),
            })
        });
        report.collect()
    }
}

impl LimitReport {
    /// How full the limit is; 1 is full.
    pub fn fraction(&self) -> f64 {
        Fill::of(self.used, self.limit).fraction()
    }

    fn finding(&self) -> Option<String> {
        let since = self.since?;
        let whose = match &self.destination {
            None => "the limit on the whole backlog".to_owned(),
            Some(name) => format!("the limit on the backlog of destination {name}"),
        };
        let does = match self.on_limit {
            OnLimit::Refuse => "refuses events",
            OnLimit::DeadLetter => "makes its events dead letters",
        };
        Some(format!(
            "{whose} ({}) is {:.0} % full and {does} since {since}",
            self.measure.name(),
            self.fraction() * 100.0,
        ))
    }
}

impl fmt::Display for FullLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measure = self.measure.name();
        match &self.destination {
            None => write!(f, "the backlog has reached its limit on {measure}")?,
            Some(name) => write!(
                f,
                "the backlog of destination {name} has reached its limit on {measure}"
            )?,
        }
        if self.admit_until < Fill::FULL {
            let percent = self.admit_until.fraction() * 100.0;
            write!(
                f,
                ", as far as this sender is admitted ({percent:.0} % of it)"
            )?;
        }
        Ok(())
    }
}

impl Drain {
    /// So many have been resolved by now.
    fn note(&mut self, at: Instant, resolved: i64) {
        // The newest is replaced until it is a second after the one before it.
        let settled = self
            .0
            .len()
            .checked_sub(2)
            .and_then(|last| self.0.get(last));
        let is_open = match settled {
            Some((before, _)) => at.duration_since(*before) < Duration::from_secs(1),
            None => false,
        };
        if is_open {
            self.0.pop_back();
        }
        self.0.push_back((at, resolved));
        while self.0.len() > DRAIN_SECONDS + 1 {
            self.0.pop_front();
        }
    }

    /// Events a second; 0 where nothing drains or nothing is known.
    fn per_second(&self) -> f64 {
        let (Some((from, before)), Some((to, after))) = (self.0.front(), self.0.back()) else {
            return 0.0;
        };
        let resolved = u32::try_from(after.saturating_sub(*before).max(0)).unwrap_or(u32::MAX);
        let seconds = to.duration_since(*from).as_secs_f64();
        if seconds > 0.0 {
            f64::from(resolved) / seconds
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests;
