//! What sinks write is what the way in reads: any event comes back equal through binary and structured
//! mode.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use wayhold_model::{Event, EventParts};

use super::draft::push_json_string;
use super::envelope::{self, Reading};
use super::{attribute, binary};
use crate::config::ParseMode;
use crate::sink::cloudevents::{header_value, visit_attributes, write_structured, write_with_key};

const READING: Reading = Reading {
    mode: ParseMode::Strict,
    depth_max: 64,
};

const RESERVED: [&str; 10] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "data",
    "",
];

/// Text that an attribute may hold, with everything that headers and JSON must escape.
fn text() -> impl Strategy<Value = String> {
    let hostile = prop_oneof!["[ -~]{1,20}", "[\"%\\\\ äß€😀]{1,10}", "\\PC{1,20}"];
    hostile.prop_filter("characters that CloudEvents allows", |text| {
        attribute::text("x", text).is_ok()
    })
}

/// Content type and data that fits it.
fn data() -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    let json = prop_oneof![
        Just(r#"{"a":[1,2.50,1e400,"\u00e9\u0000"]}"#.to_owned()),
        "[0-9]{1,20}".prop_map(|digits| format!("1{digits}")),
        text().prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    prop_oneof![
        json.prop_map(|text| ("application/json", text.into_bytes())),
        vec(any::<u8>(), 0..40).prop_map(|bytes| ("application/octet-stream", bytes)),
        text().prop_map(|text| ("text/plain; charset=utf-8", text.into_bytes())),
        vec(any::<u8>(), 1..40).prop_map(|bytes| ("", bytes)),
        Just(("", Vec::new())),
    ]
}

prop_compose! {
    fn event()(
        required in [text(), text(), text()],
        subject in option::of(text()),
        time in option::of(Just("2018-04-05T17:31:00Z")),
        dataschema in option::of(text()),
        extensions in btree_map("[a-z0-9]{1,12}", text(), 0..5),
        (content_type, data) in data(),
    ) -> Event {
        let mut json = String::new();
        for (name, value) in &extensions {
            if RESERVED.contains(&name.as_str()) {
                continue;
            }
            json.push(if json.is_empty() { '{' } else { ',' });
            push_json_string(&mut json, name);
            json.push(':');
            push_json_string(&mut json, value);
        }
        if !json.is_empty() {
            json.push('}');
        }
        let [id, source, kind] = &required;
        Event::new(&EventParts {
            id,
            source,
            kind,
            subject: subject.as_deref().unwrap_or_default(),
            time: time.unwrap_or_default(),
            dataschema: dataschema.as_deref().unwrap_or_default(),
            content_type,
            key: extensions.get("partitionkey").map_or("", String::as_str),
            extensions: &json,
            data: Bytes::from(data),
        })
        .unwrap()
    }
}

proptest! {
    #[test]
    fn binary_mode_loses_nothing(event in event()) {
        let mut headers = HeaderMap::new();
        visit_attributes(&event, |name, value| {
            let name: HeaderName = format!("ce-{name}").parse().unwrap();
            headers.append(name, HeaderValue::from_str(&header_value(value)).unwrap());
        });
        if !event.content_type().is_empty() {
            headers.insert("content-type", event.content_type().parse().unwrap());
        }
        let mut draft = binary::read(&headers, event.data().clone(), READING).unwrap();
        prop_assert_eq!(Event::new(&draft.parts()).unwrap(), event);
    }

    #[test]
    fn structured_mode_loses_nothing(event in event()) {
        let mut text = Vec::new();
        write_structured(&event, &mut text);
        let text = Bytes::from(text);
        let json = std::str::from_utf8(&text).unwrap();
        let mut draft = envelope::read_one(json, READING, &envelope::Share(&text)).unwrap();
        prop_assert_eq!(Event::new(&draft.parts()).unwrap(), event);
    }

    #[test]
    fn a_batch_for_another_wayhold_loses_nothing(events in vec(event(), 0..4)) {
        let mut text = b"[".to_vec();
        for (index, event) in events.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            write_with_key(event, &mut text);
        }
        text.push(b']');
        let json = std::str::from_utf8(&text).unwrap();
        let mut read = Vec::new();
        envelope::read_batch(json, READING, events.len(), |mut draft| {
            read.push(Event::new(&draft.parts()).unwrap());
            Ok(())
        })
        .unwrap();
        prop_assert_eq!(read, events);
    }

    #[test]
    fn a_key_that_is_no_attribute_goes_along_as_one(key in text()) {
        let parts = EventParts { id: "1", source: "/s", kind: "t", key: &key, ..EventParts::default() };
        let event = Event::new(&parts).unwrap();
        let mut text = Vec::new();
        write_with_key(&event, &mut text);
        let text = Bytes::from(text);
        let json = std::str::from_utf8(&text).unwrap();
        let mut draft = envelope::read_one(json, READING, &envelope::Share(&text)).unwrap();
        let read = Event::new(&draft.parts()).unwrap();
        prop_assert_eq!(read.key(), event.key());
        prop_assert!(read.extension("partitionkey").is_some());
    }
}
