//! How the lanes follow a newer configuration: a new destination gets a lane, one that changed goes on by its
//! newest version, one that is gone is held, as after a restart. The catalogue knows all of it first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::error;
use wayhold_model::Position;
use wayhold_store::{DestinationRecord, LetterError, RunState};

use super::dispatcher::{Beginning, DispatchError, Dispatcher, Inner, Service, Target, holds_of};
use super::lane::Command;
use crate::config::{DeliveryPolicy, OnDeadLetter};

/// What the catalogue is to record of a newer configuration.
#[derive(Clone, Debug)]
pub struct Reconfiguration {
    /// Every destination that it has.
    pub names: Vec<String>,
    /// Who wanted it.
    pub by: String,
    /// The file.
    pub file: String,
    /// What changed, in words.
    pub what: String,
}

impl Dispatcher {
    /// Follows a newer configuration in which these destinations are new or changed; answers every destination
    /// that the catalogue knows then. Recorded before any lane hears of it.
    ///
    /// # Errors
    /// When the catalogue could not record it, or the server is stopping; nothing has changed then.
    pub async fn follow(
        &self,
        reconfiguration: Reconfiguration,
        mut services: BTreeMap<String, Service>,
    ) -> Result<Vec<DestinationRecord>, DispatchError> {
        let inner = &self.inner;
        let _one_at_a_time = inner.changes.lock().await;
        if inner.is_stopping.load(Ordering::Acquire) {
            return Err(DispatchError::Stopping);
        }
        let store = inner.around.store.clone();
        let record = move || {
            let catalog = store.catalog();
            let before = catalog.destinations();
            let Reconfiguration {
                names,
                by,
                file,
                what,
            } = &reconfiguration;
            let after = catalog.follow_configuration(names, by, file, what)?;
            Ok::<_, DispatchError>((before, after))
        };
        let recorded = tokio::task::spawn_blocking(record).await;
        let (before, records) = recorded.map_err(|_cancelled| DispatchError::Stopping)??;
        for record in &records {
            let old = before.iter().find(|one| one.id == record.id);
            let turned = old.is_some_and(|old| is_retired(old) != is_retired(record));
            let service = services.remove(&record.name);
            if turned || service.is_some() {
                inner.lead(record.clone(), service).await;
            }
        }
        Ok(records)
    }
}

fn is_retired(record: &DestinationRecord) -> bool {
    record.state == RunState::Retired
}

impl Inner {
    /// Has a destination's lane follow, or starts one.
    async fn lead(&self, record: DestinationRecord, service: Option<Service>) {
        let id = record.id;
        if self.lane(id).is_none() {
            let target = Target { record, service };
            if let Some(beginning) = Beginning::without_letters(&self.around.store, target) {
                self.start_lane(beginning);
            }
            return;
        }
        let policy = service.as_ref().map(|service| service.policy.clone());
        let service = service.map(Box::new);
        let follow = |done| Command::Follow {
            record: record.clone(),
            service,
            done,
        };
        self.tell(id, follow).await;
        if policy
            .as_ref()
            .is_some_and(|policy| policy.on_dead_letter == OnDeadLetter::Hold)
            && let Err(error) = self.hold(&record, policy).await
        {
            error!(
                destination = record.name,
                %error,
                "which dead letters hold their keys is known only after a restart"
            );
        }
    }

    /// Tells a lane which dead letters hold their keys: those from before it held any.
    async fn hold(
        &self,
        record: &DestinationRecord,
        policy: Option<DeliveryPolicy>,
    ) -> Result<(), LetterError> {
        let policy = Arc::new(policy);
        let read = async || -> Result<Vec<(Position, Option<u64>)>, LetterError> {
            let (store, id, policy) = (self.around.store.clone(), record.id, Arc::clone(&policy));
            let read = move || holds_of(&store, id, policy.as_ref().as_ref());
            // Cut off only where the process ends.
            tokio::task::spawn_blocking(read)
                .await
                .unwrap_or(Ok(Vec::new()))
        };
        let first = read().await?;
        let letters = first.clone();
        self.tell(record.id, |done| Command::Held { letters, done })
            .await;
        // Whatever was redriven or discarded between the look and the word holds nothing.
        let still: BTreeSet<_> = read().await?.into_iter().collect();
        for (position, key) in first.into_iter().filter(|letter| !still.contains(letter)) {
            if let Some(lane) = self.lane(record.id) {
                lane.commands
                    .send(Command::Discarded { position, key })
                    .await
                    .ok();
            }
        }
        Ok(())
    }
}
