//! What is produced: the CloudEvents Kafka binding in binary or structured mode.

use bytes::Bytes;
use rdkafka::message::{Header, OwnedHeaders};
use wayhold_model::{AttributeValue, Event, StoredEvent};

use super::config::{KafkaConfig, KafkaMode};
use super::topic::partition_of;
use crate::sink::Attempt;
use crate::sink::cloudevents::{STRUCTURED_CONTENT_TYPE, visit_attributes, write_structured};

/// The header that tells which replay a record belongs to.
const REPLAY_HEADER: &str = "wayhold_replay";

/// The extension attribute by which an event without data says that its key is gone.
const TOMBSTONE: &str = "tombstone";

/// One record, without its topic.
pub(super) struct Record {
    /// The ordering key's bytes; without one the record goes to any partition.
    pub(super) key: Option<String>,
    /// The partition, where it does not follow from the key.
    pub(super) partition: Option<i32>,
    /// Attributes, in UTF-8 as they are.
    pub(super) headers: OwnedHeaders,
    /// An event without data has an empty value. Null, which deletes in a compacted topic, it is only where the
    /// event asks for that.
    pub(super) value: Option<Bytes>,
    /// Milliseconds since the epoch.
    pub(super) timestamp: i64,
    /// Bytes of key, headers and value: what the client holds against `message.max.bytes`.
    pub(super) size: usize,
}

impl Record {
    /// The record of an attempt: that of its event, which says so where it is made for a replay.
    pub(super) fn of_attempt(attempt: &Attempt, config: &KafkaConfig) -> Self {
        let mut record = Self::of(&attempt.event, config);
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
    fn of(stored: &StoredEvent, config: &KafkaConfig) -> Self {
        let event = &*stored.event;
        let mut headers = HeaderList::default();
        let value = match config.mode {
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
                (!is_tombstone(event)).then(|| event.data().clone())
            }
            KafkaMode::Structured => {
                headers.push("content-type", STRUCTURED_CONTENT_TYPE);
                let mut value = Vec::with_capacity(event.size() + event.data().len() / 2 + 256);
                write_structured(event, &mut value);
                Some(value.into())
            }
        };
        for (name, template) in &config.headers {
            if let Some(text) = template.render(event, None) {
                headers.push(name, &text);
            }
        }
        let key = event.key().map(str::to_owned);
        Self {
            size: key.as_ref().map_or(0, String::len)
                + headers.size
                + value.as_ref().map_or(0, Bytes::len),
            key,
            // What is no partition is refused before a record is made of it.
            partition: partition_of(config.partition.as_ref(), event).unwrap_or_default(),
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

/// Whether an event says that its key is gone. One that has data still says something else.
fn is_tombstone(event: &Event) -> bool {
    event.data().is_empty() && event.extension(TOMBSTONE) == Some(AttributeValue::Boolean(true))
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
    use wayhold_model::template::Template;

    use super::*;
    use crate::sink::contract::stored;
    use crate::sink::kafka::rig::config;

    fn binary() -> KafkaConfig {
        config("127.0.0.1:9", "orders")
    }

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
        let record = Record::of(&stored(&parts()), &binary());
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
            (record.key.as_deref(), record.value.as_deref()),
            (Some("k1"), Some(&b"<a/>"[..]))
        );
    }

    #[test]
    fn further_headers_are_templates_and_one_without_a_value_is_left_out() {
        let template = |text: &str| Template::parse_attributes(text).unwrap();
        let config = KafkaConfig {
            headers: vec![
                ("id".to_owned(), template("{id}")),
                ("eventType".to_owned(), template("v1.{comexampleother}")),
                ("tenant".to_owned(), template("{tenant}")),
            ],
            ..binary()
        };
        let own = Record::of(&stored(&parts()), &binary());
        let record = Record::of(&stored(&parts()), &config);
        let mut expected = headers_of(&own);
        expected.push(("id".to_owned(), "C234".to_owned()));
        expected.push(("eventType".to_owned(), "v1.5".to_owned()));
        assert_eq!(headers_of(&record), expected);
        assert_eq!(record.size, own.size + "idC234eventTypev1.5".len());
    }

    #[test]
    fn only_an_event_without_data_that_asks_for_it_has_no_value() {
        let structured = KafkaConfig {
            mode: KafkaMode::Structured,
            ..binary()
        };
        for (extensions, data, config, is_null) in [
            (r#"{"tombstone":true}"#, "", binary(), true),
            (r#"{"tombstone":true}"#, "", structured, false),
            (r#"{"tombstone":true}"#, "<a/>", binary(), false),
            (r#"{"tombstone":false}"#, "", binary(), false),
            (r#"{"tombstone":"true"}"#, "", binary(), false),
            ("{}", "", binary(), false),
        ] {
            let parts = EventParts {
                extensions,
                data: Bytes::from_static(data.as_bytes()),
                ..parts()
            };
            let record = Record::of(&stored(&parts), &config);
            assert_eq!(record.value.is_none(), is_null, "{extensions} {data:?}");
        }
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
        let own = Record::of_attempt(&attempt(), &binary());
        let again = Record::of_attempt(&attempt().of_replay(42), &binary());
        let mut expected = headers_of(&own);
        expected.push(("wayhold_replay".to_owned(), "42".to_owned()));
        assert_eq!(headers_of(&again), expected);
        assert_eq!(again.size, own.size + "wayhold_replay42".len());
    }

    #[test]
    fn structured_mode_is_one_json_object() {
        let config = KafkaConfig {
            mode: KafkaMode::Structured,
            ..binary()
        };
        let record = Record::of(&stored(&parts()), &config);
        let content_type = (
            "content-type".to_owned(),
            STRUCTURED_CONTENT_TYPE.to_owned(),
        );
        assert_eq!(headers_of(&record), [content_type]);
        let parsed: serde_json::Value = serde_json::from_slice(&record.value.unwrap()).unwrap();
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
            let record = Record::of(&stored(&EventParts { time, ..parts() }), &binary());
            assert_eq!(record.timestamp, expected, "{time}");
        }
    }
}
