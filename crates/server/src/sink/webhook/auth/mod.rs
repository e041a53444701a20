//! How a destination knows who asks: a fixed header, or a token that an authorization server gives for a
//! while. A client certificate belongs to the connection and is given to the client where that is built.

pub mod config;

mod oauth2;
mod token;

#[cfg(test)]
mod real;

use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use self::config::{AuthConfig, Credential};
pub(super) use self::oauth2::NoToken;
use self::oauth2::Tokens;
use super::client::Names;
use crate::sink::BuildError;

/// Gives requests their credential.
pub(super) enum Auth {
    /// Nobody asks for one, or the connection has it.
    None,
    /// The same for every request.
    Fixed(HeaderName, HeaderValue),
    /// A token, fetched when it is needed.
    Token(Box<Tokens>),
}

impl Auth {
    /// What was configured. It reaches nothing yet.
    ///
    /// # Errors
    /// When a client for the authorization server cannot be built.
    pub(super) fn start(
        config: &AuthConfig,
        allow_networks: &[ipnet::IpNet],
        names: &Arc<dyn Names>,
    ) -> Result<Self, BuildError> {
        Ok(match &config.credential {
            Credential::None => Self::None,
            Credential::Header { name, value } => Self::Fixed(name.clone(), value.clone()),
            Credential::OAuth2(config) => {
                let names = Arc::clone(names);
                let tokens = Tokens::start(config.clone(), allow_networks, names)?;
                Self::Token(Box::new(tokens))
            }
        })
    }

    /// Puts the credential into a request's headers.
    ///
    /// # Errors
    /// When a token is needed and there is none by `deadline`: then nothing can be sent.
    pub(super) async fn apply(
        &self,
        headers: &mut HeaderMap,
        deadline: Instant,
    ) -> Result<(), NoToken> {
        match self {
            Self::None => {}
            Self::Fixed(name, value) => {
                headers.insert(name, value.clone());
            }
            Self::Token(tokens) => {
                let value = tokens.get(deadline).await?;
                headers.insert(AUTHORIZATION, value);
            }
        }
        Ok(())
    }

    /// Whether there may be another credential once this one is not accepted.
    pub(super) fn is_renewable(&self) -> bool {
        matches!(self, Self::Token(_))
    }

    /// Takes note that the credential in these headers was not accepted (401).
    pub(super) async fn refused(&self, headers: &HeaderMap) {
        if let (Self::Token(tokens), Some(value)) = (self, headers.get(AUTHORIZATION)) {
            tokens.forget(value).await;
        }
    }
}
