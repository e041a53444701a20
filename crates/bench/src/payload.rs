//! The events that every server gets: 1 KiB of JSON each, from a fixed seed, so that two runs differ
//! in nothing but the server.

/// Bytes of data of one event.
pub const DATA_BYTES: usize = 1024;

/// Ordering keys in use: many enough that lanes seldom wait, few enough that keys repeat.
pub const KEYS: u64 = 10_000;

/// Distinct bodies in use: more would only measure the generator's own cache misses.
pub const BODIES: usize = 256;

const WORDS: [&str; 16] = [
    "pallet",
    "carrier",
    "picked",
    "shipment",
    "customs",
    "delayed",
    "warehouse",
    "order",
    "parcel",
    "returned",
    "invoice",
    "confirmed",
    "loading",
    "driver",
    "container",
    "scanned",
];

/// The ordering key of this number, as every load writes it.
pub fn key(number: u64) -> String {
    format!("key-{number:05}")
}

/// `BODIES` JSON objects of exactly `DATA_BYTES` bytes.
pub fn bodies() -> Vec<String> {
    let mut random = SplitMix(0x5EED);
    (0..BODIES).map(|_| body(&mut random)).collect()
}

fn body(random: &mut SplitMix) -> String {
    let order = random.next() % 1_000_000;
    let lines: Vec<_> = (0..4).map(|_| line(random)).collect();
    let mut text = format!(
        r#"{{"order":{order},"lines":[{}],"note":""#,
        lines.join(",")
    );
    const END: &str = r#""}"#;
    while text.len() + END.len() < DATA_BYTES {
        let word = usize::try_from(random.next() % 16).unwrap_or_default();
        text += WORDS.get(word).copied().unwrap_or_default();
        text.push(' ');
    }
    text.truncate(DATA_BYTES - END.len());
    text + END
}

fn line(random: &mut SplitMix) -> String {
    let (sku, quantity, cents) = (
        random.next(),
        random.next() % 90 + 10,
        random.next() % 90_000 + 10_000,
    );
    format!(r#"{{"sku":"{sku:016x}","quantity":{quantity},"cents":{cents}}}"#)
}

/// SplitMix64: a full-period generator in three lines (Steele, Lea and Flood, 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_body_is_json_of_one_kibibyte() {
        for body in bodies() {
            assert_eq!(body.len(), DATA_BYTES);
            assert!(
                serde_json::from_str::<serde_json::Value>(&body).is_ok(),
                "{body}"
            );
        }
    }
}
