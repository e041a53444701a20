//! One signing key, as Standard Webhooks writes it: `whsec_` and base64 of a shared secret (`v1`,
//! HMAC-SHA256), or `whsk_` and base64 of an Ed25519 private key (`v1a`), whose public half the receiver has.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use ed25519_dalek::{SECRET_KEY_LENGTH, Signer as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use thiserror::Error;

/// Shortest shared secret, in bytes: the least that Standard Webhooks allows.
const SECRET_BYTES_MIN: usize = 24;

/// Longest shared secret, in bytes: the most that Standard Webhooks allows, and a block of SHA-256.
const SECRET_BYTES_MAX: usize = 64;

/// Keys are copied by hand, and some tools leave the padding out. The alphabet is that of the standard.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A key that signs requests. Its `Debug` shows which kind it is and nothing else.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey(Kind);

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Shared(Box<[u8]>),
    Private(Box<ed25519_dalek::SigningKey>),
}

/// A text that is no signing key. It never holds any of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidKey {
    /// Neither of the prefixes.
    #[error("expected whsec_ or whsk_ followed by base64")]
    Prefix,
    /// Not base64.
    #[error("expected base64 of the standard alphabet after whsec_ or whsk_")]
    Base64,
    /// Too short to be safe, or longer than receivers take.
    #[error(
        "expected {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in base64 after whsec_, not {0}; \
         32 random ones are good"
    )]
    SharedLength(usize),
    /// Not the length of an Ed25519 key.
    #[error("expected 32 bytes in base64 after whsk_ (or 64, with the public key behind), not {0}")]
    PrivateLength(usize),
    /// The private and the public half do not belong together.
    #[error("expected the last 32 bytes after whsk_ to be the public key of the first 32")]
    Mismatch,
    /// The half that receivers have.
    #[error(
        "expected a private key (whsk_), not a public one; the public key goes to the receiver"
    )]
    Public,
}

impl SigningKey {
    /// The signature over `head` and then `body`, with the version of its scheme: `v1,...` or `v1a,...`.
    pub(super) fn sign(&self, head: &str, body: &[u8]) -> String {
        match &self.0 {
            Kind::Shared(secret) => {
                let mut mac =
                    Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
                mac.update(head.as_bytes());
                mac.update(body);
                format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
            }
            Kind::Private(key) => {
                // Ed25519 goes over the message twice and wants it in one piece.
                let message = [head.as_bytes(), body].concat();
                format!("v1a,{}", STANDARD.encode(key.sign(&message).to_bytes()))
            }
        }
    }
}

impl FromStr for SigningKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let decoded = |text: &str| LENIENT.decode(text).map_err(|_| InvalidKey::Base64);
        if let Some(text) = text.strip_prefix("whsec_") {
            return shared(decoded(text)?);
        }
        if let Some(text) = text.strip_prefix("whsk_") {
            return private(&decoded(text)?);
        }
        Err(if text.starts_with("whpk_") {
            InvalidKey::Public
        } else {
            InvalidKey::Prefix
        })
    }
}

fn shared(secret: Vec<u8>) -> Result<SigningKey, InvalidKey> {
    if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
        return Err(InvalidKey::SharedLength(secret.len()));
    }
    Ok(SigningKey(Kind::Shared(secret.into())))
}

/// Other tools write the public key behind the private one; it must belong to it, since a signature
/// made with another gives the private key away.
fn private(bytes: &[u8]) -> Result<SigningKey, InvalidKey> {
    let wrong_length = InvalidKey::PrivateLength(bytes.len());
    let (seed, public) = bytes
        .split_first_chunk::<SECRET_KEY_LENGTH>()
        .ok_or(wrong_length)?;
    let key = ed25519_dalek::SigningKey::from_bytes(seed);
    match public.len() {
        0 => {}
        SECRET_KEY_LENGTH if public == key.verifying_key().as_bytes() => {}
        SECRET_KEY_LENGTH => return Err(InvalidKey::Mismatch),
        _ => return Err(wrong_length),
    }
    Ok(SigningKey(Kind::Private(Box::new(key))))
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Shared(_) => "whsec_[redacted]",
            Kind::Private(_) => "whsk_[redacted]",
        })
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE};

    use super::*;

    fn parse(text: &str) -> Result<SigningKey, InvalidKey> {
        text.parse()
    }

    #[test]
    fn shared_secrets_have_24_to_64_bytes_with_or_without_padding() {
        for length in [0, 1, 16, 23, 24, 25, 32, 63, 64, 65, 128] {
            let bytes = vec![0xfb; length];
            let padded = parse(&format!("whsec_{}", STANDARD.encode(&bytes)));
            let bare = parse(&format!("whsec_{}", STANDARD_NO_PAD.encode(&bytes)));
            assert_eq!(padded, bare, "{length}");
            let expected = if (24..=64).contains(&length) {
                Ok(())
            } else {
                Err(InvalidKey::SharedLength(length))
            };
            assert_eq!(padded.map(drop), expected, "{length}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused_with_words_that_hold_none_of_it() {
        let good = STANDARD.encode([0xfb; 32]);
        for (text, expected) in [
            (String::new(), InvalidKey::Prefix),
            ("hunter2".to_owned(), InvalidKey::Prefix),
            (good.clone(), InvalidKey::Prefix),
            (format!("WHSEC_{good}"), InvalidKey::Prefix),
            (format!(" whsec_{good}"), InvalidKey::Prefix),
            (format!("whsec_{good} "), InvalidKey::Base64),
            (format!("whsec_{good}\n"), InvalidKey::Base64),
            (format!("whsec_ {good}"), InvalidKey::Base64),
            (
                format!("whsec_{}", URL_SAFE.encode([0xfb; 32])),
                InvalidKey::Base64,
            ),
            ("whsec_hunter2!".to_owned(), InvalidKey::Base64),
            (format!("whpk_{good}"), InvalidKey::Public),
            (
                format!("whsk_{}", STANDARD.encode([1; 31])),
                InvalidKey::PrivateLength(31),
            ),
            (
                format!("whsk_{}", STANDARD.encode([1; 48])),
                InvalidKey::PrivateLength(48),
            ),
            (
                format!("whsk_{}", STANDARD.encode([1; 65])),
                InvalidKey::PrivateLength(65),
            ),
            (
                format!("whsk_{}", STANDARD.encode([1; 64])),
                InvalidKey::Mismatch,
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert_eq!(error, expected, "{text:?}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }

    #[test]
    fn a_private_key_may_have_its_public_key_behind_it() {
        let seed: Vec<u8> = (0..32).collect();
        let public = STANDARD
            .decode("A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=")
            .unwrap();
        let alone = parse(&format!("whsk_{}", STANDARD.encode(&seed))).unwrap();
        let both = parse(&format!(
            "whsk_{}",
            STANDARD.encode([seed, public].concat())
        ));
        assert_eq!(both.unwrap(), alone);
    }

    #[test]
    fn a_key_shows_its_kind_alone() {
        let shared = parse(&format!("whsec_{}", STANDARD.encode([7; 32]))).unwrap();
        let private = parse(&format!("whsk_{}", STANDARD.encode([7; 32]))).unwrap();
        assert_eq!(
            format!("{shared:?} {private:?}"),
            "whsec_[redacted] whsk_[redacted]"
        );
    }
}
