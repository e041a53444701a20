//! Which topic an event goes to, what a topic can be called, and which partition of it is the event's where it says so.

use std::borrow::Cow;

use thiserror::Error;
use wayhold_model::Event;
use wayhold_model::template::Template;

/// Longest topic name, in bytes (`org.apache.kafka.common.internals.Topic`).
const TOPIC_BYTES_MAX: usize = 249;

/// An event that has no place to go to; the same event never will have one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum NoPlace {
    #[error("topic: the event lacks an attribute that its template names")]
    AttributeAbsent,
    #[error(
        "topic {name:?}: expected 1 to 249 of the characters a-z, A-Z, 0-9, `.`, `_`, `-`, and not `.` or `..`"
    )]
    Illegal {
        /// The name, cut to what one line shows.
        name: String,
    },
    #[error("partition {value:?}: expected a whole number from 0")]
    NoPartition {
        /// What the template says, cut likewise.
        value: String,
    },
}

/// Characters of a name that a line shows.
const SHOWN_CHARS: usize = 80;

/// The topic of this event.
pub(super) fn topic_of<'a>(template: &Template, event: &'a Event) -> Result<Cow<'a, str>, NoPlace> {
    let topic = template
        .render(event, None)
        .ok_or(NoPlace::AttributeAbsent)?;
    if is_topic(&topic) {
        Ok(topic)
    } else {
        let name = topic.chars().take(SHOWN_CHARS).collect();
        Err(NoPlace::Illegal { name })
    }
}

/// The partition that this event asks for; `None` where it asks for none, so that its key decides.
pub(super) fn partition_of(
    template: Option<&Template>,
    event: &Event,
) -> Result<Option<i32>, NoPlace> {
    let Some(value) = template.and_then(|template| template.render(event, None)) else {
        return Ok(None);
    };
    match value.parse() {
        Ok(partition) if partition >= 0 => Ok(Some(partition)),
        _ => Err(NoPlace::NoPartition {
            value: value.chars().take(SHOWN_CHARS).collect(),
        }),
    }
}

fn is_topic(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=TOPIC_BYTES_MAX).contains(&name.len())
        && name.bytes().all(legal)
        && !matches!(name, "." | "..")
}

#[cfg(test)]
mod tests {
    use wayhold_model::EventParts;

    use super::*;

    #[test]
    fn a_topic_comes_from_attributes_and_illegal_ones_are_refused() {
        let event = Event::new(&EventParts {
            id: "1",
            source: "/shop",
            kind: "order.created",
            extensions: r#"{"region":"eu","tries":3}"#,
            ..EventParts::default()
        })
        .unwrap();
        for (template, expected) in [
            ("orders", Some("orders")),
            ("{type}", Some("order.created")),
            ("x-{region}.{type}-{tries}", Some("x-eu.order.created-3")),
            ("{source}", None),
            ("{subject}", None),
            ("a{subject}b", None),
            ("a b", None),
            ("..", None),
        ] {
            let template = Template::parse_attributes(template).unwrap();
            let topic = topic_of(&template, &event);
            assert_eq!(topic.ok().as_deref(), expected, "{template:?}");
        }
        let name = |length: usize| "x".repeat(length);
        assert!(is_topic(&name(TOPIC_BYTES_MAX)) && !is_topic(&name(TOPIC_BYTES_MAX + 1)));
    }

    #[test]
    fn a_partition_is_a_whole_number_that_the_event_has() {
        let event = |extensions| {
            let parts = EventParts {
                id: "1",
                source: "/shop",
                kind: "order.created",
                extensions,
                ..EventParts::default()
            };
            Event::new(&parts).unwrap()
        };
        let template = Template::parse_attributes("{partition}").unwrap();
        for (extensions, expected) in [
            (r#"{"partition":3}"#, Ok(Some(3))),
            (r#"{"partition":"0"}"#, Ok(Some(0))),
            ("{}", Ok(None)),
            (r#"{"partition":-1}"#, Err("-1")),
            (r#"{"partition":"1.5"}"#, Err("1.5")),
            (r#"{"partition":"99999999999"}"#, Err("99999999999")),
            (r#"{"partition":true}"#, Err("true")),
        ] {
            let expected = expected.map_err(|value: &str| NoPlace::NoPartition {
                value: value.to_owned(),
            });
            let partition = partition_of(Some(&template), &event(extensions));
            assert_eq!(partition, expected, "{extensions}");
            assert_eq!(partition_of(None, &event(extensions)), Ok(None));
        }
    }
}
