//! What an approval is bound to: the one hash of what a command does.

use sha2::{Digest, Sha256};

use crate::ledger::canonical;

/// SHA-256 over the canonical JSON of `{"args", "destination", "kind", "kind_version"}`; `arguments` is canonical
/// already. Whoever changes one byte of what is done has another digest.
pub fn digest(kind: &str, kind_version: &str, destination: &str, arguments: &str) -> [u8; 32] {
    let mut text = Vec::with_capacity(arguments.len() + 128);
    text.extend_from_slice(b"{\"args\":");
    text.extend_from_slice(arguments.as_bytes());
    for (name, value) in [
        ("destination", destination),
        ("kind", kind),
        ("kind_version", kind_version),
    ] {
        text.push(b',');
        canonical::write_text(&mut text, name);
        text.push(b':');
        canonical::write_text(&mut text, value);
    }
    text.push(b'}');
    Sha256::digest(&text).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_the_hash_of_the_canonical_whole() {
        let arguments = json!({"sku": "880004", "qty": 12, "price": 1.5, "note": "\u{e4}\"\n"});
        let whole = json!({
            "kind": "po_create", "kind_version": "1", "destination": "erp", "args": arguments,
        });
        let whole = canonical::of_foreign(&whole).unwrap();
        let arguments = String::from_utf8(canonical::of_foreign(&arguments).unwrap()).unwrap();
        let found = digest("po_create", "1", "erp", &arguments);
        assert_eq!(found, <[u8; 32]>::from(Sha256::digest(&whole)));
        for other in [
            digest("po_create", "2", "erp", &arguments),
            digest("po_create", "1", "wms", &arguments),
            digest("po_cancel", "1", "erp", &arguments),
            digest("po_create", "1", "erp", "{}"),
        ] {
            assert_ne!(found, other);
        }
    }
}
