//! A configured way in, table `[sources.NAME]`. Events that anybody sends to `POST /v1/events` belong to
//! the sources whose condition they meet; one that meets none has the whole of every limit.

use wayhold_model::admission::Fill;
use wayhold_model::condition::Condition;

use crate::config::destination::DestinationName;
use crate::config::section::Section;
use crate::config::setting::Choice;

/// Most sources: an event may be held against the condition of each while a limit is nearly reached.
pub(super) const SOURCES_MAX: usize = 256;

/// A source.
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
}

impl Choice for Kind {
    const WORDS: &'static [(&'static str, Self)] = &[("events", Self::Events)];
}

impl SourceConfig {
    /// Reads `[sources]`.
    pub(super) fn read_all(section: &mut Section<'_, '_, '_>) -> Vec<Self> {
        let names = section.keys();
        if names.len() > SOURCES_MAX {
            section.problem("", format!("expected at most {SOURCES_MAX} sources"));
        }
        let mut read =
            |name: &String| section.table(name, |section| Self::read(name.clone(), section));
        names.iter().take(SOURCES_MAX).map(&mut read).collect()
    }

    fn read(name: String, section: &mut Section<'_, '_, '_>) -> Self {
        if let Err(error) = name.parse::<DestinationName>() {
            section.problem("", error.to_string());
        }
        section.require::<Kind>("kind", "\"events\"");
        Self {
            name,
            when: section.find("when"),
            admit_until: section.get("admit_until", Fill::FULL),
        }
    }
}
