//! Wayhold itself, put together as its command line does, with its one destination paused or running.

use std::sync::Arc;
use std::time::Duration;

use wayhold::api;
use wayhold::app::{App, Ports};
use wayhold::clock::{SystemClock, SystemEntropy};
use wayhold::config::Config;
use wayhold::http::{Events, Front};
use wayhold_store::{RunState, Store};

use super::front::listen;
use super::settings::DESTINATION;
use crate::BenchError;

/// Time for the lanes to settle what is under way when told to stop.
const GRACE: Duration = Duration::from_secs(5);

/// Serves until told to stop. A destination that was paused by an earlier run stays so.
pub async fn serve(config: Config, deliver: bool) -> Result<(), BenchError> {
    let config = Arc::new(config);
    let app = {
        let config = Arc::clone(&config);
        tokio::task::spawn_blocking(move || start(&config, deliver)).await??
    };
    let events = Events::new(
        app.accept.clone(),
        app.auth.clone(),
        Arc::clone(&app.metrics),
    );
    listen(&config, Front::new(events, api::router::api(&app))).await?;
    app.stop(GRACE).await;
    Ok(())
}

fn start(config: &Arc<Config>, deliver: bool) -> Result<Arc<App>, BenchError> {
    let clock = Arc::new(SystemClock);
    let (store, recovery) = Store::open(&config.data, config.store.clone(), clock.clone())?;
    if !deliver && store.catalog().destinations().is_empty() {
        pause(&store)?;
    }
    let ports = Ports {
        clock,
        entropy: Arc::new(SystemEntropy),
    };
    Ok(App::start(Arc::clone(config), (store, recovery), ports)?)
}

fn pause(store: &Store) -> Result<(), BenchError> {
    for record in store
        .catalog()
        .sync_destinations(&[DESTINATION.to_owned()])?
    {
        store
            .catalog()
            .set_run_state(record.id, RunState::Paused, "bench", None)?;
    }
    Ok(())
}
