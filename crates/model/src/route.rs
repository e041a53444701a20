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
