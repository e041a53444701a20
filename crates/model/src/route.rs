//! Which destinations an event is owed to: the union of all rules that match. Rules that ask for a text of an
//! attribute (`type == 'a'`) are found by that text, so that a route for each of a thousand destinations costs an
//! event no more than one; the others are asked one after the other.

mod index;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use thiserror::Error;

use self::index::Index;
use crate::attribute::Attributes;
use crate::condition::{Condition, ConditionFailure};
use crate::id::{DestinationId, DestinationSet};

/// Most routes: one for each of as many destinations as there may be. An event may be held against each of them.
pub const ROUTES_MAX: usize = 1024;

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
    index: Index,
    // By the words of `Matches` that these rules need: few rules are looked up by few bytes.
    sets: RwLock<HashMap<Box<[u64]>, Arc<DestinationSet>>>,
}

/// One bit per route.
#[derive(Default)]
struct Matches([u64; ROUTES_MAX / 64]);

impl Matches {
    fn add(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word |= 1 << (index % 64);
        }
    }

    /// The bits of the first `routes` routes.
    fn of_first(&self, routes: usize) -> &[u64] {
        self.0.get(..routes.div_ceil(64)).unwrap_or(&self.0)
    }
}

impl Router {
    /// A router over the first `ROUTES_MAX` of these rules; configuration refuses to have more.
    pub fn new(rules: impl IntoIterator<Item = RouteRule>) -> Self {
        let rules: Box<[_]> = rules.into_iter().take(ROUTES_MAX).collect();
        Self {
            index: Index::of(&rules),
            rules,
            sets: RwLock::default(),
        }
    }

    /// The rules, in the order in which they were given.
    pub fn rules(&self) -> &[RouteRule] {
        &self.rules
    }

    /// Whom the event is owed to.
    ///
    /// # Errors
    /// When a route's condition cannot be evaluated: the first one's.
    pub fn route(&self, event: &(impl Attributes + ?Sized)) -> Result<Routed, RouteFailure> {
        let mut matches = Matches::default();
        self.index.each_candidate(event, |index| {
            let Some(rule) = self.rules.get(index) else {
                return Ok(());
            };
            let failed = |failure| RouteFailure {
                route: rule.name.clone(),
                failure,
            };
            let matched = match &rule.when {
                Some(condition) => condition.holds(event).map_err(failed)?,
                None => true,
            };
            if matched {
                matches.add(index);
            }
            Ok(())
        })?;
        let matches = matches.of_first(self.rules.len());
        Ok(Routed {
            destinations: self.set_of(matches),
            matched: matches.iter().any(|word| *word != 0),
        })
    }

    fn set_of(&self, matches: &[u64]) -> Arc<DestinationSet> {
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
        Arc::clone(sets.entry(matches.into()).or_insert(set))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        let beyond = u32::try_from(ROUTES_MAX).unwrap() + 44;
        let rules = |count| (0..count).map(|id| rule("r", Some("type == ''"), &[id]));
        let router = Router::new(rules(beyond));
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

    /// Conditions of every shape that is found by a text, and some that are not, over few values.
    fn condition() -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec!["type", "subject", "tenant"]);
        let text = prop::sample::select(vec!["", "a", "b", "c"]);
        let leaf = prop_oneof![
            4 => (name.clone(), text.clone()).prop_map(|(name, text)| format!("{name} == '{text}'")),
            2 => (name.clone(), text.clone(), text.clone())
                .prop_map(|(name, one, two)| format!("{name} in ['{one}', '{two}']")),
            1 => (name.clone(), text.clone()).prop_map(|(name, text)| format!("{name} != '{text}'")),
            1 => (name, text).prop_map(|(name, text)| format!("size({name}) == size('{text}')")),
        ];
        leaf.prop_recursive(2, 6, 2, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) && ({b})")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) || ({b})")),
                inner.prop_map(|a| format!("!({a})")),
            ]
        })
    }

    proptest! {
        #[test]
        fn rules_that_are_found_match_as_if_each_were_asked(
            conditions in prop::collection::vec(condition(), 1..80),
            values in prop::array::uniform3(prop::sample::select(vec!["", "a", "b", "c", "d"])),
        ) {
            let rules = (0..).zip(&conditions).map(|(id, text)| rule("r", Some(text), &[id]));
            let rules: Vec<_> = rules.collect();
            let [kind, subject, tenant] = values;
            let extensions = match tenant {
                "" => String::new(),
                tenant => format!(r#"{{"tenant":"{tenant}"}}"#),
            };
            let event = EventParts {
                kind,
                subject,
                extensions: &extensions,
                ..EventParts::default()
            };
            let asked = rules.iter().filter(|rule| {
                rule.when.as_ref().is_some_and(|when| when.holds(&event).unwrap())
            });
            let owed = DestinationSet::new(asked.flat_map(|rule| rule.to.iter().copied()));
            let routed = Router::new(rules.clone()).route(&event).unwrap();
            prop_assert_eq!(routed.destinations.text(), owed.text());
            prop_assert_eq!(routed.matched, !owed.ids().is_empty());
        }
    }

    #[test]
    fn a_route_for_each_of_a_thousand_asks_an_event_of_one() {
        let routes = u32::try_from(ROUTES_MAX).unwrap();
        let each = |id| {
            rule(
                "r",
                Some(&format!("tenant == 't{id}' && type != ''")),
                &[id],
            )
        };
        let router = Router::new((0..routes).map(each));
        let event = EventParts {
            kind: "x",
            extensions: r#"{"tenant":"t77"}"#,
            ..EventParts::default()
        };
        let mut asked = Vec::new();
        let all = router.index.each_candidate(&event, |at| {
            asked.push(at);
            Ok::<_, ()>(())
        });
        assert_eq!((all, asked), (Ok(()), vec![77]));
        assert_eq!(router.route(&event).unwrap().destinations.text(), "77");
    }
}
