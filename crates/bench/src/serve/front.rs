//! Our front over something else than the store: the same listener, limits, checks and routes, and
//! the same answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use wayhold::auth::{Auth, Openness};
use wayhold::clock::{SystemClock, SystemEntropy};
use wayhold::config::Config;
use wayhold::http::{Events, Front, Listener, Server};
use wayhold::ingest::{Accept, Keeper, Rules};
use wayhold::telemetry::metrics::Metrics;
use wayhold_store::Catalog;
use wayhold_store::disk::SystemDisk;

use crate::BenchError;

/// Time for the answers under way when told to stop.
const GRACE: Duration = Duration::from_secs(5);

/// Serves `keeper` until told to stop.
pub async fn serve(config: &Config, keeper: Arc<dyn Keeper>) -> Result<(), BenchError> {
    let clock = Arc::new(SystemClock);
    let catalog = Arc::new(Catalog::open(&config.data, &SystemDisk, clock.clone(), 1)?);
    let names: Vec<_> = config
        .destinations
        .iter()
        .map(|one| one.name.to_string())
        .collect();
    let records = catalog.sync_destinations(&names)?;
    let first = records
        .first()
        .ok_or("the configuration has a destination")?
        .id;
    let metrics = Arc::new(Metrics::default());
    let rules = Rules::new(config, |_| first);
    let accept = Accept::into_other(
        keeper,
        rules,
        clock.clone(),
        Arc::new(SystemEntropy),
        Arc::clone(&metrics),
    );
    let auth = Auth::new(catalog, Openness::Guarded, clock);
    let front = Front::new(Events::new(accept, auth, metrics), axum::Router::new());
    listen(config, front).await
}

/// Listens with `front` until told to stop.
pub async fn listen(config: &Config, front: Front) -> Result<(), BenchError> {
    let mut listeners = Vec::new();
    for address in &config.listen {
        listeners.push(Listener::bind(address).await?);
    }
    let server = Server::start(listeners, Arc::new(front), &config.limits)?;
    signal(SignalKind::terminate())?.recv().await;
    server.stop(GRACE).await;
    Ok(())
}
