//! What is produced: the CloudEvents Kafka binding in binary or structured mode.

use bytes::Bytes;
use rdkafka::message::{Header, OwnedHeaders};
use wayhold_model::{Event, StoredEvent};

use super::config::KafkaMode;
use crate::sink::Attempt;
use crate::sink::cloudevents::{STRUCTURED_CONTENT_TYPE, visit_attributes, write_structured};

/// The header that tells which replay a record belongs to.
const REPLAY_HEADER: &str = "wayhold_replay";

/// One record, without its topic.
pub(super) struct Record {
    /// The ordering key's bytes; without one the record goes to any partition.
    pub(super) key: Option<String>,
    /// Attributes, in UTF-8 as they are.
    pub(super) headers: OwnedHeaders,
    /// Never null, which would delete in a compacted topic: an event without data has an empty value.
    pub(super) value: Bytes,
    /// Milliseconds since the epoch.
    pub(super) timestamp: i64,
    /// Bytes of key, headers and value: what the client holds against `message.max.bytes`.
    pub(super) size: usize,
}

impl Record {
    /// The record of an attempt: that of its event, which says so where it is made for a replay.
    pub(super) fn of_attempt(attempt: &Attempt, mode: KafkaMode) -> Self {
        let mut record = Self::of(&attempt.event, mode);
        if let Some(replay) = attempt.replay {
            let mut headers = HeaderList {
                headers: record.headers,
                size: record.size,
            };
            headers.push(REPLAY_HEADER, &replay.to_string());
            record.headers = headers.headers;
            record.size = headers.size;
        }
        record
    }

    /// The record of this event.
    fn of(stored: &StoredEvent, mode: KafkaMode) -> Self {
        let event = &*stored.event;
        let mut headers = HeaderList::default();
        let value = match mode {
            KafkaMode::Binary => {
                let mut name_buffer = String::new();
                visit_attributes(event, |name, text| {
                    name_buffer.clear();
                    name_buffer.push_str("ce_");
                    name_buffer.push_str(name);
                    headers.push(&name_buffer, text);
                });
                if !event.content_type().is_empty() {
                    headers.push("content-type", event.content_type());
                }
                event.data().clone()
            }
            KafkaMode::Structured => {
                headers.push("content-type", STRUCTURED_CONTENT_TYPE);
                let mut value = Vec::with_capacity(event.size() + event.data().len() / 2 + 256);
                write_structured(event, &mut value);
                value.into()
            }
        };
        let key = event.key().map(str::to_owned);
        Self {
            size: key.as_ref().map_or(0, String::len) + headers.size + value.len(),
            key,
            headers: headers.headers,
            value,
            timestamp: timestamp_of(event, stored.accepted_at.as_micros()),
        }
    }
}

struct HeaderList {
    headers: OwnedHeaders,
    size: usize,
}

impl Default for HeaderList {
    fn default() -> Self {
        Self {
            headers: OwnedHeaders::new(),
            size: 0,
        }
    }
}

impl HeaderList {
    fn push(&mut self, name: &str, value: &str) {
        self.size += name.len() + value.len();
        let headers = std::mem::take(&mut self.headers);
        self.headers = headers.insert(Header {
            key: name,
            value: Some(value),
        });
    }
}

/// The event's own time where it has one that lies between 1970 and its acceptance, else its
/// acceptance: brokers refuse records from the future.
fn timestamp_of(event: &Event, accepted_micros: u64) -> i64 {
    let accepted = i64::try_from(accepted_micros / 1000).unwrap_or(i64::MAX);
    match event.time().parse::<jiff::Timestamp>() {
        Ok(time) if (0..=accepted).contains(&time.as_millisecond()) => time.as_millisecond(),
        Ok(_) | Err(_) => accepted,
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Headers as _;
    use wayhold_model::EventParts;

    use super::*;
    use crate::sink::contract::stored;

    fn parts() -> EventParts<'static> {
        EventParts {
            id: "C234",
            source: "/mycontext",
            kind: "com.example.someevent",
            subject: "Euro € 😀",
            time: "2018-04-05T17:31:00Z",
            key: "k1",
            content_type: "text/xml",
            extensions: r#"{"comexampleother":5}"#,
            data: Bytes::from_static(b"<a/>"),
            ..EventParts::default()
        }
    }

    fn headers_of(record: &Record) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let headers = record.headers.iter();
        headers
            .map(|h| (h.key.to_owned(), text(h.value.unwrap())))
            .collect()
    }

    #[test]
    fn binary_mode_has_raw_attributes_as_headers_and_the_key_only_as_key() {
        let record = Record::of(&stored(&parts()), KafkaMode::Binary);
        let expected = [
            ("ce_specversion", "1.0"),
            ("ce_id", "C234"),
            ("ce_source", "/mycontext"),
            ("ce_type", "com.example.someevent"),
            ("ce_subject", "Euro € 😀"),
            ("ce_time", "2018-04-05T17:31:00Z"),
            ("ce_comexampleother", "5"),
            ("content-type", "text/xml"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(headers_of(&record), expected);
        assert_eq!(
            (record.key.as_deref(), &record.value[..]),
            (Some("k1"), &b"<a/>"[..])
        );
    }

    #[test]
    fn a_record_of_a_replay_says_so_and_counts_it() {
        let (finish, _finished) = tokio::sync::mpsc::channel(2);
        let attempt = || {
            Attempt::new(
                stored(&parts()),
                1,
                std::time::Duration::ZERO,
                0,
                finish.clone(),
            )
        };
        let own = Record::of_attempt(&attempt(), KafkaMode::Binary);
        let again = Record::of_attempt(&attempt().of_replay(42), KafkaMode::Binary);
        let mut expected = headers_of(&own);
        expected.push(("wayhold_replay".to_owned(), "42".to_owned()));
        assert_eq!(headers_of(&again), expected);
        assert_eq!(again.size, own.size + "wayhold_replay42".len());
    }

    #[test]
    fn structured_mode_is_one_json_object() {
        let record = Record::of(&stored(&parts()), KafkaMode::Structured);
        let content_type = (
            "content-type".to_owned(),
            STRUCTURED_CONTENT_TYPE.to_owned(),
        );
        assert_eq!(headers_of(&record), [content_type]);
        let parsed: serde_json::Value = serde_json::from_slice(&record.value).unwrap();
        assert_eq!(parsed["data"], "<a/>");
    }

    #[test]
    fn the_records_time_is_the_events_own_unless_it_lies_ahead() {
        const ACCEPTED: i64 = 1_700_000_000_000;
        for (time, expected) in [
            ("2018-04-05T17:31:00Z", 1_522_949_460_000),
            ("2018-04-05T19:31:00.5+02:00", 1_522_949_460_500),
            ("2999-01-01T00:00:00Z", ACCEPTED),
            ("1850-01-01T00:00:00Z", ACCEPTED),
            ("yesterday", ACCEPTED),
            ("", ACCEPTED),
        ] {
            let record = Record::of(&stored(&EventParts { time, ..parts() }), KafkaMode::Binary);
            assert_eq!(record.timestamp, expected, "{time}");
        }
    }
}
