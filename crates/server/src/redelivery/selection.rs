//! Which of the held events are meant: for lists of them, and for what is delivered again.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use wayhold_model::filter::Filter;
use wayhold_model::{DestinationId, StoredEvent, Timestamp};
use wayhold_store::TimeRange;

use crate::config::quantity::parse_duration;

/// Most ids that one selection names: so many of 60 bytes fit into the body of an operator's request. Who means
/// more of them selects by time, type or condition.
pub const IDS_MAX: usize = 256;

/// A selection as it is asked for and kept. Every part narrows it; without any it means everything that is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectionText {
    /// Accepted at this time or later: an RFC 3339 time, or a duration such as `2h` for so long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Accepted before this time, in the same forms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Of exactly this type.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Of exactly this source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Of exactly this ordering key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// For which this holds, in CEL over attributes and `data`. What has no answer for an event does not hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// With one of these ids, or at one of these positions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
}

/// Why a text is no selection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {expected}")]
pub struct InvalidSelection {
    /// The part that is wrong.
    pub field: &'static str,
    /// What was expected of it.
    pub expected: String,
}

/// A selection that can be asked about events.
#[derive(Clone, Debug)]
pub struct Selection {
    range: TimeRange,
    kind: Option<String>,
    source: Option<String>,
    key: Option<String>,
    filter: Option<Filter>,
    ids: BTreeSet<String>,
    owed_to: Option<DestinationId>,
}

impl Selection {
    /// Reads a selection; durations count back from `now`.
    ///
    /// # Errors
    /// Names the part that is wrong.
    pub fn read(text: &SelectionText, now: Timestamp) -> Result<Self, InvalidSelection> {
        let time = |field, text: &Option<String>, absent: Timestamp| {
            text.as_deref().map_or(Ok(absent), |text| {
                time(text, now).ok_or_else(|| InvalidSelection {
                    field,
                    expected: format!(
                        "expected a time such as \"2026-01-31T08:05:00Z\" or how long ago such as \"2h\", \
                         not {text:?}"
                    ),
                })
            })
        };
        let all = TimeRange::default();
        let range = TimeRange {
            from: time("from", &text.from, all.from)?,
            until: time("until", &text.until, all.until)?,
        };
        if range.from >= range.until {
            return Err(InvalidSelection {
                field: "until",
                expected: "expected a time after from".to_owned(),
            });
        }
        if text.ids.len() > IDS_MAX {
            return Err(InvalidSelection {
                field: "ids",
                expected: format!("expected at most {IDS_MAX}, got {}", text.ids.len()),
            });
        }
        let filter = text
            .filter
            .as_deref()
            .map(|text| Filter::compile(text, &[]))
            .transpose();
        Ok(Self {
            range,
            kind: text.kind.clone(),
            source: text.source.clone(),
            key: text.key.clone(),
            filter: filter.map_err(|error| InvalidSelection {
                field: "filter",
                expected: error.to_string(),
            })?,
            ids: text.ids.iter().cloned().collect(),
            owed_to: None,
        })
    }

    /// Of those only events that were to go to this destination when they were accepted.
    #[must_use]
    pub fn owed_to(self, destination: Option<DestinationId>) -> Self {
        Self {
            owed_to: destination,
            ..self
        }
    }

    /// Of those only events of this time, which takes the place of the one that was asked for.
    #[must_use]
    pub fn within(self, range: TimeRange) -> Self {
        Self { range, ..self }
    }

    /// The time that it is about.
    pub fn range(&self) -> TimeRange {
        self.range
    }

    /// Whether it means this event.
    pub fn takes(&self, stored: &StoredEvent) -> bool {
        let event = &*stored.event;
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == found)
        };
        let is_named = || {
            self.ids.is_empty()
                || self.ids.contains(event.id())
                || self.ids.contains(&stored.position.to_string())
        };
        let in_range =
            self.range.from <= stored.accepted_at && stored.accepted_at < self.range.until;
        in_range
            && self
                .owed_to
                .is_none_or(|destination| stored.destinations.contains(destination))
            && is(&self.kind, event.kind())
            && is(&self.source, event.source())
            && self
                .key
                .as_deref()
                .is_none_or(|key| event.key() == Some(key))
            && is_named()
            && self
                .filter
                .as_ref()
                .is_none_or(|filter| filter.holds(event).unwrap_or(false))
    }
}

/// A time as people write it.
fn time(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Ok(ago) = parse_duration(text) {
        return Some(now.before(ago));
    }
    let micros = text.parse::<jiff::Timestamp>().ok()?.as_microsecond();
    // Nothing was accepted before 1970.
    Some(Timestamp::from_micros(u64::try_from(micros).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wayhold_model::{
        DestinationSet, Event, EventParts, Generation, Position, Sequence, ShardId,
    };

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000_000);

    fn stored() -> StoredEvent {
        let parts = EventParts {
            id: "7",
            source: "/shop",
            kind: "order.created",
            subject: "4",
            key: "k",
            content_type: "application/json",
            data: bytes::Bytes::from_static(br#"{"total":4}"#),
            ..EventParts::default()
        };
        StoredEvent {
            position: Position {
                generation: Generation(1),
                shard: ShardId(0),
                sequence: Sequence(12),
            },
            accepted_at: NOW.before(std::time::Duration::from_secs(3600)),
            destinations: Arc::new(DestinationSet::new([DestinationId(3)])),
            key_hash: Some(1),
            event: Arc::new(Event::new(&parts).unwrap()),
        }
    }

    fn read(json: &str) -> Result<Selection, InvalidSelection> {
        Selection::read(&serde_json::from_str(json).unwrap(), NOW)
    }

    #[test]
    fn every_part_narrows_the_selection_and_none_means_all() {
        for (json, expected) in [
            ("{}", true),
            (
                r#"{"type":"order.created","source":"/shop","key":"k"}"#,
                true,
            ),
            (r#"{"type":"order"}"#, false),
            (r#"{"source":"/shop2"}"#, false),
            (r#"{"key":""}"#, false),
            (r#"{"ids":["6","7"]}"#, true),
            (r#"{"ids":["g1.s0.12"]}"#, true),
            (r#"{"ids":["6"]}"#, false),
            (r#"{"from":"2h"}"#, true),
            (r#"{"from":"1h"}"#, true),
            (r#"{"until":"1h"}"#, false),
            (r#"{"from":"30m"}"#, false),
            (r#"{"from":"1970-01-12T12:00:00Z"}"#, true),
            (r#"{"until":"1970-01-12T12:00:00Z"}"#, false),
            (
                r#"{"filter":"type.startsWith('order.') && subject == '4'"}"#,
                true,
            ),
            (r#"{"filter":"subject == '5'"}"#, false),
            (r#"{"filter":"data.total > 3"}"#, true),
            (r#"{"filter":"data.total > 4"}"#, false),
            // Without an answer it does not hold, rather than end the whole list.
            (r#"{"filter":"int(source) > 3"}"#, false),
        ] {
            assert_eq!(read(json).unwrap().takes(&stored()), expected, "{json}");
        }
        let owed = |id| read("{}").unwrap().owed_to(Some(DestinationId(id)));
        assert!(owed(3).takes(&stored()) && !owed(4).takes(&stored()));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        let ids: Vec<_> = (0..=IDS_MAX).map(|n| n.to_string()).collect();
        let many = serde_json::json!({ "ids": ids }).to_string();
        for (json, field) in [
            (r#"{"from":"yesterday"}"#, "from"),
            (r#"{"until":"5 parsecs"}"#, "until"),
            (r#"{"from":"1h","until":"2h"}"#, "until"),
            (r#"{"filter":"type =="}"#, "filter"),
            (many.as_str(), "ids"),
        ] {
            assert_eq!(read(json).unwrap_err().field, field, "{json}");
        }
    }

    #[test]
    fn a_selection_is_kept_as_it_was_asked_for() {
        let json = r#"{"from":"2h","type":"t","filter":"true","ids":["1"]}"#;
        let text: SelectionText = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&text).unwrap(), json);
    }
}
