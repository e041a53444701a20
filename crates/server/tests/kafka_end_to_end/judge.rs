//! Holds what arrived at a destination against what the producers know.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::broker::Record;
use super::load::{Event, Intent};

/// What a destination was sent once.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// Arrivals have an order within their place only: a partition, a file.
    pub(crate) place: u64,
    /// The event's id.
    pub(crate) id: String,
    /// SHA-256 of its data, in hexadecimal.
    pub(crate) sha256: String,
}

impl From<Record> for Arrival {
    fn from(record: Record) -> Self {
        Self {
            place: record.partition,
            id: record.id,
            sha256: record.sha256,
        }
    }
}

/// What is to be said of one destination.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// What arrived, in whatever number.
    pub(crate) arrived: BTreeSet<Event>,
    /// Arrivals beyond the first of each event.
    pub(crate) repeats: u64,
    /// Acknowledged and never arrived.
    pub(crate) lost: Vec<Event>,
    /// First arrived after a later one of its key, or away from its key's other events.
    pub(crate) reordered: Vec<Event>,
    /// Arrived with other data.
    pub(crate) altered: Vec<Event>,
    /// Ids that nobody asked for.
    pub(crate) unasked: Vec<String>,
}

impl Judgement {
    /// Judges arrivals, each place's in their order.
    pub(crate) fn of(history: &[Intent], arrivals: &[Arrival]) -> Self {
        let asked: BTreeSet<_> = history.iter().map(|intent| intent.event).collect();
        let mut judgement = Self::default();
        let mut last: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for Arrival { place, id, sha256 } in arrivals {
            let Some(event) = Event::from_id(id).filter(|event| asked.contains(event)) else {
                judgement.unasked.push(id.clone());
                continue;
            };
            if *sha256 != hash(event.data().as_bytes()) {
                judgement.altered.push(event);
            }
            if !judgement.arrived.insert(event) {
                judgement.repeats += 1;
                continue;
            }
            let (home, number) = last.entry(event.key).or_insert((*place, 0));
            if home != place || event.number < *number {
                judgement.reordered.push(event);
            }
            *number = event.number.max(*number);
        }
        judgement.lost = history
            .iter()
            .filter(|intent| intent.acknowledged.is_some())
            .map(|intent| intent.event)
            .filter(|event| !judgement.arrived.contains(event))
            .collect();
        judgement
    }

    /// Whether every promise but the bound on repeats was kept.
    pub(crate) fn holds(&self) -> bool {
        self.lost.is_empty()
            && self.reordered.is_empty()
            && self.altered.is_empty()
            && self.unasked.is_empty()
    }
}

/// SHA-256 in hexadecimal.
pub(crate) fn hash(data: &[u8]) -> String {
    let bytes = Sha256::digest(data);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn history() -> Vec<Intent> {
        let intent = |key, number, acknowledged| Intent {
            event: Event { key, number },
            acknowledged,
        };
        let yes = Some(Duration::ZERO);
        vec![
            intent(1, 1, yes),
            intent(1, 2, None),
            intent(1, 3, yes),
            intent(2, 1, yes),
        ]
    }

    fn arrivals(ids: &[&str]) -> Vec<Arrival> {
        let arrival = |id: &&str| Arrival {
            place: 0,
            id: (*id).to_owned(),
            sha256: hash(Event::from_id(id).unwrap().data().as_bytes()),
        };
        ids.iter().map(arrival).collect()
    }

    #[test]
    fn repeats_and_what_was_left_open_are_no_faults() {
        for (ids, repeats) in [
            (&["k1-1", "k2-1", "k1-3"][..], 0),
            (&["k1-1", "k1-2", "k1-1", "k1-3", "k2-1", "k1-2"][..], 2),
        ] {
            let judgement = Judgement::of(&history(), &arrivals(ids));
            assert!(judgement.holds(), "{judgement:?}");
            assert_eq!(judgement.repeats, repeats);
        }
    }

    #[test]
    fn every_fault_is_found() {
        let judge = |ids: &[&str]| Judgement::of(&history(), &arrivals(ids));
        let event = |key, number| Event { key, number };
        assert_eq!(judge(&["k1-1", "k2-1"]).lost, [event(1, 3)]);
        assert_eq!(
            judge(&["k1-3", "k1-1", "k2-1"]).reordered,
            [event(1, 1)],
            "an earlier one after a later"
        );
        assert_eq!(
            judge(&["k1-1", "k1-3", "k1-2", "k2-1"]).reordered,
            [event(1, 2)],
            "one that was left open counts once it arrives"
        );
        assert_eq!(judge(&["k1-1", "k1-3", "k2-1", "k9-9"]).unasked, ["k9-9"]);

        let mut elsewhere = arrivals(&["k1-1", "k1-3", "k2-1"]);
        elsewhere[1].place = 1;
        elsewhere[2].sha256 = hash(b"other");
        let judgement = Judgement::of(&history(), &elsewhere);
        assert_eq!(judgement.reordered, [event(1, 3)]);
        assert_eq!(judgement.altered, [event(2, 1)]);
    }
}
