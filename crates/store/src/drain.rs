//! How fast what is pending gets less, from looks at it now and then, and how long the rest takes.

use std::collections::VecDeque;
use std::time::Duration;

/// Looks older than this say nothing of the present.
const WITHIN: Duration = Duration::from_secs(60);

/// Looks closer together than this are not kept.
const APART: Duration = Duration::from_secs(1);

/// Looks at one count, oldest first: when, and how much was pending.
#[derive(Clone, Debug, Default)]
pub(crate) struct DrainRate {
    looks: VecDeque<(Duration, u64)>,
}

impl DrainRate {
    /// Notes how much is pending at a time, counted on a clock that only moves forward.
    pub(crate) fn note(&mut self, at: Duration, pending: u64) {
        if self
            .looks
            .back()
            .is_some_and(|(last, _)| at < *last + APART)
        {
            return;
        }
        self.looks.push_back((at, pending));
        while self
            .looks
            .front()
            .is_some_and(|(first, _)| *first + WITHIN < at)
        {
            self.looks.pop_front();
        }
    }

    /// How long that much takes at the rate of the last minute; `None` where nothing gets less.
    pub(crate) fn time_for(&self, pending: u64) -> Option<Duration> {
        if pending == 0 {
            return Some(Duration::ZERO);
        }
        let (first, before) = self.looks.front()?;
        let (last, after) = self.looks.back()?;
        let drained = before.checked_sub(*after).filter(|drained| *drained > 0)?;
        let took = last.checked_sub(*first)?;
        let millis = took.as_millis().saturating_mul(u128::from(pending)) / u128::from(drained);
        Some(Duration::from_millis(
            u64::try_from(millis).unwrap_or(u64::MAX),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(looks: &[(u64, u64)]) -> DrainRate {
        let mut rate = DrainRate::default();
        for (second, pending) in looks {
            rate.note(Duration::from_secs(*second), *pending);
        }
        rate
    }

    #[test]
    fn the_rest_takes_as_long_as_the_last_minute_says() {
        let secs = |secs| Some(Duration::from_secs(secs));
        for (name, looks, pending, expected) in [
            ("nothing was looked at", &[][..], 5, None),
            ("one look says nothing", &[(0, 100)], 100, None),
            ("ten a second", &[(0, 100), (1, 90)], 90, secs(9)),
            (
                "over the whole time",
                &[(0, 100), (1, 90), (5, 50)],
                50,
                secs(5),
            ),
            ("nothing drains", &[(0, 100), (9, 100)], 100, None),
            ("it gets more", &[(0, 100), (9, 200)], 200, None),
            ("nothing is left", &[(0, 100)], 0, secs(0)),
            (
                "what is long ago is forgotten",
                &[(0, 9000), (100, 200), (101, 100)],
                100,
                secs(1),
            ),
        ] {
            assert_eq!(rate(looks).time_for(pending), expected, "{name}");
        }
    }

    #[test]
    fn only_a_minute_of_looks_is_kept() {
        let looks: Vec<_> = (0..10_000)
            .map(|tenth| (tenth / 10, 10_000 - tenth))
            .collect();
        assert!(rate(&looks).looks.len() <= 62);
    }
}
