//! The checker at the end: what was acknowledged against what arrived, and nothing else. It knows the
//! story's steps, not the server; it could be run against any other.

use std::collections::BTreeMap;

/// One event as both sides know it: its order and its number within the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// The order: the ordering key.
    pub order: u64,
    /// Number within the order, from 1.
    pub step: u32,
}

/// What became of the acknowledged events at one destination.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Acknowledged events.
    pub acknowledged: u64,
    /// Of these, arrived at least once.
    pub arrived: u64,
    /// Acknowledged and never arrived.
    pub lost: Vec<Step>,
    /// Arrived for the first time after a later step of the same order.
    pub reordered: Vec<Step>,
    /// Arrived although nobody was told that they are safe.
    pub unasked: Vec<Step>,
    /// Arrivals beyond the first of an event.
    pub repeats: u64,
}

impl Proof {
    /// Holds arrivals, in the order in which they came, against what was acknowledged.
    pub fn of(acknowledged: &[Step], arrivals: &[Step]) -> Self {
        let mut times: BTreeMap<Step, u64> = acknowledged.iter().map(|step| (*step, 0)).collect();
        let mut furthest: BTreeMap<u64, u32> = BTreeMap::new();
        let mut proof = Self {
            acknowledged: times.len() as u64,
            ..Self::default()
        };
        for arrival in arrivals {
            let Some(times) = times.get_mut(arrival) else {
                proof.unasked.push(*arrival);
                continue;
            };
            *times += 1;
            if *times > 1 {
                proof.repeats += 1;
                continue;
            }
            proof.arrived += 1;
            let furthest = furthest.entry(arrival.order).or_default();
            if arrival.step < *furthest {
                proof.reordered.push(*arrival);
            }
            *furthest = arrival.step.max(*furthest);
        }
        proof.lost = times
            .into_iter()
            .filter_map(|(step, times)| (times == 0).then_some(step))
            .collect();
        proof
    }

    /// Whether the promises held; repeats are allowed.
    pub fn holds(&self) -> bool {
        self.lost.is_empty() && self.reordered.is_empty() && self.unasked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(steps: &[(u64, u32)]) -> Vec<Step> {
        steps
            .iter()
            .map(|&(order, step)| Step { order, step })
            .collect()
    }

    #[test]
    fn orders_may_interleave_and_repeat() {
        let acknowledged = steps(&[(1, 1), (2, 1), (1, 2), (2, 2)]);
        let arrivals = steps(&[(2, 1), (1, 1), (1, 1), (1, 2), (2, 2), (1, 1)]);
        let proof = Proof::of(&acknowledged, &arrivals);
        assert!(proof.holds());
        assert_eq!(
            (proof.acknowledged, proof.arrived, proof.repeats),
            (4, 4, 2)
        );
    }

    #[test]
    fn what_is_lost_reordered_or_unasked_is_named() {
        let acknowledged = steps(&[(1, 1), (1, 2), (1, 3), (2, 1)]);
        let arrivals = steps(&[(1, 2), (1, 1), (1, 3), (9, 9)]);
        let proof = Proof::of(&acknowledged, &arrivals);
        assert!(!proof.holds());
        assert_eq!(proof.lost, steps(&[(2, 1)]));
        assert_eq!(proof.reordered, steps(&[(1, 1)]));
        assert_eq!(proof.unasked, steps(&[(9, 9)]));
    }
}
