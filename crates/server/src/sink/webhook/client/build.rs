//! How the pool of connections is made, anew each time that it got too old.

use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Identity, retry};
use rustls::pki_types::CertificateDer;

use super::resolve::{CheckedResolver, Names};
use crate::config::Secret;
use crate::sink::BuildError;
use crate::sink::webhook::address::Guard;

/// How long an unused connection is kept: below the 60 s after which common receivers close it.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Most headers of an answer: what HTTP libraries commonly take. Together they fit into the client's
/// buffer of some 400 KiB, or the answer is given up.
const ANSWER_HEADERS_MAX: usize = 100;

/// Most bytes of an answer's headers over HTTP/2.
const ANSWER_HEAD_BYTES_MAX: u32 = 64 * 1024;

/// Bytes of one answer's body that a receiver may send unread over HTTP/2: what is read of it, and as the
/// protocol has it where nobody says otherwise.
const ANSWER_WINDOW_BYTES: u32 = 65_535;

/// The same for all answers of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

/// How often a connection of HTTP/2 with attempts in flight is asked whether it still stands, and how long
/// it may take to say so: all of them share it, so one that is dead would cost each its whole time.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(10);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(5);

const USER_AGENT: &str = concat!("Wayhold/", env!("CARGO_PKG_VERSION"));

/// What a pool is made from.
pub(super) struct Recipe {
    pub(super) has_tls: bool,
    pub(super) guard: Guard,
    pub(super) ca: Vec<CertificateDer<'static>>,
    pub(super) identity: Option<Secret>,
    pub(super) connect_timeout: Duration,
    pub(super) names: Arc<dyn Names>,
    pub(super) window: usize,
}

impl Recipe {
    /// A pool without connections.
    pub(super) fn build(&self) -> Result<reqwest::Client, BuildError> {
        // Fails only when the process has one already, which is as good.
        drop(rustls::crypto::ring::default_provider().install_default());
        let unusable = |error: reqwest::Error| {
            BuildError(format!(
                "HTTP client cannot be built: {}",
                error.without_url()
            ))
        };
        let mut builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .http1_max_headers(ANSWER_HEADERS_MAX)
            .http2_max_header_list_size(ANSWER_HEAD_BYTES_MAX)
            .http2_initial_stream_window_size(ANSWER_WINDOW_BYTES)
            .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(HTTP2_PING_INTERVAL)
            .http2_keep_alive_timeout(HTTP2_PING_TIMEOUT)
            .redirect(Policy::none())
            .retry(retry::never())
            .referer(false)
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(self.connect_timeout)
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .pool_max_idle_per_host(self.window)
            .dns_resolver(Arc::new(CheckedResolver {
                guard: self.guard.clone(),
                names: Arc::clone(&self.names),
            }));
        if !self.has_tls {
            // No TLS, no roots: a machine without certificates can still post to its own network.
            builder = builder.tls_certs_only([]);
        } else if !self.ca.is_empty() {
            let roots: Result<Vec<_>, _> = self
                .ca
                .iter()
                .map(|der| Certificate::from_der(der))
                .collect();
            builder = builder.tls_certs_only(roots.map_err(unusable)?);
        }
        if let Some(pem) = &self.identity {
            let identity = Identity::from_pem(pem.expose().as_bytes()).map_err(unusable)?;
            builder = builder.identity(identity);
        }
        builder.build().map_err(unusable)
    }
}
