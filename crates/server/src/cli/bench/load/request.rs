//! Requests prepared beforehand: what differs from one to the next is numbers of fixed width, written
//! over the last ones in place, so that making load costs little beside taking it.

use std::net::SocketAddr;

/// Bytes of data of one event.
pub const DATA_BYTES: usize = 1024;

/// Ordering keys in use: many enough that lanes seldom wait, few enough that keys repeat.
const KEYS: u64 = 10_000;

/// Stands for the number of an event until one is written; occurs nowhere else in a request.
const NUMBER: &str = "############";

/// Stands for the number of a key.
const KEY: &str = "@@@@@";

const WORDS: [&str; 12] = [
    "pallet", "carrier", "picked", "shipment", "customs", "delayed", "order", "parcel", "returned",
    "invoice", "loading", "scanned",
];

/// The one request of a caller, with other numbers each time.
#[derive(Debug)]
pub struct Request {
    bytes: Vec<u8>,
    /// Where the number and the key of each event stand.
    slots: Vec<(usize, usize)>,
}

impl Request {
    /// A request of `batch` events to `target`: one in binary mode, several as NDJSON.
    pub fn new(target: SocketAddr, batch: usize, caller: usize) -> Self {
        let text = if batch == 1 {
            let body = data(caller);
            format!(
                "POST /v1/events HTTP/1.1\r\nhost: {target}\r\ncontent-type: application/json\r\n\
                 ce-specversion: 1.0\r\nce-id: bench-{NUMBER}\r\nce-source: /bench\r\n\
                 ce-type: com.example.shipment.scanned\r\nce-time: 2026-01-01T00:00:00Z\r\n\
                 ce-partitionkey: key-{KEY}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        } else {
            let body: String = (0..batch).map(|at| line(caller + at)).collect();
            format!(
                "POST /v1/events HTTP/1.1\r\nhost: {target}\r\ncontent-type: application/x-ndjson\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let numbers = text.match_indices(NUMBER).map(|(at, _)| at);
        let keys = text.match_indices(KEY).map(|(at, _)| at);
        Self {
            slots: numbers.zip(keys).collect(),
            bytes: text.into_bytes(),
        }
    }

    /// The request with events of the numbers from `first` on.
    pub fn numbered(&mut self, first: u64) -> &[u8] {
        for (number, &(number_at, key_at)) in (first..).zip(&self.slots) {
            write_digits(&mut self.bytes, number_at, NUMBER.len(), number);
            write_digits(&mut self.bytes, key_at, KEY.len(), number % KEYS);
        }
        &self.bytes
    }
}

fn line(seed: usize) -> String {
    let data = data(seed);
    format!(
        "{{\"specversion\":\"1.0\",\"id\":\"bench-{NUMBER}\",\"source\":\"/bench\",\
         \"type\":\"com.example.shipment.scanned\",\"time\":\"2026-01-01T00:00:00Z\",\
         \"partitionkey\":\"key-{KEY}\",\"datacontenttype\":\"application/json\",\"data\":{data}}}\n"
    )
}

/// A JSON object of exactly `DATA_BYTES` bytes.
pub fn data(seed: usize) -> String {
    let mut data = "{\"note\":\"".to_owned();
    let end = "\"}";
    let mut at = seed;
    while data.len() < DATA_BYTES {
        data.push_str(WORDS.get(at % WORDS.len()).unwrap_or(&"order"));
        data.push(' ');
        at = at.wrapping_mul(31).wrapping_add(7);
    }
    data.truncate(DATA_BYTES - end.len());
    data.push_str(end);
    data
}

fn write_digits(bytes: &mut [u8], at: usize, digits: usize, mut number: u64) {
    let slot = bytes.get_mut(at..at + digits).unwrap_or_default();
    for digit in slot.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_ids_of_its_own_and_the_length_it_states() {
        for batch in [1, 3, 100] {
            let mut request = Request::new(([127, 0, 0, 1], 80).into(), batch, 5);
            for first in [0, 123_456] {
                let text = String::from_utf8(request.numbered(first).to_vec()).unwrap();
                assert!(!text.contains('#') && !text.contains('@'));
                let (head, body) = text.split_once("\r\n\r\n").unwrap();
                assert!(head.ends_with(&format!("content-length: {}", body.len())));
                for number in first..first + batch as u64 {
                    let id = format!("bench-{number:012}");
                    assert_eq!(text.matches(&id).count(), 1, "{id}");
                }
            }
        }
    }

    #[test]
    fn data_is_json_of_the_stated_size() {
        for seed in 0..50 {
            let data = data(seed);
            assert_eq!(data.len(), DATA_BYTES);
            assert!(
                serde_json::from_str::<serde_json::Value>(&data).is_ok(),
                "{data}"
            );
        }
    }
}
