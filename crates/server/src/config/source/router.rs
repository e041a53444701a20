//! The options of Debezium's outbox event router, by its own names and with its defaults, so that they can
//! be pasted: which columns are what, where a row is routed, and what its value looks like.

use regex::Regex;

use crate::config::section::Section;
use crate::config::setting::Choice;

/// What becomes of a row's columns.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// `table.field.event.id`: the event's id.
    pub id: String,
    /// `table.field.event.key`: the aggregate's id, which order is kept by.
    pub key: String,
    /// `table.field.event.type`: the event's type.
    pub kind: String,
    /// `table.field.event.payload`: the event's data.
    pub payload: String,
    /// `table.field.event.timestamp`: the event's time.
    pub timestamp: Option<String>,
    /// `table.field.event.schema.version`: an extension attribute `schemaversion`.
    pub schema_version: Option<String>,
    /// `route.by.field`: the extension attribute `aggregatetype`, by which topics are chosen.
    pub route_by: String,
    /// `route.topic.regex` and `route.topic.replacement`: the extension attribute `topic`.
    pub topic: Option<TopicRule>,
    /// `table.fields.additional.placement`: columns that travel with the event.
    pub additional: Vec<Additional>,
    /// `table.op.invalid.behavior`: what becomes of a row that is changed instead of put in.
    pub invalid: InvalidOperation,
    /// `route.tombstone.on.empty.payload`: whether an event without payload says that its key is gone.
    pub tombstones: bool,
    /// `table.expand.json.payload`: whether a payload that is text is read as JSON.
    pub expand_json: bool,
}

/// How the router would name a topic.
#[derive(Clone, Debug)]
pub struct TopicRule {
    /// What the routed value must be like, as a whole.
    pub regex: Regex,
    /// What is made of it.
    pub replacement: String,
}

/// A column that travels with the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Additional {
    /// The column.
    pub column: String,
    /// Where it goes.
    pub placement: Placement,
    /// What it is called there.
    pub alias: String,
}

/// Where an additional column goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Beside the data, as an attribute of the event.
    Header,
    /// Into the data, beside the payload.
    Envelope,
    /// Beside the data, as the extension attribute `partition`: a whole number.
    Partition,
}

/// What becomes of a row that is changed instead of put in. Only logical mode sees such a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidOperation {
    /// It is logged.
    Warn,
    /// It is logged as an error.
    Error,
    /// Reading stops.
    Fatal,
}

impl Choice for InvalidOperation {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("warn", Self::Warn),
        ("error", Self::Error),
        ("fatal", Self::Fatal),
    ];
}

/// Longest name of a column, in bytes: what PostgreSQL and MySQL allow at most.
const COLUMN_BYTES_MAX: usize = 256;

/// Most additional columns: each may become a header.
const ADDITIONAL_MAX: usize = 32;

/// Attributes that no column is placed as: what an event is known by and ordered by, and what it cannot have.
const RESERVED: [&str; 5] = ["id", "source", "partitionkey", "specversion", "data"];

/// The extension attribute by which an event says which partition it goes to.
const PARTITION: &str = "partition";

/// The router's own defaults of its topics.
const TOPIC_REGEX: &str = "(?<routedByValue>.*)";
const TOPIC_REPLACEMENT: &str = "outbox.event.${routedByValue}";

impl RouterConfig {
    pub(super) fn read(section: &mut Section<'_, '_, '_>) -> Self {
        Self {
            id: column(section, "table.field.event.id", "id"),
            key: column(section, "table.field.event.key", "aggregateid"),
            kind: column(section, "table.field.event.type", "type"),
            payload: column(section, "table.field.event.payload", "payload"),
            timestamp: found_column(section, "table.field.event.timestamp"),
            schema_version: found_column(section, "table.field.event.schema.version"),
            route_by: column(section, "route.by.field", "aggregatetype"),
            topic: read_topic(section),
            additional: read_additional(section),
            invalid: section.get("table.op.invalid.behavior", InvalidOperation::Warn),
            tombstones: section.get("route.tombstone.on.empty.payload", false),
            expand_json: section.get("table.expand.json.payload", false),
        }
    }

    /// Whether the data is an object of the payload and other columns.
    pub fn has_envelope(&self) -> bool {
        let mut placements = self.additional.iter().map(|one| one.placement);
        placements.any(|placement| placement == Placement::Envelope)
    }
}

/// The name of a column.
pub(super) fn column(section: &mut Section<'_, '_, '_>, key: &str, default: &str) -> String {
    let name = section.get(key, default.to_owned());
    check_column(section, key, &name);
    name
}

/// The name of a column that need not be there.
pub(super) fn found_column(section: &mut Section<'_, '_, '_>, key: &str) -> Option<String> {
    let name = section.find::<String>(key)?;
    check_column(section, key, &name);
    Some(name)
}

fn check_column(section: &mut Section<'_, '_, '_>, key: &str, name: &str) {
    if !(1..=COLUMN_BYTES_MAX).contains(&name.len()) {
        section.problem(key, "expected the name of a column");
    }
}

fn read_topic(section: &mut Section<'_, '_, '_>) -> Option<TopicRule> {
    let wanted = section.has("route.topic.regex") || section.has("route.topic.replacement");
    let regex = section.get("route.topic.regex", TOPIC_REGEX.to_owned());
    let replacement = section.get("route.topic.replacement", TOPIC_REPLACEMENT.to_owned());
    match Regex::new(&format!("^(?:{regex})$")) {
        Ok(regex) => wanted.then_some(TopicRule { regex, replacement }),
        Err(error) => {
            // Its first line says where; the rest draws it.
            let told = error.to_string();
            let reason = told.lines().last().unwrap_or_default();
            let reason = reason.trim_start_matches("error: ").to_owned();
            section.problem(
                "route.topic.regex",
                format!("expected a regular expression: {reason}"),
            );
            None
        }
    }
}

fn read_additional(section: &mut Section<'_, '_, '_>) -> Vec<Additional> {
    const KEY: &str = "table.fields.additional.placement";
    let text = section.get(KEY, String::new());
    let items: Vec<_> = text.split(',').map(str::trim).collect();
    let items = items.into_iter().filter(|item| !item.is_empty());
    let mut additional: Vec<Additional> = Vec::new();
    for item in items {
        match parse_additional(item) {
            Ok(one) if additional.iter().any(|other| is_same_place(other, &one)) => {
                section.problem(KEY, format!("expected {:?} once", one.alias));
            }
            Ok(one) => additional.push(one),
            Err(expected) => section.problem(KEY, format!("{item:?}: expected {expected}")),
        }
    }
    if additional.len() > ADDITIONAL_MAX {
        section.problem(KEY, format!("expected at most {ADDITIONAL_MAX} columns"));
    }
    additional
}

fn is_same_place(one: &Additional, other: &Additional) -> bool {
    let is_envelope = |one: &Additional| one.placement == Placement::Envelope;
    is_envelope(one) == is_envelope(other) && one.alias == other.alias
}

fn parse_additional(item: &str) -> Result<Additional, &'static str> {
    const FORM: &str =
        "COLUMN:header or COLUMN:envelope, either also with :ALIAS, or COLUMN:partition";
    let mut parts = item.split(':').map(str::trim);
    let column = parts.next().filter(|name| !name.is_empty()).ok_or(FORM)?;
    let placement = match parts.next() {
        Some("header") => Placement::Header,
        Some("envelope") => Placement::Envelope,
        Some("partition") => Placement::Partition,
        _ => return Err(FORM),
    };
    let alias = match (placement, parts.next()) {
        (Placement::Partition, None) => PARTITION,
        (Placement::Partition, Some(_)) => return Err(FORM),
        (_, alias) => alias.unwrap_or(column),
    };
    if parts.next().is_some() || alias.is_empty() {
        return Err(FORM);
    }
    let alias = match placement {
        // Names of attributes are lower-case letters and digits.
        Placement::Header => {
            let alias: String = alias
                .chars()
                .filter(|c| !matches!(c, '_' | '-' | '.'))
                .map(|c| c.to_ascii_lowercase())
                .collect();
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            if alias.is_empty() || !alias.chars().all(legal) {
                return Err("an alias of letters and digits, since it becomes an attribute's name");
            }
            if RESERVED.contains(&alias.as_str()) {
                return Err("another alias: an event's identity and key are the row's own");
            }
            alias
        }
        Placement::Envelope | Placement::Partition => alias.to_owned(),
    };
    Ok(Additional {
        column: column.to_owned(),
        placement,
        alias,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additional_columns_are_placed_as_the_router_places_them() {
        let header = |column: &str, alias: &str| Additional {
            column: column.to_owned(),
            placement: Placement::Header,
            alias: alias.to_owned(),
        };
        for (item, expected) in [
            ("type:header:eventType", header("type", "eventtype")),
            ("event_type:header", header("event_type", "eventtype")),
            ("tenant:header", header("tenant", "tenant")),
        ] {
            assert_eq!(parse_additional(item), Ok(expected), "{item}");
        }
        let placed = parse_additional("type:envelope:eventType").unwrap();
        assert_eq!(
            (placed.placement, placed.alias.as_str()),
            (Placement::Envelope, "eventType")
        );
        let placed = parse_additional("shard:partition").unwrap();
        assert_eq!(
            (placed.placement, placed.alias.as_str()),
            (Placement::Partition, "partition")
        );
        for wrong in [
            "type",
            "type:body",
            ":header",
            "a:header:b:c",
            "a:header:",
            "a:partition:b",
            "a:header:id",
        ] {
            assert!(parse_additional(wrong).is_err(), "{wrong}");
        }
    }
}
