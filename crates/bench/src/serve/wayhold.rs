//! Wayhold itself, put together as its command line does, with its one destination paused or running.

use std::sync::Arc;
use std::time::Duration;

use wayhold::api;
use wayhold::app::{App, Ports};
use wayhold::clock::{SystemClock, SystemEntropy};
use wayhold::config::Loaded;
use wayhold::http::{Events, Front};
use wayhold_model::Clock;
use wayhold_store::prefill::Prefill;
use wayhold_store::{RunState, Store};

use super::front::listen;
use super::settings::DESTINATION;
use crate::BenchError;

/// Time for the lanes to settle what is under way when told to stop.
const GRACE: Duration = Duration::from_secs(5);

/// Tells the ids that fill the window from all that a load sends.
const PREFILL_SEED: u64 = 0x5EED;

/// What a window of this many ids is filled with.
pub fn prefill(ids: u64) -> Prefill<'static> {
    Prefill {
        ids,
        seed: PREFILL_SEED,
        destination: DESTINATION,
    }
}

/// How a server of this kind begins.
#[derive(Clone, Copy, Debug)]
pub struct Beginning {
    /// Delivers at once, instead of holding all for a paused destination.
    pub deliver: bool,
    /// Ids in the idempotency window of a new store; none given is as many as it takes.
    pub window_ids: Option<u64>,
}

/// Serves until told to stop. Whether it delivers is as told at this start, whatever an earlier run did.
pub async fn serve(loaded: Loaded, beginning: Beginning) -> Result<(), BenchError> {
    let app = tokio::task::spawn_blocking(move || start(loaded, beginning)).await??;
    let events = Events::new(
        app.accept.clone(),
        app.auth.clone(),
        Arc::clone(&app.metrics),
    );
    let in_force = app.in_force();
    listen(&in_force.config, Front::new(events, api::router::api(&app))).await?;
    app.stop(GRACE).await;
    Ok(())
}

fn start(loaded: Loaded, beginning: Beginning) -> Result<Arc<App>, BenchError> {
    let config = &loaded.config;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let full = config.store.window_ids as u64;
    let prefill = prefill(beginning.window_ids.unwrap_or(full));
    prefill.make(&config.data, &config.store, &clock)?;
    let (store, recovery) = Store::open(&config.data, config.store.clone(), Arc::clone(&clock))?;
    let names: Vec<String> = config
        .destinations
        .iter()
        .map(|one| one.name.to_string())
        .collect();
    store.catalog().sync_destinations(&names)?;
    set_state(
        &store,
        match beginning.deliver {
            true => RunState::Running,
            false => RunState::Paused,
        },
    )?;
    let ports = Ports {
        clock,
        entropy: Arc::new(SystemEntropy),
    };
    Ok(App::start(loaded, (store, recovery), ports)?)
}

/// A start that changes nothing writes nothing. A crowd has no use for the destination of the prefilled window.
fn set_state(store: &Store, state: RunState) -> Result<(), BenchError> {
    for record in store.catalog().destinations() {
        if record.state != state && record.state != RunState::Retired {
            store
                .catalog()
                .set_run_state(record.id, state, "bench", None)?;
        }
    }
    Ok(())
}
