//! Which topic an event goes to, and what a topic can be called.

use std::borrow::Cow;

use thiserror::Error;
use wayhold_model::Event;
use wayhold_model::template::Template;

/// Longest topic name, in bytes (`org.apache.kafka.common.internals.Topic`).
const TOPIC_BYTES_MAX: usize = 249;

/// An event that has no topic; the same event never will have one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum NoTopic {
    #[error("topic: the event lacks an attribute that its template names")]
    AttributeAbsent,
    #[error(
        "topic {name:?}: expected 1 to 249 of the characters a-z, A-Z, 0-9, `.`, `_`, `-`, and not `.` or `..`"
    )]
    Illegal {
        /// The name, cut to what one line shows.
        name: String,
    },
}

/// The topic of this event.
pub(super) fn topic_of<'a>(template: &Template, event: &'a Event) -> Result<Cow<'a, str>, NoTopic> {
    let topic = template
        .render(event, None)
        .ok_or(NoTopic::AttributeAbsent)?;
    if is_topic(&topic) {
        Ok(topic)
    } else {
        let name = topic.chars().take(80).collect();
        Err(NoTopic::Illegal { name })
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
}
