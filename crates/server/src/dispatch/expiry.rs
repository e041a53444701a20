//! When an event is no longer worth delivering: the extension attribute `expirytime` of CloudEvents, an RFC 3339
//! time. A delivery whose attempt would start at or after it ends as expired.

use wayhold_model::{AttributeValue, Event, Timestamp};

const ATTRIBUTE: &str = "expirytime";

/// The time from which on no attempt starts; `None` where the event names none, or something that is no time.
pub(super) fn expires_at(event: &Event) -> Option<Timestamp> {
    // Nearly no event has it: looking for the name costs less than reading all attributes.
    if !event.extensions_text().contains(ATTRIBUTE) {
        return None;
    }
    let AttributeValue::String(text) = event.extension(ATTRIBUTE)? else {
        return None;
    };
    let micros = text.parse::<jiff::Timestamp>().ok()?.as_microsecond();
    // What ended before 1970 has ended.
    let micros = u64::try_from(micros).unwrap_or(0);
    Some(Timestamp::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use wayhold_model::EventParts;

    use super::*;

    #[test]
    fn only_a_time_in_its_own_attribute_ends_an_event() {
        let at = |secs: u64| Some(Timestamp::from_micros(secs * 1_000_000));
        for (extensions, expected) in [
            ("", None),
            (r#"{"expirytime":"1970-01-01T00:01:00Z"}"#, at(60)),
            (r#"{"expirytime":"1970-01-01T01:01:00+01:00"}"#, at(60)),
            (r#"{"expirytime":"1969-12-31T23:59:59Z"}"#, at(0)),
            (r#"{"expirytime":"tomorrow"}"#, None),
            (r#"{"expirytime":60}"#, None),
            (r#"{"other":"expirytime"}"#, None),
            (r#"{"myexpirytime":"1970-01-01T00:01:00Z"}"#, None),
        ] {
            let event = Event::from_stored(&EventParts {
                id: "1",
                source: "/s",
                kind: "t",
                extensions,
                ..EventParts::default()
            });
            assert_eq!(expires_at(&event), expected, "{extensions}");
        }
    }
}
