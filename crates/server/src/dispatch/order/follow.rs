//! The policy of an order, and how it goes on under another one: what was set aside under the old one is judged anew.

use wayhold_model::Position;

use super::key::Key;
use super::{Due, Order, OrderPolicy};
use crate::config::{DeliveryPolicy, OnDeadLetter};

impl OrderPolicy {
    /// The part of a destination's policy that concerns order.
    pub(in crate::dispatch) fn of(policy: &DeliveryPolicy) -> Self {
        Self {
            on_failure: policy.on_failure,
            on_dead_letter: policy.on_dead_letter,
            in_flight_per_key: policy.in_flight_per_key.max(1),
            blocked_max: policy.max_blocked_keys.max(1),
        }
    }
}

impl Order {
    /// Goes on under another policy. What was set aside under the old one is judged anew; what overtook, or
    /// was overtaken, stays so.
    pub(in crate::dispatch) fn follow(&mut self, policy: OrderPolicy) {
        self.policy = policy;
        self.released.clear();
        self.due.retain(|due| matches!(due, Due::Loose(_)));
        let hashes: Vec<u64> = self.keys.keys().copied().collect();
        for hash in hashes {
            if policy.on_dead_letter == OnDeadLetter::Release {
                self.change(hash, Key::release_all);
            }
            self.requeue(hash);
        }
    }

    /// Dead letters that hold their keys now, some of which may be known.
    pub(in crate::dispatch) fn found_all_dead(&mut self, letters: &[(Position, Option<u64>)]) {
        for (position, key) in letters {
            self.found_dead(*position, *key);
        }
    }
}
