//! `wayhold serve`: from command line to running server, until a signal ends it.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use wayhold_store::{OpenError, Store};

use super::exit::{Exit, Failure};
use super::output::Output;
use super::reload_signal::ReloadSignal;
use super::stop_signal::StopSignal;
use crate::api::router;
use crate::app::{App, Ports};
use crate::blocking::blocking;
use crate::clock::{SystemClock, SystemEntropy};
use crate::config::{Config, ConfigPlace, Environment, ListenAddr, Loaded, LogFormat, Overrides};
use crate::http::{Events, Front, Listener, Server};
use crate::telemetry::logs;

/// How long requests may take to end once the server stops. With the lanes' share below it keeps the
/// whole stop within 10 s.
const REQUESTS_GRACE: Duration = Duration::from_secs(2);

/// How long attempts in flight may take to end after that; what has no outcome then stays pending.
const LANES_GRACE: Duration = Duration::from_secs(2);

/// Run the server.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// Configuration file; without one events go to delivered.ndjson in the data directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory, made when absent [default: ./data].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Address of the API: HOST:PORT or unix:PATH; may be given several times [default: 127.0.0.1:8700].
    #[arg(long, value_name = "ADDR")]
    listen: Vec<ListenAddr>,
    /// Address that serves only /livez, /readyz and /metrics, without tokens.
    #[arg(long, value_name = "ADDR")]
    ops_listen: Option<ListenAddr>,
    /// Take every request without a token, on every listener.
    #[arg(long)]
    no_auth: bool,
}

impl Serve {
    /// Serves until SIGTERM or SIGINT, and reads the configuration again at SIGHUP.
    ///
    /// # Errors
    /// When the server cannot start as configured.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let overrides = Overrides {
            data: self.data,
            listen: self.listen,
            ops_listen: self.ops_listen,
            no_auth: self.no_auth,
        };
        let place = ConfigPlace {
            file: self.config,
            overrides,
            environment: Environment::of_process(),
        };
        let loaded = place
            .read()
            .map_err(|problems| Failure::usage(problems.to_string()))?;
        logs::start(&loaded.config.log)
            .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        logs::record_panics();
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot start: {error}")))?
            .block_on(serve(loaded, output))
    }
}

async fn serve(loaded: Loaded, output: &mut Output) -> Result<(), Failure> {
    // Before anything is open: a signal from here on is a stop, never the end of half a start.
    let stop = StopSignal::new()?;
    let reload = ReloadSignal::new()?;
    let ports = Ports {
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    let config = &loaded.config;
    let store = open(config, &ports).await?;
    let listeners = match bind(config, store.0.catalog().has_tokens()).await {
        Ok(listeners) => listeners,
        Err(failure) => return Err(give_up(store.0, failure).await),
    };
    let opened = store.0.clone();
    let app = match blocking(move || App::start(loaded, store, ports)).await {
        Ok(Ok(app)) => app,
        Ok(Err(error)) => return Err(give_up(opened, Failure::usage(error.to_string())).await),
        Err(error) => {
            return Err(give_up(opened, Failure::new(Exit::Failed, error.to_string())).await);
        }
    };
    wayhold_store::failpoint!("start.before-listening");
    let servers = listeners.serve(&app)?;
    wayhold_store::failpoint!("start.listening");
    announce(&app, &servers, output);
    let reason = tokio::select! {
        reason = stop.received() => reason,
        never = reload.follow(&app) => match never {},
    };
    tracing::info!(reason, "stopping");
    app.announce_stop();
    servers.api.stop(REQUESTS_GRACE).await;
    app.stop(LANES_GRACE).await;
    // Last of all, so that whoever watches sees "not ready" until there is nothing left to watch.
    if let Some(ops) = servers.ops {
        ops.stop(Duration::ZERO).await;
    }
    tracing::info!("stopped");
    Ok(())
}

async fn open(config: &Config, ports: &Ports) -> Result<(Store, wayhold_store::Recovery), Failure> {
    let (data, options) = (config.data.clone(), config.store.clone());
    #[cfg(feature = "failpoints")]
    let options = wayhold_store::failpoint::hastened(options);
    let clock = Arc::clone(&ports.clock);
    let opened = blocking(move || Store::open(&data, options, clock)).await;
    let opened = opened.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let (store, recovery) = opened.map_err(|error| match error {
        OpenError::Locked { .. } | OpenError::Newer { .. } => Failure::usage(error.to_string()),
        OpenError::Sqlite { .. } | OpenError::Unusable { .. } => {
            Failure::new(Exit::Failed, error.to_string())
        }
    })?;
    tracing::info!(
        unclean_stop = recovery.unclean,
        unproven_events = recovery.unproven,
        segments = recovery.segments,
        findings = recovery.findings.len(),
        took_ms = recovery.took.as_millis(),
        "the store is open"
    );
    for finding in &recovery.findings {
        tracing::warn!(finding, "found while opening the store");
    }
    Ok((store, recovery))
}

/// A start that cannot go on leaves the store as a stop does.
async fn give_up(store: Store, failure: Failure) -> Failure {
    blocking(move || store.stop()).await.ok();
    failure
}

/// Bound listeners.
struct Listeners {
    api: Vec<Listener>,
    ops: Option<Listener>,
}

/// Running listeners.
struct Servers {
    api: Server,
    ops: Option<Server>,
}

async fn bind(config: &Config, has_tokens: bool) -> Result<Listeners, Failure> {
    let public = config.listen.iter().find(|address| !address.is_loopback());
    if let Some(address) = public
        && !has_tokens
        && !config.no_auth
    {
        return Err(Failure::usage(format!(
            "{address} can be reached from other machines, and no token exists\nmake one first: \
             wayhold tokens create NAME --role admin --data {}\nor take every request from \
             everybody: --no-auth",
            config.data.display(),
        )));
    }
    let mut api = Vec::new();
    for address in &config.listen {
        api.push(bind_one(address).await?);
    }
    let ops = match &config.ops_listen {
        Some(address) => Some(bind_one(address).await?),
        None => None,
    };
    Ok(Listeners { api, ops })
}

async fn bind_one(address: &ListenAddr) -> Result<Listener, Failure> {
    Listener::bind(address)
        .await
        .map_err(|error| Failure::usage(format!("cannot listen on {address}: {error}")))
}

impl Listeners {
    fn serve(self, app: &Arc<App>) -> Result<Servers, Failure> {
        let events = Events::new(
            app.accept.clone(),
            app.auth.clone(),
            Arc::clone(&app.metrics),
        );
        let front = Arc::new(Front::new(events, router::api(app)));
        let limits = app.limits();
        let unknown = |error: std::io::Error| Failure::new(Exit::Failed, error.to_string());
        let api = Server::start(self.api, front, limits.clone()).map_err(unknown)?;
        let ops = self
            .ops
            .map(|listener| {
                let (openness, metrics) = (app.auth.openness(), Arc::clone(&app.metrics));
                let front = Front::without_events(router::ops(app), openness, metrics);
                Server::start(vec![listener], Arc::new(front), limits).map_err(unknown)
            })
            .transpose()?;
        Ok(Servers { api, ops })
    }
}

/// Says where everything is: a block for a person, one record for the log, and with `--json` an object
/// on standard output for whoever started the server and waits for it.
fn announce(app: &App, servers: &Servers, output: &mut Output) {
    let in_force = app.in_force();
    let config = &in_force.config;
    let version = env!("CARGO_PKG_VERSION");
    let api: Vec<_> = servers.api.addresses().iter().map(url).collect();
    let ops = servers
        .ops
        .as_ref()
        .and_then(|ops| ops.addresses().first())
        .map(url);
    let metrics = ops.or_else(|| api.first().cloned()).unwrap_or_default();
    let data = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
    let data = data.display().to_string();
    output.json(&json!({ "version": version, "api": api, "metrics": metrics, "data": data }));
    // Among JSON records only JSON records, unless a person looks on.
    if config.log.format == LogFormat::Pretty || std::io::stderr().is_terminal() {
        output.note(format!("wayhold {version} is ready"));
        for address in &api {
            output.note(format!("  api        {address}/v1/events"));
        }
        output.note(format!("  metrics    {metrics}/metrics"));
        output.note(format!("  data       {data}"));
        for destination in &config.destinations {
            let kind = destination.sink.kind();
            output.note(format!("  delivers   to {} ({kind})", destination.name));
        }
        if config.no_auth {
            output.note("  NO AUTH    every request is taken without a token");
        }
    }
    tracing::info!(version, api = api.join(","), metrics, data, "ready");
}

fn url(address: &ListenAddr) -> String {
    match address {
        ListenAddr::Tcp(address) => format!("http://{address}"),
        ListenAddr::Unix(_) => address.to_string(),
    }
}
