//! The one question that every route asks: who is this, and may they? Answers come from the catalogue;
//! what was proven is remembered until the catalogue changes, so a revoked token ends at once.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use http::request::Parts;
use http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;
use wayhold_model::Clock;
use wayhold_store::catalog::{Catalog, CatalogError, TokenRecord};

use super::Peer;
use super::failures::Failures;
use super::principal::{Principal, Role};
use super::token::{self, CreateError, Created, Hasher};
use crate::http::{Problem, ProblemType};

/// Whether tokens are asked for at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Openness {
    /// As the catalogue says: from the first token on, everybody needs one.
    Guarded,
    /// Never, on no listener; the operator said so with a flag.
    Open,
}

/// Most tokens remembered as proven. A server has a handful; beyond this they are proven anew.
const PROVEN_MAX: usize = 1024;

/// Decides who may do what. A cheap handle.
#[derive(Clone)]
pub struct Auth(Arc<Inner>);

struct Inner {
    catalog: Arc<Catalog>,
    openness: Openness,
    clock: Arc<dyn Clock>,
    hasher: Hasher,
    failures: Failures,
    proven: RwLock<Proven>,
    local: Arc<Principal>,
    anonymous: Arc<Principal>,
}

/// What was proven while the catalogue had this version, by hash of the token.
#[derive(Default)]
struct Proven {
    version: u64,
    principals: HashMap<[u8; 32], Arc<Principal>>,
}

impl Auth {
    /// Decides by the tokens of `catalog`.
    pub fn new(catalog: Arc<Catalog>, openness: Openness, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            hasher: Hasher::new(catalog.token_key()),
            catalog,
            openness,
            clock,
            failures: Failures::default(),
            proven: RwLock::default(),
            local: Arc::new(Principal::local()),
            anonymous: Arc::new(Principal::anonymous()),
        }))
    }

    /// Whether tokens are asked for at all.
    pub fn openness(&self) -> Openness {
        self.0.openness
    }

    /// Who sends this request, if they may do what `role` stands for.
    ///
    /// # Errors
    /// The answer to give instead.
    pub fn authorise(
        &self,
        parts: &Parts,
        peer: &Peer,
        role: Role,
    ) -> Result<Arc<Principal>, Problem> {
        let principal = self.authenticate(parts, peer)?;
        if principal.has(role) {
            return Ok(principal);
        }
        let detail = format!("{} lacks the role {}", principal.name, role.name());
        Err(Problem::new(ProblemType::Forbidden, detail).with("role", role.name()))
    }

    /// Who sends this request.
    ///
    /// # Errors
    /// The answer to give instead.
    pub fn authenticate(&self, parts: &Parts, peer: &Peer) -> Result<Arc<Principal>, Problem> {
        if self.0.openness == Openness::Open {
            return Ok(Arc::clone(&self.0.anonymous));
        }
        if has_token_in_query(parts.uri.query().unwrap_or_default()) {
            let detail = "tokens belong in the Authorization header, where no log shows them";
            return Err(Problem::new(ProblemType::InvalidRequest, detail));
        }
        if !self.0.catalog.has_tokens() && peer.local {
            return match foreign(&parts.headers) {
                None => Ok(Arc::clone(&self.0.local)),
                Some(detail) => Err(Problem::new(ProblemType::Forbidden, detail)),
            };
        }
        let Some(token) = bearer(&parts.headers) else {
            let detail = "expected Authorization: Bearer wh_...";
            return Err(Problem::new(ProblemType::Unauthenticated, detail));
        };
        self.prove(token).ok_or_else(|| self.failed(peer))
    }

    /// Makes a token. Blocking.
    ///
    /// # Errors
    /// When it could not be made or recorded.
    pub fn create(&self, principal: &Principal, by: &str) -> Result<Created, CreateError> {
        token::create(&self.0.catalog, &self.0.hasher, principal, by)
    }

    /// Revokes the token of that public prefix; requests that come later are refused. Blocking.
    ///
    /// # Errors
    /// When there is none, or the change could not be recorded.
    pub fn revoke(&self, prefix: &str, by: &str) -> Result<TokenRecord, CatalogError> {
        self.0.catalog.revoke_token(prefix, by)
    }

    fn prove(&self, token: &str) -> Option<Arc<Principal>> {
        let (prefix, hash) = self.0.hasher.hash(token)?;
        // Read before the token: a change between the two only makes the memory stale at once.
        let version = self.0.catalog.version();
        let proven = self.0.proven.read().unwrap_or_else(PoisonError::into_inner);
        if proven.version == version
            && let Some(principal) = proven.principals.get(&hash)
        {
            return Some(Arc::clone(principal));
        }
        drop(proven);
        let record = self.0.catalog.token(prefix)?;
        let matches = bool::from(record.hash.ct_eq(&hash));
        if !matches || record.revoked_at.is_some() {
            return None;
        }
        let principal = Arc::new(Principal::of_token(record));
        let mut proven = self
            .0
            .proven
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if proven.version != version || proven.principals.len() >= PROVEN_MAX {
            *proven = Proven {
                version,
                principals: HashMap::new(),
            };
        }
        proven.principals.insert(hash, Arc::clone(&principal));
        Some(principal)
    }

    fn failed(&self, peer: &Peer) -> Problem {
        match self.0.failures.count(peer.address, self.0.clock.now()) {
            None => Problem::new(ProblemType::Unauthenticated, "the token is not known"),
            Some(wait) => {
                let detail = "too many unknown tokens from this address";
                Problem::new(ProblemType::TooManyFailures, detail).with_retry_after(wait)
            }
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

fn has_token_in_query(query: &str) -> bool {
    query.split('&').any(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        ["access_token", "token", "authorization"]
            .iter()
            .any(|word| name.eq_ignore_ascii_case(word))
    })
}

/// Why a request without a token seems to come from a web page rather than from this machine's user:
/// browsers let any page post to loopback addresses, under a name of the page's choosing.
fn foreign(headers: &HeaderMap) -> Option<&'static str> {
    let host = headers
        .get(header::HOST)
        .map(|host| host.to_str().unwrap_or_default());
    if let Some(host) = host
        && !is_this_machine(host)
    {
        return Some("without a token the Host must be localhost or an address; make a token");
    }
    let origin = headers.get(header::ORIGIN)?.to_str().unwrap_or_default();
    let same = origin.split_once("://").map(|(_, authority)| authority) == host;
    (!same).then_some("without a token, requests from other web pages are refused; make a token")
}

fn is_this_machine(host: &str) -> bool {
    let without_port = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = without_port.trim_start_matches('[').trim_end_matches(']');
    name.is_empty()
        || name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok()
}
