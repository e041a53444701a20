//! What a record holds in the place of a payload: a commitment that proves it, tells nothing of it, and
//! can no longer be linked to it once the salt is deleted. A bare digest of a phone number is found
//! by trying all numbers; one that is salted with 32 random bytes is not.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::hash::Hash;

/// Bytes of a salt.
pub const SALT_BYTES: usize = 32;

/// Random bytes that lie beside a payload and are deleted with it. Its `Debug` shows nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Salt(pub [u8; SALT_BYTES]);

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Salt([redacted])")
    }
}

/// HMAC-SHA256 of the payload's bytes with the salt as the key. A JSON payload is kept, and committed to, in
/// canonical form.
pub fn commit(salt: &Salt, payload: &[u8]) -> Hash {
    let mut mac = Hmac::<Sha256>::new_from_slice(&salt.0).expect("HMAC takes keys of any length");
    mac.update(payload);
    Hash(mac.finalize().into_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commitment_is_hmac_sha256_with_the_salt_as_the_key() {
        // Computed by `printf 'Hi There' | openssl dgst -sha256 -mac HMAC -macopt hexkey:0b..0b` (32 times 0b).
        assert_eq!(
            commit(&Salt([0x0b; 32]), b"Hi There").to_string(),
            "198a607eb44bfbc69903a0f1cf2bbdc5ba0aa3f3d9ae3c1c7a3b1696a0b68cf7"
        );
    }
}
