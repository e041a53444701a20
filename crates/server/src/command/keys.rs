//! Idempotency keys of proposals: whose, for what, and which of them are being answered.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

/// Longest key, in bytes, as the draft of the header suggests.
pub const KEY_BYTES_MAX: usize = 255;

/// A key as it is kept: with whom it came and of what request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// As it was sent, without quotes.
    pub text: String,
    /// SHA-256 of tenant, principal, method, route and key.
    pub scoped: [u8; 32],
    /// SHA-256 of the canonical body but for the arguments.
    pub rest: [u8; 32],
}

impl Key {
    /// The key in a header's value, bare or an RFC 8941 string in quotes, with the canonical body of its request but for
    /// the arguments. `None` for one that is none.
    pub fn of_header(value: &[u8], principal: &str, rest: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?.trim();
        let text = match text.strip_prefix('"') {
            Some(rest) => rest.strip_suffix('"')?,
            None => text,
        };
        let is_plain = text
            .bytes()
            .all(|byte| matches!(byte, 0x20..=0x7e) && byte != b'"');
        if !is_plain || !(1..=KEY_BYTES_MAX).contains(&text.len()) {
            return None;
        }
        let mut scoped = Sha256::new();
        // Tenant 0, as everywhere.
        for part in ["0", principal, "POST", "/v1/commands", text] {
            scoped.update(part.as_bytes());
            scoped.update([0]);
        }
        Some(Self {
            text: text.to_owned(),
            scoped: scoped.finalize().into(),
            rest: Sha256::digest(rest).into(),
        })
    }

    /// What stands for its request with these arguments, as canonical JSON.
    pub fn fingerprint(&self, arguments: &str) -> [u8; 32] {
        let mut fingerprint = Sha256::new_with_prefix(self.rest);
        fingerprint.update(arguments.as_bytes());
        fingerprint.finalize().into()
    }
}

/// Keys of requests that are being answered now.
#[derive(Clone, Debug, Default)]
pub struct KeysInUse(Arc<Mutex<HashSet<[u8; 32]>>>);

/// A key is in use as long as this lives.
#[derive(Debug)]
pub struct InUse {
    keys: KeysInUse,
    key: [u8; 32],
}

impl KeysInUse {
    /// Takes a key; `None` while another request has it.
    pub fn take(&self, key: [u8; 32]) -> Option<InUse> {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.insert(key).then(|| InUse {
            keys: self.clone(),
            key,
        })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut keys = self.keys.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_bare_and_in_quotes_and_another_ones_is_another() {
        let key =
            |value: &str, who| Key::of_header(value.as_bytes(), who, b"{}").map(|key| key.scoped);
        assert_eq!(key("\"a-1\"", "ada"), key(" a-1 ", "ada"));
        assert_ne!(key("a-1", "ada"), key("a-1", "bob"));
        assert_ne!(key("a-1", "ada"), key("a-2", "ada"));
        let of = |rest: &str, arguments| {
            let key = Key::of_header(b"a-1", "ada", rest.as_bytes());
            key.unwrap().fingerprint(arguments)
        };
        assert_eq!(of(r#"{"kind":"a"}"#, "{}"), of(r#"{"kind":"a"}"#, "{}"));
        assert_ne!(of(r#"{"kind":"a"}"#, "{}"), of(r#"{"kind":"b"}"#, "{}"));
        assert_ne!(
            of(r#"{"kind":"a"}"#, "{}"),
            of(r#"{"kind":"a"}"#, r#"{"a":1}"#)
        );
        for refused in ["", "\"\"", "\"open", "a\"b", "caf\u{e9}", &"x".repeat(256)] {
            assert_eq!(key(refused, "ada"), None, "{refused}");
        }
    }

    #[test]
    fn a_key_is_in_use_by_one_at_a_time() {
        let keys = KeysInUse::default();
        let first = keys.take([1; 32]).unwrap();
        assert!(keys.take([1; 32]).is_none());
        let _other = keys.take([2; 32]).unwrap();
        drop(first);
        assert!(keys.take([1; 32]).is_some());
    }
}
