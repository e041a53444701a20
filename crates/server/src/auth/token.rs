//! Tokens: `wh_<prefix>_<secret>`. The prefix (12 hexadecimal digits) is public and names the token;
//! the secret is 256 random bits in unpadded base64url. Stored is HMAC-SHA256 of the whole text under
//! the catalogue's key, so neither the database nor a backup of it opens anything.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;
use wayhold_model::admission::Fill;
use wayhold_store::catalog::{Catalog, CatalogError, NewToken, TokenRecord};

use super::Principal;

/// Bytes of the secret.
const SECRET_BYTES: usize = 32;

/// Bytes of the public prefix.
const PREFIX_BYTES: usize = 6;

/// Longest text that can be a token; longer ones are not even hashed.
const TOKEN_BYTES_MAX: usize = 128;

/// A token that was just made. Its text is shown once and kept nowhere.
pub struct Created {
    /// The whole token.
    pub token: String,
    /// What was stored of it.
    pub record: TokenRecord,
}

/// No token was made.
#[derive(Debug, Error)]
pub enum CreateError {
    /// The operating system gives no randomness; try again.
    #[error("the operating system gives no randomness")]
    Randomness,
    /// The catalogue refused or could not record it.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// Hashes tokens; holds the key schedule, so that a request costs one hash.
#[derive(Clone)]
pub(super) struct Hasher(Hmac<Sha256>);

impl Hasher {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self(Hmac::new_from_slice(key).expect("HMAC takes keys of any length"))
    }

    /// Public prefix and hash of a token; `None` where the text has not the form of one.
    pub(super) fn hash<'a>(&self, token: &'a str) -> Option<(&'a str, [u8; 32])> {
        let mut parts = token.splitn(3, '_');
        let (scheme, prefix, secret) = (parts.next()?, parts.next()?, parts.next()?);
        if scheme != "wh" || prefix.is_empty() || secret.is_empty() || token.len() > TOKEN_BYTES_MAX
        {
            return None;
        }
        let mut mac = self.0.clone();
        mac.update(token.as_bytes());
        Some((prefix, mac.finalize().into_bytes().into()))
    }
}

/// Makes a token for `principal`, recorded as made by `by`. Blocking.
pub(super) fn create(
    catalog: &Catalog,
    hasher: &Hasher,
    principal: &Principal,
    by: &str,
) -> Result<Created, CreateError> {
    let mut random = [0; SECRET_BYTES + PREFIX_BYTES];
    // A secret is drawn from the operating system itself: no seam for tests may weaken it.
    getrandom::fill(&mut random).map_err(|_unavailable| CreateError::Randomness)?;
    let (secret, prefix) = random.split_at(SECRET_BYTES);
    let prefix: String = prefix.iter().map(|byte| format!("{byte:02x}")).collect();
    let token = format!("wh_{prefix}_{}", URL_SAFE_NO_PAD.encode(secret));
    let (_, hash) = hasher.hash(&token).ok_or(CreateError::Randomness)?;
    let record = catalog.create_token(
        &NewToken {
            prefix,
            hash,
            principal: principal.to_record(),
            admit_until: Some(principal.admit_until).filter(|until| *until < Fill::FULL),
        },
        by,
    )?;
    Ok(Created { token, record })
}
