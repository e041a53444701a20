//! Which path leads where, for each kind of listener.

use std::sync::Arc;

use axum::Router;

use super::{
    approvals, audit, backups, command_edits, commands, config, dead_letters, destinations,
    evidence, explain, halts, health, ledger, lookup, replays, shards, sources, status, tokens,
};
use crate::app::App;
use crate::http::{pages, unserved};

/// Listeners of the API. `POST /v1/events` does not come this way: the front takes it before.
pub fn api(app: &Arc<App>) -> Router {
    let routes = Router::new()
        .merge(lookup::routes())
        .merge(destinations::routes())
        .merge(explain::routes())
        .merge(dead_letters::routes())
        .merge(replays::routes())
        .merge(shards::routes())
        .merge(sources::routes())
        .merge(status::routes())
        .merge(tokens::routes())
        .merge(audit::routes())
        .merge(ledger::routes())
        .merge(evidence::routes())
        .merge(backups::routes())
        .merge(commands::routes())
        .merge(config::routes())
        .merge(approvals::routes())
        .merge(halts::routes())
        .merge(command_edits::routes())
        .merge(health::routes())
        .merge(pages());
    unserved(routes).with_state(Arc::clone(app))
}

/// The listener of `--ops-listen`.
pub fn ops(app: &Arc<App>) -> Router {
    let routes = Router::new().merge(health::ops_routes());
    unserved(routes).with_state(Arc::clone(app))
}
