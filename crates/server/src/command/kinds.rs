//! Kinds of commands as they are in force: their configuration, and what asks their target.

use std::collections::BTreeMap;
use std::sync::Arc;

use wayhold_model::Clock;

use crate::config::Config;
use crate::config::commands::CommandKind;
use crate::sink::http::config::HttpConfig;
use crate::sink::webhook::WebhookSink;
use crate::sink::{BuildError, Sink};

/// Questions to one target at a time: they are rare, and come beside what is sent to it.
const QUESTIONS_MAX: usize = 4;

/// A kind of command in force.
pub struct Kind {
    /// As it is configured.
    pub config: CommandKind,
    /// What asks its target whether a command was executed.
    pub asks: Option<Arc<dyn Sink>>,
    /// What has its target list what it did.
    pub lists: Option<Arc<dyn Sink>>,
    /// How long an answer of its target may take.
    pub timeout: std::time::Duration,
}

/// All of them, by name.
#[derive(Default)]
pub struct Kinds(BTreeMap<String, Arc<Kind>>);

impl Kinds {
    /// Those of a configuration. Call it inside a Tokio runtime.
    ///
    /// # Errors
    /// A client cannot be built; says of which kind.
    pub fn build(config: &Config, clock: &Arc<dyn Clock>) -> Result<Self, (String, BuildError)> {
        let mut kinds = BTreeMap::new();
        for kind in &config.commands {
            // A configuration whose kinds name no destination of it is refused before.
            let Some(destination) = config.destination(&kind.destination) else {
                continue;
            };
            let start = |request: &HttpConfig| {
                WebhookSink::start(request, QUESTIONS_MAX, Arc::clone(clock))
                    .map(|sink| Arc::new(sink) as Arc<dyn Sink>)
                    .map_err(|error| (kind.name.clone(), error))
            };
            let reconcile = kind.reconcile.as_ref();
            let asks = reconcile.map(|reconcile| start(&reconcile.request));
            let lists = reconcile.and_then(|reconcile| reconcile.list.as_ref());
            let lists = lists.map(|list| start(&list.request));
            let one = Kind {
                config: kind.clone(),
                asks: asks.transpose()?,
                lists: lists.transpose()?,
                timeout: destination.delivery.timeout,
            };
            kinds.insert(kind.name.clone(), Arc::new(one));
        }
        Ok(Self(kinds))
    }

    /// The kind of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Kind>> {
        self.0.get(name)
    }

    /// Every one, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.0.values()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
