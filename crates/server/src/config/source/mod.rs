//! A configured way in, table `[sources.NAME]`. Events that anybody sends to `POST /v1/events` belong to
//! the sources of kind `events` whose condition they meet; one that meets none has the whole of every limit.
//! A source of kind `outbox_table` is read by the server itself.

pub mod outbox_table;
pub mod router;

pub use outbox_table::OutboxTableConfig;

use wayhold_model::admission::Fill;
use wayhold_model::condition::Condition;

use crate::config::destination::DestinationName;
use crate::config::section::Section;
use crate::config::setting::Choice;

/// Most sources: an event may be held against the condition of each while a limit is nearly reached.
pub(super) const SOURCES_MAX: usize = 256;

/// The sources of a configuration, by kind and sorted by name.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// What is sent to `POST /v1/events`.
    pub events: Vec<SourceConfig>,
    /// Tables that are read.
    pub tables: Vec<OutboxTableConfig>,
}

/// A source of kind `events`.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// Its name, by the same rule as a destination's.
    pub name: String,
    /// Which events are its own; all where absent.
    pub when: Option<Condition>,
    /// At which filling of a limit its events are refused.
    pub admit_until: Fill,
}

/// The words of `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Whatever comes by `POST /v1/events`.
    Events,
    /// Rows of a table in somebody's database.
    OutboxTable,
}

impl Choice for Kind {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("events", Self::Events),
        ("outbox_table", Self::OutboxTable),
    ];
}

/// Debezium names its options with dots, and below these words.
const DOTTED: [&str; 2] = ["route", "table"];

impl Sources {
    /// Reads `[sources]`. No batch of a table may be larger than `batch_bytes_max`.
    pub(super) fn read(section: &mut Section<'_, '_, '_>, batch_bytes_max: usize) -> Self {
        let names = section.keys();
        if names.len() > SOURCES_MAX {
            section.problem("", format!("expected at most {SOURCES_MAX} sources"));
        }
        let mut sources = Self::default();
        for name in names.iter().take(SOURCES_MAX) {
            section.table(name, |section| {
                section.dotted(&DOTTED, |section| {
                    sources.read_one(name, section, batch_bytes_max);
                });
            });
        }
        sources
    }

    fn read_one(&mut self, name: &str, section: &mut Section<'_, '_, '_>, batch_bytes_max: usize) {
        if let Err(error) = name.parse::<DestinationName>() {
            section.problem("", error.to_string());
        }
        let kind = section.require::<Kind>("kind", "\"events\"");
        if kind == Some(Kind::OutboxTable) {
            let table = OutboxTableConfig::read(name, section, batch_bytes_max);
            self.tables.extend(table);
            return;
        }
        self.events.push(SourceConfig {
            name: name.to_owned(),
            when: section.find("when"),
            admit_until: section.get("admit_until", Fill::FULL),
        });
    }
}
