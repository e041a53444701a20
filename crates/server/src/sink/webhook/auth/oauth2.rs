//! OAuth 2.0 client credentials (RFC 6749 section 4.4). One token for all requests of a destination; whoever
//! needs one while none is there waits for the one fetch that is under way, and shares its failure too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use ipnet::IpNet;
use reqwest::{Method, Request, Response};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use url::form_urlencoded::{Serializer, byte_serialize};
use wayhold_model::{Failure, FailureClass};

use super::config::{ClientAuthentication, OAuth2Config};
use super::token::{Token, error_of, token_of};
use crate::sink::BuildError;
use crate::sink::webhook::address::Guard;
use crate::sink::webhook::classify::{meaning_of_status, outcome_of_error};
use crate::sink::webhook::client::config::ClientConfig;
use crate::sink::webhook::client::{Client, Names, NoAnswer};

/// How long one fetch may take, so that a slow server does not use up the attempts of all that wait.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of an answer: tokens that carry claims have a few KiB.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// No token: nothing was sent to the destination. It names the server and never the credential.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no token from {host}: {why}")]
pub(crate) struct NoToken {
    host: String,
    class: FailureClass,
    why: String,
}

impl NoToken {
    /// The failure of an attempt that could not be made for want of a token.
    pub(crate) fn failure(&self) -> Failure {
        Failure::new(self.class, self.to_string())
    }
}

/// The token of one destination.
pub(crate) struct Tokens {
    config: OAuth2Config,
    host: String,
    guard: Guard,
    client: Client,
    /// How many fetches have ended. Whoever waited while one did takes what it gave.
    ended: AtomicU64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    token: Option<(Token, Instant)>,
    failure: Option<NoToken>,
}

impl Tokens {
    /// Builds the client; reaches nothing yet.
    ///
    /// # Errors
    /// When the system's certificate roots cannot be read.
    pub(super) fn start(
        config: OAuth2Config,
        allow: &[IpNet],
        names: Arc<dyn Names>,
    ) -> Result<Self, BuildError> {
        let guard = Guard::new(&config.token_url, allow);
        // Another receiver than the destination, so nothing of how that one is reached is meant for it.
        let how = ClientConfig::default();
        Ok(Self {
            host: config.token_url.host_str().unwrap_or_default().to_owned(),
            client: Client::new(&config.token_url, guard.clone(), &how, None, names, 1)?,
            guard,
            config,
            ended: AtomicU64::new(0),
            held: Mutex::default(),
        })
    }

    /// The header of a token that is fresh, fetched where there is none.
    ///
    /// # Errors
    /// When there is none by `deadline`, or the server gives none.
    pub(super) async fn get(&self, deadline: Instant) -> Result<HeaderValue, NoToken> {
        let known = self.ended.load(Ordering::Acquire);
        let got = timeout_at(deadline, self.get_or_fetch(known)).await;
        got.unwrap_or_else(|_| {
            Err(self.failed(FailureClass::Timeout, "no answer in the attempt's time"))
        })
    }

    async fn get_or_fetch(&self, known: u64) -> Result<HeaderValue, NoToken> {
        let mut held = self.held.lock().await;
        if let Some((token, asked)) = &held.token
            && asked.elapsed() < token.used_for
        {
            return Ok(token.header.clone());
        }
        if self.ended.load(Ordering::Acquire) != known
            && let Some(failure) = &held.failure
        {
            return Err(failure.clone());
        }
        let asked = Instant::now();
        let deadline = asked + FETCH_TIMEOUT;
        let fetched = match timeout_at(deadline, self.fetch(deadline)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(self.late()),
        };
        self.ended.fetch_add(1, Ordering::Release);
        match fetched {
            Ok(token) => {
                let header = token.header.clone();
                *held = Held {
                    token: Some((token, asked)),
                    failure: None,
                };
                Ok(header)
            }
            Err(failure) => {
                *held = Held {
                    token: None,
                    failure: Some(failure.clone()),
                };
                Err(failure)
            }
        }
    }

    /// Uses this token no more, unless another one took its place already.
    pub(super) async fn forget(&self, header: &HeaderValue) {
        let mut held = self.held.lock().await;
        if held
            .token
            .as_ref()
            .is_some_and(|(token, _)| token.header == *header)
        {
            held.token = None;
        }
    }

    async fn fetch(&self, deadline: Instant) -> Result<Token, NoToken> {
        self.guard
            .check_literal(&self.config.token_url)
            .map_err(|denied| self.failed(FailureClass::BlockedAddress, denied))?;
        let response = self.client.execute(self.request(), deadline).await;
        let response = response.map_err(|error| match error {
            NoAnswer::Late(_) => self.late(),
            NoAnswer::Failed(error) => match outcome_of_error(&self.host, &error).failure() {
                Some(failure) => self.failed(failure.class, &failure.reason),
                None => self.failed(FailureClass::Connect, "no answer"),
            },
        })?;
        let status = response.status();
        let body = read(response).await;
        let body = body.map_err(|why| self.failed(FailureClass::Protocol, why))?;
        if !status.is_success() {
            let code = status.as_u16();
            let why = match error_of(&body) {
                Some(error) => format!("it answered {code} {error}"),
                None => format!("it answered {code}"),
            };
            return Err(self.failed(class_of_refusal(code), why));
        }
        token_of(&body).map_err(|why| self.failed(FailureClass::Protocol, why))
    }

    fn request(&self) -> Request {
        let config = &self.config;
        let (id, secret) = (config.client_id.as_str(), config.client_secret.expose());
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        if let Some(scope) = &config.scope {
            form.append_pair("scope", scope);
        }
        form.extend_pairs(&config.parameters);
        if config.authentication == ClientAuthentication::Body {
            form.append_pair("client_id", id)
                .append_pair("client_secret", secret);
        }
        let mut request = Request::new(Method::POST, config.token_url.clone());
        *request.body_mut() = Some(form.finish().into());
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(CONTENT_TYPE, form_type);
        if config.authentication == ClientAuthentication::Basic {
            // Both are form-encoded before they are joined (section 2.3.1), so a colon joins only once.
            let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            let joined = format!("{}:{}", encoded(id), encoded(secret));
            let value = format!("Basic {}", STANDARD.encode(joined));
            if let Ok(mut value) = HeaderValue::from_str(&value) {
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
        }
        request
    }

    fn late(&self) -> NoToken {
        let why = format!("no answer within {FETCH_TIMEOUT:?}");
        self.failed(FailureClass::Timeout, why)
    }

    fn failed(&self, class: FailureClass, why: impl ToString) -> NoToken {
        NoToken {
            host: self.host.clone(),
            class,
            why: why.to_string(),
        }
    }
}

/// Whatever a server refuses a token with, it is our credentials that it does not take; unless it cannot serve.
fn class_of_refusal(code: u16) -> FailureClass {
    match meaning_of_status(code, false).1 {
        class @ (FailureClass::Throttled | FailureClass::Unavailable | FailureClass::Timeout) => {
            class
        }
        FailureClass::Redirected => FailureClass::Redirected,
        _ => FailureClass::Auth,
    }
}

async fn read(mut response: Response) -> Result<Vec<u8>, &'static str> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= ANSWER_BYTES_MAX => {
                body.extend_from_slice(&chunk);
            }
            Ok(Some(_)) => return Err("its answer is longer than 64 KiB"),
            Ok(None) => return Ok(body),
            Err(_) => return Err("its answer broke off"),
        }
    }
}
