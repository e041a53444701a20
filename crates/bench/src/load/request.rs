//! Requests prepared beforehand: what differs from one to the next is a number of fixed width,
//! written over the last one in place.

use std::net::SocketAddr;

use crate::payload;

/// The kind of every command.
pub const COMMAND_KIND: &str = "po_create";

/// Digits of the number that makes an id unique.
const NUMBER_DIGITS: usize = 12;
/// Digits of a key.
const KEY_DIGITS: usize = 5;
/// Stands for a number until the first is written; occurs nowhere else in a request.
const NUMBER: &str = "############";
const KEY: &str = "@@@@@";

/// An endless supply of requests with unique ids.
pub struct Requests {
    templates: Vec<Template>,
    next: usize,
    number: u64,
    keys: u64,
    batch: usize,
}

struct Template {
    bytes: Vec<u8>,
    /// Where the number and the key of each event stand.
    slots: Vec<(usize, usize)>,
}

impl Requests {
    /// Requests of `batch` events each, to `target`, with ids that begin with `prefix` and this many
    /// ordering keys.
    pub fn new(target: SocketAddr, (batch, keys): (usize, u64), prefix: &str) -> Self {
        let bodies = payload::bodies();
        let templates = if batch == 1 {
            bodies
                .iter()
                .map(|body| Template::new(&single(target, prefix, body)))
                .collect()
        } else {
            // One hundred events of a kibibyte are as much as all single templates: a few suffice.
            bodies
                .chunks(batch.min(bodies.len()))
                .map(|chunk| Template::new(&lines(target, prefix, chunk, batch)))
                .collect()
        };
        Self {
            templates,
            next: 0,
            number: 0,
            keys: keys.max(1),
            batch,
        }
    }

    /// Proposals of one command each, to `target`, under idempotency keys that begin with `prefix`.
    pub fn commands(target: SocketAddr, keys: u64, prefix: &str) -> Self {
        let bodies = payload::bodies();
        let templates = bodies.iter().map(|body| command(target, prefix, body));
        Self {
            templates: templates.map(|text| Template::new(&text)).collect(),
            next: 0,
            number: 0,
            keys: keys.max(1),
            batch: 1,
        }
    }

    /// Events in one request.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Prepares the next request.
    pub fn prepare(&mut self) -> &[u8] {
        self.next = (self.next + 1) % self.templates.len();
        let Some(template) = self.templates.get_mut(self.next) else {
            return &[];
        };
        for &(number_at, key_at) in &template.slots {
            self.number += 1;
            write_digits(&mut template.bytes, number_at, NUMBER_DIGITS, self.number);
            write_digits(
                &mut template.bytes,
                key_at,
                KEY_DIGITS,
                self.number % self.keys,
            );
        }
        &template.bytes
    }
}

fn single(target: SocketAddr, prefix: &str, body: &str) -> String {
    format!(
        "POST /v1/events HTTP/1.1\r\nhost: {target}\r\ncontent-type: application/json\r\n\
         ce-specversion: 1.0\r\nce-id: {prefix}-{NUMBER}\r\nce-source: /bench\r\n\
         ce-type: com.example.shipment.scanned\r\nce-time: 2026-01-01T00:00:00Z\r\n\
         ce-partitionkey: key-{KEY}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn command(target: SocketAddr, prefix: &str, arguments: &str) -> String {
    let body = format!(
        "{{\"kind\":\"{COMMAND_KIND}\",\"correlation_id\":\"key-{KEY}\",\"arguments\":{arguments}}}"
    );
    format!(
        "POST /v1/commands HTTP/1.1\r\nhost: {target}\r\ncontent-type: application/json\r\n\
         idempotency-key: {prefix}-{NUMBER}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn lines(target: SocketAddr, prefix: &str, bodies: &[String], batch: usize) -> String {
    let body: String = bodies
        .iter()
        .cycle()
        .take(batch)
        .map(|data| {
            format!(
                "{{\"specversion\":\"1.0\",\"id\":\"{prefix}-{NUMBER}\",\"source\":\"/bench\",\
                 \"type\":\"com.example.shipment.scanned\",\"time\":\"2026-01-01T00:00:00Z\",\
                 \"partitionkey\":\"key-{KEY}\",\"datacontenttype\":\"application/json\",\
                 \"data\":{data}}}\n"
            )
        })
        .collect();
    format!(
        "POST /v1/events HTTP/1.1\r\nhost: {target}\r\ncontent-type: application/x-ndjson\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

impl Template {
    fn new(text: &str) -> Self {
        let numbers = text.match_indices(NUMBER).map(|(at, _)| at);
        let keys = text.match_indices(KEY).map(|(at, _)| at);
        Self {
            slots: numbers.zip(keys).collect(),
            bytes: text.as_bytes().to_vec(),
        }
    }
}

fn write_digits(bytes: &mut [u8], at: usize, digits: usize, mut number: u64) {
    let Some(slot) = bytes.get_mut(at..at + digits) else {
        return;
    };
    for digit in slot.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(requests: &mut Requests) -> String {
        String::from_utf8(requests.prepare().to_vec()).unwrap()
    }

    #[test]
    fn every_proposal_has_a_key_of_its_own_and_the_length_it_states() {
        let mut requests = Requests::commands(([127, 0, 0, 1], 80).into(), 10, "t");
        let mut keys = std::collections::HashSet::new();
        for _ in 0..600 {
            let request = text(&mut requests);
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}", body.len())));
            assert!(
                serde_json::from_str::<serde_json::Value>(body).is_ok(),
                "{body}"
            );
            let (_, key) = head.split_once("idempotency-key: ").unwrap();
            assert!(keys.insert(key.lines().next().unwrap().to_owned()));
        }
    }

    #[test]
    fn every_request_has_ids_of_its_own_and_the_length_it_states() {
        for batch in [1, 100] {
            let mut requests = Requests::new(([127, 0, 0, 1], 80).into(), (batch, 10), "t");
            let mut ids = std::collections::HashSet::new();
            for _ in 0..600 {
                let request = text(&mut requests);
                assert!(!request.contains('#') && !request.contains('@'));
                let (head, body) = request.split_once("\r\n\r\n").unwrap();
                assert!(head.contains(&format!("content-length: {}", body.len())));
                let marks: Vec<_> = request.match_indices("t-0").map(|(at, _)| at).collect();
                assert_eq!(marks.len(), batch);
                for at in marks {
                    assert!(
                        ids.insert(request.get(at..at + 2 + NUMBER_DIGITS).unwrap().to_owned())
                    );
                }
            }
        }
    }
}
