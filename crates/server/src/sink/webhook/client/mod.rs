//! The HTTP client of one destination: told to do nothing on its own, bounded in time, and connected
//! only to addresses that were checked for that very connection. It follows no redirect, reads no proxy
//! from the environment, decodes nothing, keeps no cookies and never tries twice.

mod build;
pub mod config;
mod resolve;

#[cfg(test)]
mod rebinding;
#[cfg(test)]
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use reqwest::{Request, Response};
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::address::Guard;
use crate::config::Secret;
use crate::sink::BuildError;
use build::Recipe;
use config::ClientConfig;
pub(in crate::sink) use resolve::{Names, SystemNames};

/// A pool of connections to one receiver, each used for a limited time.
pub(super) struct Client {
    recipe: Arc<Recipe>,
    header_timeout: Option<Duration>,
    connection_age: Duration,
    pool: ArcSwap<Pool>,
    renewing: AtomicBool,
}

struct Pool {
    client: reqwest::Client,
    born: Instant,
}

/// Why a request got no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The head of the answer had not come by the deadline, or within this time that is configured for it.
    Late(Option<Duration>),
    /// The connection could not be made, or failed.
    Failed(reqwest::Error),
}

impl Client {
    /// A client for requests to `url`, with at most `window` idle connections, which shows `identity` (a
    /// certificate chain and its private key, in PEM) to a server that asks for it.
    ///
    /// # Errors
    /// When the system's certificate roots cannot be read, or the identity is none.
    pub(super) fn new(
        url: &Url,
        guard: Guard,
        config: &ClientConfig,
        identity: Option<&Secret>,
        names: Arc<dyn Names>,
        window: usize,
    ) -> Result<Self, BuildError> {
        let recipe = Arc::new(Recipe {
            has_tls: url.scheme() == "https",
            guard,
            ca: config.ca.clone(),
            identity: identity.cloned(),
            connect_timeout: config.connect_timeout,
            names,
            window,
        });
        let pool = Pool {
            client: recipe.build()?,
            born: Instant::now(),
        };
        Ok(Self {
            recipe,
            header_timeout: config.header_timeout,
            connection_age: config.connection_age,
            pool: ArcSwap::from_pointee(pool),
            renewing: AtomicBool::new(false),
        })
    }

    /// Sends a request and waits for the head of its answer, until `deadline` or for the time that is
    /// configured for it.
    ///
    /// # Errors
    /// Says whether time ran out or the connection failed.
    pub(super) async fn execute(
        &self,
        request: Request,
        deadline: Instant,
    ) -> Result<Response, NoAnswer> {
        let left = deadline.saturating_duration_since(Instant::now());
        let shorter = self.header_timeout.filter(|wait| *wait < left);
        let until = shorter.map_or(deadline, |wait| Instant::now() + wait);
        let answered = async { self.current().await.execute(request).await };
        match timeout_at(until, answered).await {
            Ok(answered) => answered.map_err(NoAnswer::Failed),
            Err(_) => Err(NoAnswer::Late(shorter)),
        }
    }

    /// The pool in use. One that is too old is replaced by whoever finds it first, aside, since that may
    /// read the system's certificates; meanwhile others go on with the old one. Its connections are closed
    /// once they are idle.
    async fn current(&self) -> reqwest::Client {
        let pool = self.pool.load_full();
        if pool.born.elapsed() < self.connection_age || self.renewing.swap(true, Ordering::AcqRel) {
            return pool.client.clone();
        }
        let renewing = Renewing(&self.renewing);
        let recipe = Arc::clone(&self.recipe);
        let built = tokio::task::spawn_blocking(move || recipe.build()).await;
        let client = match built {
            Ok(Ok(client)) => client,
            failed => {
                tracing::warn!(?failed, "connections are kept past their age");
                pool.client.clone()
            }
        };
        let pool = Pool {
            client: client.clone(),
            born: Instant::now(),
        };
        self.pool.store(Arc::new(pool));
        drop(renewing);
        client
    }
}

/// The right to replace the pool, given back also where the attempt is given up meanwhile.
struct Renewing<'a>(&'a AtomicBool);

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
