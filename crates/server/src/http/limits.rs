//! The limits of listeners and connections as they are now: everybody who keeps them looks at one place, so
//! that a newer configuration counts from the next connection and the next look on.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::config::Limits;

/// Limits that can be replaced while they are kept. A cheap handle.
#[derive(Clone, Debug)]
pub struct SharedLimits(Arc<ArcSwap<Limits>>);

impl SharedLimits {
    /// What they are at this moment.
    pub(super) fn now(&self) -> Guard<Arc<Limits>> {
        self.0.load()
    }

    /// Replaces them.
    pub fn replace(&self, limits: &Limits) {
        self.0.store(Arc::new(limits.clone()));
    }
}

impl From<&Limits> for SharedLimits {
    fn from(limits: &Limits) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(limits.clone())))
    }
}
