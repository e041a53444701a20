//! Admission: whether the backlog has room for an event. Limits lie on the whole store and on single
//! destinations; each is as full as the fullest of what it counts. A producer may be refused before a
//! limit is reached (`admit_until`), so that bulk gives way to what matters.
//!
//! Refusing begins at a mark and ends below nine tenths of it. One number per limit serves every mark:
//! what a limit *holds against* events follows its filling upwards at once, and downwards only as far
//! as the distance between the two marks allows.

use std::time::Duration;

use crate::id::DestinationId;

/// Thousandths: what a full limit has.
const FULL: u32 = 1_000;

/// Accepting begins again below so many hundredths of the mark at which it ended: at less distance a
/// limit that drains while producers press would be passed in both directions with every batch, at more
/// a short excess would cost minutes of refusing.
const LOW_MARK_PERCENT: u32 = 90;

/// How full a limit is, or at which filling refusing begins, in thousandths of the limit. More than a
/// thousand where a limit is exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fill(u32);

impl Fill {
    /// A limit that is just reached.
    pub const FULL: Self = Self(FULL);

    /// A fraction above 0 and up to 1, to a thousandth; `None` for anything else.
    pub fn from_fraction(fraction: f64) -> Option<Self> {
        let thousandths = (fraction * f64::from(FULL)).round();
        if !(1.0..=f64::from(FULL)).contains(&thousandths) {
            return None;
        }
        (1..=FULL)
            .find(|whole| f64::from(*whole) >= thousandths)
            .map(Self)
    }

    /// The number of thousandths.
    pub fn thousandths(self) -> u32 {
        self.0
    }

    /// From a number of thousandths.
    pub fn from_thousandths(thousandths: u32) -> Self {
        Self(thousandths)
    }

    /// As a fraction; 1 is full.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(FULL)
    }

    /// How full a limit is of which so much is used. Rounded down, so that a limit counts as full when
    /// it is reached and not before.
    pub fn of(used: u64, limit: u64) -> Self {
        let filled = u128::from(used) * u128::from(FULL) / u128::from(limit.max(1));
        Self(u32::try_from(filled).unwrap_or(u32::MAX))
    }

    /// What is held against events at this filling, where `before` was held until now. An event with
    /// the mark `m` is refused while at least `m` is held: from the moment the filling reaches `m` until
    /// it has fallen below nine tenths of `m`, for every `m`.
    #[must_use]
    pub fn held(self, before: Self) -> Self {
        let most = u64::from(self.0) * 100 / u64::from(LOW_MARK_PERCENT);
        let most = Self(u32::try_from(most).unwrap_or(u32::MAX));
        before.clamp(self, most)
    }

    /// How much of `limit` may be used for what was refused at this mark to be accepted again.
    pub fn low_mark_of(self, limit: u64) -> u64 {
        let low = u128::from(limit) * u128::from(self.0) * u128::from(LOW_MARK_PERCENT)
            / (u128::from(FULL) * 100);
        u64::try_from(low).unwrap_or(u64::MAX)
    }
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Pending events.
    Events,
    /// Bytes that they occupy.
    Bytes,
    /// Age of the oldest of them.
    Age,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Events, Self::Bytes, Self::Age];

    /// The word in the configuration, in problems and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Bytes => "bytes",
            Self::Age => "age",
        }
    }
}

/// Limits on a backlog; `None` limits nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BacklogLimits {
    /// Most pending events.
    pub events: Option<u64>,
    /// Most bytes that pending events may occupy.
    pub bytes: Option<u64>,
    /// How old the oldest pending event may become.
    pub age: Option<Duration>,
}

/// A backlog at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Pending events.
    pub events: u64,
    /// Bytes that they occupy.
    pub bytes: u64,
    /// Age of the oldest; zero without one.
    pub age: Duration,
}

impl BacklogLimits {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The limit on one measure, and what of it a backlog uses: events, bytes, or milliseconds.
    pub fn used(&self, measure: Measure, backlog: &Backlog) -> Option<(u64, u64)> {
        let (used, limit) = match measure {
            Measure::Events => (backlog.events, self.events?),
            Measure::Bytes => (backlog.bytes, self.bytes?),
            Measure::Age => (millis(backlog.age), millis(self.age?)),
        };
        Some((used, limit))
    }

    /// How long until what is refused at `mark` is accepted again, if `per_second` events are resolved
    /// in a second and nothing is added meanwhile. `None` where nothing is resolved, or where nothing
    /// hinders. Bytes and age are taken to be spread evenly over the events.
    pub fn wait(&self, backlog: &Backlog, mark: Fill, per_second: f64) -> Option<Duration> {
        let events = Measure::ALL.into_iter().filter_map(|measure| {
            let (used, limit) = self.used(measure, backlog)?;
            let excess = (used + 1).saturating_sub(mark.low_mark_of(limit));
            Some(float(backlog.events) * float(excess.min(used)) / float(used.max(1)))
        });
        let events = events.fold(0.0, f64::max);
        (events > 0.0 && per_second > 0.0)
            .then(|| Duration::try_from_secs_f64(events / per_second).unwrap_or(Duration::MAX))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// For rates, where a rounded last digit does no harm.
fn float(number: u64) -> f64 {
    let (high, low) = (number >> 32, number & 0xffff_ffff);
    let part = |part: u64| u32::try_from(part).map_or(0.0, f64::from);
    part(high) * 4_294_967_296.0 + part(low)
}

/// What happens to events of a destination whose limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLimit {
    /// They are refused at the door, for the others too.
    #[default]
    Refuse,
    /// They are accepted for the others; this delivery is given up and kept as a dead letter.
    DeadLetter,
}

/// One destination's share in the decision over an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The destination.
    pub destination: DestinationId,
    /// What its limits hold against events.
    pub held: Fill,
    /// What happens when that reaches the event's mark.
    pub on_limit: OnLimit,
}

/// Which limit refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The one on the whole backlog.
    Backlog,
    /// The one on a destination's.
    Destination(DestinationId),
}

/// What becomes of an event at the door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It goes on.
    Admit,
    /// Nothing of it is stored.
    Refuse(Full),
    /// It is stored, and for these destinations it is a dead letter from the beginning.
    SetAside(Vec<DestinationId>),
}

/// Decides over an event of the mark `until`, where `whole` is held against all events. What is refused
/// is refused whole: a destination that sets aside does not help where another one refuses.
pub fn decide(until: Fill, whole: Fill, shares: impl IntoIterator<Item = Share>) -> Admission {
    if whole >= until {
        return Admission::Refuse(Full::Backlog);
    }
    let mut aside = Vec::new();
    for share in shares {
        if share.held < until {
            continue;
        }
        match share.on_limit {
            OnLimit::Refuse => return Admission::Refuse(Full::Destination(share.destination)),
            OnLimit::DeadLetter => aside.push(share.destination),
        }
    }
    if aside.is_empty() {
        Admission::Admit
    } else {
        Admission::SetAside(aside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(destination: u32, held: u32, on_limit: OnLimit) -> Share {
        Share {
            destination: DestinationId(destination),
            held: Fill(held),
            on_limit,
        }
    }

    #[test]
    fn the_decision_is_a_table() {
        use OnLimit::{DeadLetter, Refuse};
        let refused = |id| Admission::Refuse(Full::Destination(DestinationId(id)));
        let aside =
            |ids: &[u32]| Admission::SetAside(ids.iter().copied().map(DestinationId).collect());
        let backlog = Admission::Refuse(Full::Backlog);
        for (until, whole, shares, decided) in [
            (1_000, 999, vec![], Admission::Admit),
            (1_000, 1_000, vec![], backlog.clone()),
            (800, 799, vec![], Admission::Admit),
            (800, 800, vec![], backlog.clone()),
            (1_000, 0, vec![share(1, 999, Refuse)], Admission::Admit),
            (1_000, 0, vec![share(1, 1_000, Refuse)], refused(1)),
            (500, 0, vec![share(1, 500, Refuse)], refused(1)),
            (
                1_000,
                0,
                vec![share(1, 0, Refuse), share(2, 2_000, Refuse)],
                refused(2),
            ),
            (1_000, 0, vec![share(1, 1_000, DeadLetter)], aside(&[1])),
            (1_000, 0, vec![share(1, 999, DeadLetter)], Admission::Admit),
            (
                1_000,
                0,
                vec![
                    share(1, 1_000, DeadLetter),
                    share(2, 0, Refuse),
                    share(3, 1_000, DeadLetter),
                ],
                aside(&[1, 3]),
            ),
            (
                1_000,
                0,
                vec![share(1, 1_000, DeadLetter), share(2, 1_000, Refuse)],
                refused(2),
            ),
            // Setting aside takes room too: the whole's limit stands above it.
            (1_000, 1_000, vec![share(1, 1_000, DeadLetter)], backlog),
            // Who is admitted until nothing is refused always.
            (0, 0, vec![], Admission::Refuse(Full::Backlog)),
        ] {
            let told = format!("{until} {whole} {shares:?}");
            assert_eq!(decide(Fill(until), Fill(whole), shares), decided, "{told}");
        }
    }

    #[test]
    fn a_limit_is_full_when_it_is_reached_and_not_before() {
        for (used, limit, filled) in [
            (0, 10, 0),
            (9, 10, 900),
            (10, 10, 1_000),
            (25, 10, 2_500),
            (999_999, 1_000_000, 999),
            (u64::MAX, 1, u32::MAX),
            (u64::MAX, u64::MAX, 1_000),
            (1, 0, 1_000),
        ] {
            assert_eq!(Fill::of(used, limit), Fill(filled), "{used} of {limit}");
        }
    }

    #[test]
    fn every_mark_has_its_own_distance_between_refusing_and_accepting() {
        // Rises, swings about the low marks, and falls: (filling, refused at 1.0, refused at 0.8).
        let mut held = Fill::default();
        for (filling, at_full, at_eight_tenths) in [
            (0, false, false),
            (799, false, false),
            (800, false, true),
            (720, false, true),
            (999, false, true),
            (1_000, true, true),
            (901, true, true),
            (950, true, true),
            (900, true, true),
            (899, false, true),
            (999, false, true),
            (720, false, true),
            (719, false, false),
            (799, false, false),
            (800, false, true),
            (0, false, false),
        ] {
            held = Fill(filling).held(held);
            assert_eq!(held >= Fill::FULL, at_full, "1.0 at {filling}");
            assert_eq!(held >= Fill(800), at_eight_tenths, "0.8 at {filling}");
        }
    }

    #[test]
    fn whatever_the_filling_does_no_mark_is_passed_twice_within_its_distance() {
        // A small generator, so that the run is the same each time.
        let mut state = 7_u32;
        let mut held = Fill::default();
        let marks: Vec<u32> = (1..=10).map(|tenth| tenth * 100).collect();
        let mut refusing = vec![false; marks.len()];
        for _ in 0..100_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let filling = state >> 16 & 0x7ff;
            held = Fill(filling).held(held);
            for (mark, refusing) in marks.iter().zip(&mut refusing) {
                let low = mark * LOW_MARK_PERCENT / 100;
                // The rule that one held number stands for.
                *refusing = filling >= *mark || *refusing && filling >= low;
                assert_eq!(held >= Fill(*mark), *refusing, "{mark} at {filling}");
            }
        }
    }

    #[test]
    fn the_wait_is_what_the_drain_needs_down_to_the_low_mark() {
        let limits = BacklogLimits {
            events: Some(1_000),
            bytes: Some(1_000_000),
            age: None,
        };
        let backlog = |events, bytes| Backlog {
            events,
            bytes,
            age: Duration::ZERO,
        };
        let seconds = |backlog, mark, rate| {
            let wait = limits.wait(&backlog, Fill(mark), rate)?;
            Some(wait.as_secs_f64().round())
        };
        // 100 events above the low mark of 900, and the one that must be below it.
        assert_eq!(seconds(backlog(999, 0), 1_000, 10.0), Some(10.0));
        // The bytes need more than the events do: half of the events must go.
        assert_eq!(seconds(backlog(1_000, 1_800_000), 1_000, 10.0), Some(50.0));
        // An earlier mark waits longer.
        assert_eq!(seconds(backlog(999, 0), 500, 10.0), Some(55.0));
        assert_eq!(seconds(backlog(999, 0), 1_000, 0.0), None, "nothing drains");
        assert_eq!(
            seconds(backlog(100, 0), 1_000, 10.0),
            None,
            "nothing hinders"
        );
        assert_eq!(
            BacklogLimits::default().wait(&backlog(9, 9), Fill(0), 1.0),
            None
        );
        let old = BacklogLimits {
            age: Some(Duration::from_secs(100)),
            ..BacklogLimits::default()
        };
        let backlog = Backlog {
            events: 1_000,
            bytes: 0,
            age: Duration::from_secs(120),
        };
        let wait = old.wait(&backlog, Fill::FULL, 10.0).unwrap();
        assert_eq!(wait.as_secs(), 25, "a quarter of what is spread over 120 s");
    }

    #[test]
    fn fractions_are_told_apart_from_what_is_none() {
        for (fraction, fill) in [(0.001, 1), (0.8, 800), (1.0, 1_000), (0.333, 333)] {
            assert_eq!(Fill::from_fraction(fraction), Some(Fill(fill)));
            assert!((Fill(fill).fraction() - fraction).abs() < 1e-9);
        }
        for fraction in [-0.1, 0.0, 0.0004, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Fill::from_fraction(fraction), None);
        }
    }
}
