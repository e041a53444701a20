//! The two stores behind one face, and the events that go into them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use wayhold::clock::SystemClock;
use wayhold_model::{DestinationId, DestinationSet, Event, EventParts};
use wayhold_store::{Lane, NewEvent, Store};

use super::args::{Kind, Layout};
use crate::BenchError;
use crate::payload;
use crate::serve::Outbox;

/// The one destination of every event here.
pub const DESTINATION: DestinationId = DestinationId(1);

/// A store under measurement; a cheap handle.
#[derive(Clone)]
pub enum Engine {
    /// The store of Wayhold.
    Wayhold(Store),
    /// The classic outbox, one blocking thread for each call, as it is used.
    Classic(Arc<Outbox>),
}

impl Engine {
    /// Opens or makes it. Blocking.
    pub fn open(kind: Kind, layout: &Layout) -> Result<Self, BenchError> {
        std::fs::create_dir_all(&layout.data)?;
        Ok(match kind {
            Kind::Wayhold => Self::Wayhold(open(layout)?),
            Kind::Classic => Self::Classic(Arc::new(Outbox::open(&layout.data)?)),
        })
    }

    /// Stores all events and returns when they are synced.
    pub async fn append(&self, events: Vec<NewEvent>) -> Result<(), BenchError> {
        match self {
            Self::Wayhold(store) => {
                store.append(events).await?;
            }
            Self::Classic(outbox) => {
                let outbox = Arc::clone(outbox);
                tokio::task::spawn_blocking(move || outbox.insert_all(&events)).await??;
            }
        }
        Ok(())
    }
}

/// Opens Wayhold's store. Blocking.
pub fn open(layout: &Layout) -> Result<Store, BenchError> {
    let (store, _) = Store::open(&layout.data, layout.options(), Arc::new(SystemClock))?;
    store.catalog().sync_destinations(&["bench".to_owned()])?;
    Ok(store)
}

/// The lane of `DESTINATION`.
pub fn lane(store: &Store) -> Result<Lane, BenchError> {
    store
        .lane(DESTINATION)
        .ok_or_else(|| "the first destination has another number than 1".into())
}

/// An endless supply of events with unique ids; shared by all callers.
pub struct Events {
    bodies: Vec<Bytes>,
    destinations: Arc<DestinationSet>,
    number: AtomicU64,
}

impl Events {
    /// Events for `DESTINATION`.
    pub fn new() -> Self {
        Self {
            bodies: payload::bodies().into_iter().map(Bytes::from).collect(),
            destinations: Arc::new(DestinationSet::new([DESTINATION])),
            number: AtomicU64::new(0),
        }
    }

    /// The next `count` of them.
    pub fn take(&self, count: usize) -> Result<Vec<NewEvent>, BenchError> {
        let first = self.number.fetch_add(count as u64, Ordering::Relaxed);
        (first..first + count as u64)
            .map(|number| self.event(number))
            .collect()
    }

    fn event(&self, number: u64) -> Result<NewEvent, BenchError> {
        let body = usize::try_from(number).unwrap_or_default() % self.bodies.len();
        let event = Event::new(&EventParts {
            id: &format!("store-{number:012}"),
            source: "/bench",
            kind: "com.example.shipment.scanned",
            time: "2026-01-01T00:00:00Z",
            content_type: "application/json",
            key: &payload::key(number % payload::KEYS),
            data: self.bodies.get(body).cloned().unwrap_or_default(),
            ..EventParts::default()
        })?;
        Ok(NewEvent {
            event: Arc::new(event),
            destinations: Arc::clone(&self.destinations),
            identified: true,
            set_aside: None,
        })
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::new()
    }
}
