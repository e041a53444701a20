//! Which destinations an event is owed to: rules asked one after the other, the union of all that match.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use thiserror::Error;

use crate::attribute::Attributes;
use crate::condition::{Condition, ConditionFailure};
use crate::id::{DestinationId, DestinationSet};

/// Most routes: every event is held against each of them.
pub const ROUTES_MAX: usize = 256;

/// Most combinations of routes whose destinations are kept ready; more of them are made when needed.
const INTERNED_MAX: usize = 4096;

/// A rule from events to destinations.
#[derive(Clone, Debug)]
pub struct RouteRule {
    /// What problems call it.
    pub name: String,
    /// Which events; all where absent.
    pub when: Option<Condition>,
    /// Who gets them.
    pub to: Vec<DestinationId>,
}

/// Where an event goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routed {
    /// Whom it is owed to.
    pub destinations: Arc<DestinationSet>,
    /// Whether any route matched.
    pub matched: bool,
}

/// A route whose condition could not be evaluated for an event; the event is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the condition of {route} failed: {failure}")]
pub struct RouteFailure {
    /// The route's name.
    pub route: String,
    /// What went wrong.
    pub failure: ConditionFailure,
}

/// All routes. The set of each combination that occurred is kept and shared, so that routing an event
/// allocates nothing.
#[derive(Debug)]
pub struct Router {
    rules: Box<[RouteRule]>,
    sets: RwLock<HashMap<Matches, Arc<DestinationSet>>>,
}

/// One bit per route.
type Matches = [u64; ROUTES_MAX / 64];

impl Router {
    /// A router over the first `ROUTES_MAX` of these rules; configuration refuses to have more.
    pub fn new(rules: impl IntoIterator<Item = RouteRule>) -> Self {
        Self {
            rules: rules.into_iter().take(ROUTES_MAX).collect(),
            sets: RwLock::default(),
        }
    }

    /// The rules, in the order in which they are asked.
    pub fn rules(&self) -> &[RouteRule] {
        &self.rules
    }

    /// Whom the event is owed to.
    ///
    /// # Errors
    /// When a route's condition cannot be evaluated.
    pub fn route(&self, event: &(impl Attributes + ?Sized)) -> Result<Routed, RouteFailure> {
        let mut matches = Matches::default();
        for (index, rule) in self.rules.iter().enumerate() {
            let failed = |failure| RouteFailure {
                route: rule.name.clone(),
                failure,
            };
            let matched = match &rule.when {
                Some(condition) => condition.holds(event).map_err(failed)?,
                None => true,
            };
            if let Some(word) = matches.get_mut(index / 64) {
                *word |= u64::from(matched) << (index % 64);
            }
        }
        Ok(Routed {
            destinations: self.set_of(&matches),
            matched: matches != Matches::default(),
        })
    }

    fn set_of(&self, matches: &Matches) -> Arc<DestinationSet> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(set) = sets.get(matches) {
            return Arc::clone(set);
        }
        drop(sets);
        let matched = self.rules.iter().enumerate().filter(|(index, _)| {
            matches
                .get(index / 64)
                .is_some_and(|word| word >> (index % 64) & 1 == 1)
        });
        let ids = matched.flat_map(|(_, rule)| rule.to.iter().copied());
        let set = Arc::new(DestinationSet::new(ids));
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        if sets.len() >= INTERNED_MAX {
            return set;
        }
        Arc::clone(sets.entry(*matches).or_insert(set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventParts;

    fn rule(name: &str, when: Option<&str>, to: &[u32]) -> RouteRule {
        RouteRule {
            name: name.to_owned(),
            when: when.map(|text| Condition::compile(text).unwrap()),
            to: to.iter().copied().map(DestinationId).collect(),
        }
    }

    fn event(kind: &'static str) -> EventParts<'static> {
        EventParts {
            kind,
            ..EventParts::default()
        }
    }

    #[test]
    fn an_event_is_owed_to_the_union_of_all_routes_that_match() {
        let router = Router::new([
            rule("a", Some("type == 'a'"), &[3, 1]),
            rule("ab", Some("type in ['a', 'b']"), &[1, 2]),
            rule("none", Some("type == 'c'"), &[]),
        ]);
        for (kind, owed, matched) in [
            ("a", "1,2,3", true),
            ("b", "1,2", true),
            ("c", "", true),
            ("d", "", false),
        ] {
            let routed = router.route(&event(kind)).unwrap();
            assert_eq!(
                (routed.destinations.text(), routed.matched),
                (owed, matched),
                "{kind}"
            );
        }
    }

    #[test]
    fn a_route_without_condition_matches_all() {
        let router = Router::new([rule("all", None, &[1])]);
        assert!(router.route(&event("x")).unwrap().matched);
        assert!(!Router::new([]).route(&event("x")).unwrap().matched);
    }

    #[test]
    fn events_of_one_combination_share_its_set() {
        let router = Router::new([rule("all", None, &[1])]);
        let one = router.route(&event("x")).unwrap().destinations;
        let two = router.route(&event("y")).unwrap().destinations;
        assert!(Arc::ptr_eq(&one, &two));
    }

    #[test]
    fn a_condition_that_fails_names_its_route() {
        let router = Router::new([rule("routes[0]", Some("int(type) > 1"), &[1])]);
        assert!(router.route(&event("2")).unwrap().matched);
        let failure = router.route(&event("x")).unwrap_err();
        assert_eq!(failure.route, "routes[0]");
        assert!(
            failure
                .to_string()
                .starts_with("the condition of routes[0] failed: ")
        );
    }

    #[test]
    fn the_last_route_that_fits_counts_and_none_beyond() {
        let rules = |count| (0..count).map(|id| rule("r", Some("type == ''"), &[id]));
        let router = Router::new(rules(300));
        assert_eq!(router.rules().len(), ROUTES_MAX);
        assert_eq!(
            router.route(&event("")).unwrap().destinations.ids().len(),
            ROUTES_MAX
        );
    }

    #[test]
    fn more_combinations_than_are_kept_are_still_right() {
        let rules =
            (0..13).map(|bit| rule("r", Some(&format!("subject.contains('<{bit}>')")), &[bit]));
        let router = Router::new(rules);
        for combination in 0..1_u32 << 13 {
            let bits: Vec<_> = (0..13).filter(|bit| combination >> bit & 1 == 1).collect();
            let subject: String = bits.iter().map(|bit| format!("<{bit}>")).collect();
            let event = EventParts {
                subject: &subject,
                ..EventParts::default()
            };
            let routed = router.route(&event).unwrap();
            let ids: Vec<_> = routed.destinations.ids().iter().map(|id| id.0).collect();
            assert_eq!((ids, routed.matched), (bits, combination != 0));
        }
        assert_eq!(router.sets.read().unwrap().len(), INTERNED_MAX);
    }
}
