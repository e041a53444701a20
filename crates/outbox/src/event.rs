//! An event as a row holds it and as CloudEvents name it. What no table could hold is refused here, so
//! that an insert does not fail for it in the middle of a business transaction.

use std::fmt;
use std::time::SystemTime;

use serde::Serialize;
use uuid::Uuid;

use crate::error::Invalid;

/// Most characters of a type, an aggregate type or an aggregate id: the `varchar(255)` of the layout.
const MAX_NAME_CHARS: usize = 255;
/// Most characters of an attribute's name, which CloudEvents recommend and Wayhold demands.
const MAX_ATTRIBUTE_NAME_CHARS: usize = 20;
/// Attributes that come from columns or from the reader's configuration and have no column of their own.
const TAKEN: [&str; 5] = ["id", "source", "specversion", "type", "data"];

/// One event, ready to be inserted. Its parts are as the CloudEvent that Wayhold makes of the row: `id`
/// and `type` are its own, the aggregate's id is its subject and partition key, so events of one aggregate
/// stay in order, and the aggregate's type ends its source.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    pub(crate) id: Uuid,
    pub(crate) kind: String,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) data: Option<String>,
    pub(crate) attributes: Vec<(String, String)>,
}

impl Event {
    /// Begins an event of a type, such as `com.example.order.placed`.
    pub fn of_type(kind: impl Into<String>) -> Builder {
        Builder {
            event: Self {
                id: Uuid::now_v7(),
                kind: kind.into(),
                aggregate_type: String::new(),
                aggregate_id: String::new(),
                data: None,
                attributes: Vec::new(),
            },
            unserializable: None,
        }
    }

    /// What receivers know a repeat by.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// What happened.
    pub fn r#type(&self) -> &str {
        &self.kind
    }

    /// The kind of thing that it happened to, such as `order`.
    pub fn aggregate_type(&self) -> &str {
        &self.aggregate_type
    }

    /// Which one it happened to: order is kept among the events of one.
    pub fn aggregate_id(&self) -> &str {
        &self.aggregate_id
    }

    /// The payload as JSON text, if there is one.
    pub fn data(&self) -> Option<&str> {
        self.data.as_deref()
    }

    /// Further attributes, in the order in which they were given.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
    }
}

/// Without the payload, which belongs in no log.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("type", &self.kind)
            .field("aggregate_type", &self.aggregate_type)
            .field("aggregate_id", &self.aggregate_id)
            .field("data_bytes", &self.data.as_ref().map(String::len))
            .finish_non_exhaustive()
    }
}

/// An event that is being put together; [`build`](Builder::build) says what is wrong with it.
#[derive(Debug, Clone)]
#[must_use = "an event is made by build()"]
pub struct Builder {
    event: Event,
    unserializable: Option<String>,
}

impl Builder {
    /// What it happened to, for instance `("order", "42")`. Needed.
    pub fn aggregate(mut self, kind: impl Into<String>, id: impl Into<String>) -> Self {
        self.event.aggregate_type = kind.into();
        self.event.aggregate_id = id.into();
        self
    }

    /// The payload, as JSON. Without one the row's payload is NULL.
    pub fn data(mut self, data: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_string(data) {
            Ok(text) => self.event.data = Some(text),
            Err(error) => self.unserializable = Some(error.to_string()),
        }
        self
    }

    /// An id of one's own instead of a fresh UUIDv7: the same for the same fact makes a repeated
    /// transaction fail on the table's key instead of telling twice.
    pub fn id(mut self, id: Uuid) -> Self {
        self.event.id = id;
        self
    }

    /// When it happened, as the attribute `time`, to the microsecond.
    pub fn time(self, time: SystemTime) -> Self {
        self.attribute("time", humantime::format_rfc3339_micros(time).to_string())
    }

    /// A further attribute of the CloudEvent, such as `traceparent` or `dataschema`. The table needs a
    /// column for it ([`Table::with_attribute`](crate::Table::with_attribute)). A name given twice keeps
    /// its last value.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.event.attributes.retain(|(known, _)| *known != name);
        self.event.attributes.push((name, value));
        self
    }

    /// The event.
    ///
    /// # Errors
    /// When a part is missing, too long, or not what CloudEvents allow; the error names it.
    pub fn build(self) -> Result<Event, Invalid> {
        let event = self.event;
        check_name("type", &event.kind)?;
        check_name("aggregatetype", &event.aggregate_type)?;
        check_name("aggregateid", &event.aggregate_id)?;
        if let Some(reason) = self.unserializable {
            return Err(Invalid::new(
                "data",
                format!("a value that JSON can express, but {reason}"),
            ));
        }
        for (name, value) in &event.attributes {
            check_attribute_name(name)?;
            check_text(name, value)?;
        }
        Ok(event)
    }
}

/// What a CloudEvents attribute with a column of its own may be called.
pub(crate) fn check_attribute_name(name: &str) -> Result<(), Invalid> {
    let well_formed = !name.is_empty()
        && name.len() <= MAX_ATTRIBUTE_NAME_CHARS
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if !well_formed {
        return Err(Invalid::new(
            format!("attribute {name:?}"),
            format!("a name of 1 to {MAX_ATTRIBUTE_NAME_CHARS} letters a to z and digits"),
        ));
    }
    if TAKEN.contains(&name) {
        return Err(Invalid::new(
            format!("attribute {name:?}"),
            "another name: this one has its value from elsewhere",
        ));
    }
    Ok(())
}

fn check_name(field: &str, value: &str) -> Result<(), Invalid> {
    let chars = value.chars().count();
    if chars > MAX_NAME_CHARS {
        return Err(Invalid::new(
            field,
            format!("at most {MAX_NAME_CHARS} characters, these are {chars}"),
        ));
    }
    check_text(field, value)
}

fn check_text(field: &str, value: &str) -> Result<(), Invalid> {
    if value.is_empty() {
        return Err(Invalid::new(field, "a text that is not empty"));
    }
    if let Some(control) = value.chars().find(|c| c.is_control()) {
        return Err(Invalid::new(
            field,
            format!("a text without control characters, it has {control:?}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn order() -> Builder {
        Event::of_type("com.example.order.placed").aggregate("order", "42")
    }

    fn refused(builder: Builder) -> String {
        builder.build().unwrap_err().to_string()
    }

    #[test]
    fn an_event_has_a_fresh_id_and_its_data_as_json() {
        let (one, two) = (
            order().data(&[1, 2]).build().unwrap(),
            order().build().unwrap(),
        );
        assert_ne!(one.id(), two.id());
        assert_eq!(one.id().get_version_num(), 7);
        assert_eq!(one.data(), Some("[1,2]"));
        assert_eq!(two.data(), None);
    }

    #[test]
    fn a_time_is_an_attribute_to_the_microsecond() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        let event = order().time(at).build().unwrap();
        assert_eq!(
            event.attributes().collect::<Vec<_>>(),
            [("time", "2023-11-14T22:13:20.123456Z")]
        );
    }

    #[test]
    fn an_attribute_given_twice_keeps_its_last_value() {
        let event = order()
            .attribute("a", "1")
            .attribute("a", "2")
            .build()
            .unwrap();
        assert_eq!(event.attributes().collect::<Vec<_>>(), [("a", "2")]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = "x".repeat(256);
        for (builder, said) in [
            (
                Event::of_type("").aggregate("a", "b"),
                "type: expected a text that is not empty",
            ),
            (
                Event::of_type("t"),
                "aggregatetype: expected a text that is not empty",
            ),
            (
                Event::of_type("t").aggregate("a", ""),
                "aggregateid: expected a text that is not empty",
            ),
            (
                Event::of_type("t").aggregate("a", long),
                "aggregateid: expected at most 255 characters, these are 256",
            ),
            (
                Event::of_type("t").aggregate("a\nb", "c"),
                "aggregatetype: expected a text without control characters, it has '\\n'",
            ),
            (
                order().attribute("traceParent", "x"),
                "attribute \"traceParent\": expected a name of 1 to 20 letters a to z and digits",
            ),
            (
                order().attribute("source", "x"),
                "attribute \"source\": expected another name: this one has its value from elsewhere",
            ),
            (
                order().attribute("tracestate", ""),
                "tracestate: expected a text that is not empty",
            ),
            (
                order().data(&BTreeMap::from([((1, 2), 3)])),
                "data: expected a value that JSON can express, but key must be a string",
            ),
        ] {
            assert_eq!(refused(builder), said);
        }
    }

    #[test]
    fn a_payload_is_not_printed() {
        let event = order().data("a secret").build().unwrap();
        assert!(!format!("{event:?}").contains("secret"));
    }
}
