//! What decides over events at the door: which key an event gets, and who gets the event. Compiled from the
//! configuration, and replaced as a whole where a newer one is followed.

use std::sync::Arc;

use wayhold_model::command::SOURCE;
use wayhold_model::key::KeyRules;
use wayhold_model::route::Router;
use wayhold_model::{DestinationId, Event, EventParts};

use super::accept::Admitted;
use super::draft::Draft;
use super::envelope::Reading;
use super::{Refusal, trace};
use crate::config::{Config, DestinationName, Limits, ParseMode, Unmatched};

/// What decides over events at the door, compiled from the configuration.
pub struct Rules {
    /// Who gets which events.
    pub router: Router,
    /// Where ordering keys come from.
    pub keys: KeyRules,
    /// What becomes of an event that no route matches.
    pub unmatched: Unmatched,
    /// How attribute names that break the rules are treated.
    pub mode: ParseMode,
    /// `source` of plain JSON that brings none.
    pub source: String,
    /// Bounds at the door.
    pub limits: Limits,
}

/// Most routes that a refusal names: enough to tell whose configuration this is, of the thousand that it may have.
const ROUTES_NAMED_MAX: usize = 16;

/// Whoever could send such an event could have something done that nobody approved.
const NOT_OF_COMMANDS: &str =
    "another source: \"/commands\" is that of commands, which are proposed at POST /v1/commands";

impl Rules {
    /// The rules of a configuration, over the durable ids that the catalogue gave to its destinations.
    pub fn new(config: &Config, id_of: impl Fn(&DestinationName) -> DestinationId) -> Self {
        Self {
            router: config.router(id_of),
            keys: config.keys.clone(),
            unmatched: config.ingest.unmatched,
            mode: config.ingest.mode,
            source: config.ingest.source.clone(),
            limits: config.limits.clone(),
        }
    }

    pub(super) fn reading(&self) -> Reading {
        Reading {
            mode: self.mode,
            depth_max: self.limits.json_depth,
        }
    }

    /// Gives the event its key and its destinations.
    pub(super) fn admit(
        &self,
        mut draft: Draft<'_>,
        trace: Option<&trace::Context>,
    ) -> Result<Admitted, Refusal> {
        draft.set_trace(trace)?;
        let event = self.event_of(&mut draft)?;
        let routed = self
            .router
            .route(&event)
            .map_err(|failure| Refusal::RouteFailed {
                reason: failure.failure.to_string(),
                route: failure.route,
            })?;
        let keep = routed.matched || self.unmatched == Unmatched::Keep;
        if !keep && self.unmatched == Unmatched::Refuse {
            let rules = self.router.rules();
            let named = rules.iter().take(ROUTES_NAMED_MAX);
            return Err(Refusal::Unmatched {
                routes: rules.len(),
                named: named.map(|rule| rule.name.clone()).collect(),
            });
        }
        Ok(Admitted {
            event: Arc::new(event),
            destinations: keep.then_some(routed.destinations),
            identified: true,
            set_aside: None,
        })
    }

    /// The event with the key that it brings, or that the rules give it.
    pub(super) fn event_of(&self, draft: &mut Draft<'_>) -> Result<Event, Refusal> {
        if draft.source == SOURCE {
            return Err(Refusal::invalid("source", NOT_OF_COMMANDS));
        }
        let parts = draft.parts();
        let key = self
            .keys
            .key_of(&parts)
            .map_err(|failure| Refusal::KeyFailed {
                reason: failure.failure.to_string(),
                rule: failure.rule,
            })?;
        let event = match key {
            Some(key) => Event::new(&EventParts {
                key: &key,
                ..parts.clone()
            })?,
            None => Event::new(&parts)?,
        };
        Ok(event)
    }
}
