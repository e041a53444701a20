//! The hashes of the tree, as RFC 6962 defines them: a leaf and an inner node begin with different
//! bytes, so that neither can be passed off as the other.

use std::fmt;
use std::str::FromStr;

use data_encoding::{BASE64, HEXLOWER};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// Bytes of a hash.
pub const HASH_BYTES: usize = 32;

/// A SHA-256. Shown as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub [u8; HASH_BYTES]);

/// A text that is no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a hash; expected {0}")]
pub struct InvalidHash(&'static str);

impl Hash {
    /// What stands for "no record before this one".
    pub const ZERO: Self = Self([0; HASH_BYTES]);

    /// SHA-256 of bytes, with nothing before them.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Hash of the tree without leaves.
    pub fn of_empty_tree() -> Self {
        Self::of(&[])
    }

    /// Hash of a leaf: SHA-256 of a zero byte and the record.
    pub fn of_leaf(record: &[u8]) -> Self {
        Self(
            Sha256::new()
                .chain_update([0])
                .chain_update(record)
                .finalize()
                .into(),
        )
    }

    /// Hash of an inner node: SHA-256 of a byte one and both children.
    pub fn of_node(left: &Self, right: &Self) -> Self {
        Self(
            Sha256::new()
                .chain_update([1])
                .chain_update(left.0)
                .chain_update(right.0)
                .finalize()
                .into(),
        )
    }

    /// From exactly 32 bytes.
    ///
    /// # Errors
    ///
    /// Another number of bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidHash> {
        bytes
            .try_into()
            .map(Self)
            .map_err(|_| InvalidHash("32 bytes"))
    }

    /// From base64 with padding, as signed texts hold it.
    ///
    /// # Errors
    ///
    /// Not base64, or not of 32 bytes.
    pub fn from_base64(text: &str) -> Result<Self, InvalidHash> {
        let expected = InvalidHash("base64 of 32 bytes");
        let bytes = BASE64.decode(text.as_bytes()).map_err(|_| expected)?;
        Self::from_bytes(&bytes).map_err(|_| expected)
    }

    /// Base64 with padding.
    pub fn to_base64(self) -> String {
        BASE64.encode(&self.0)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Hash {
    type Err = InvalidHash;

    /// Lower-case hexadecimal digits alone: a hash has one way to be written.
    fn from_str(text: &str) -> Result<Self, InvalidHash> {
        let expected = InvalidHash("64 lower-case hexadecimal digits");
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| expected)?;
        Self::from_bytes(&bytes).map_err(|_| expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_tree_has_the_hash_of_nothing() {
        assert_eq!(
            Hash::of_empty_tree().to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn a_hash_has_one_way_to_be_written() {
        let hash = Hash::of_leaf(b"");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(Hash::from_base64(&hash.to_base64()), Ok(hash));
        for text in [
            hash.to_string().to_uppercase(),
            hash.to_string() + "00",
            format!(" {hash}"),
            String::new(),
        ] {
            assert!(text.parse::<Hash>().is_err(), "{text}");
        }
        let unpadded = hash.to_base64().trim_end_matches('=').to_owned();
        assert!(Hash::from_base64(&unpadded).is_err());
    }
}
