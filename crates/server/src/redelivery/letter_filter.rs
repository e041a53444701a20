//! Which dead letters are meant: by what the store can look up, and by a filter that each is held against.

use wayhold_model::condition::InvalidCondition;
use wayhold_model::filter::{Fact, Filter, Subject};
use wayhold_model::{DestinationId, Event, FailureClass, Fault, Timestamp};
use wayhold_store::{DeadLetter, LetterQuery, Store};

/// What a filter may ask of a dead letter besides its event.
pub const FACTS: [&str; 9] = [
    "destination",
    "class",
    "fault",
    "fingerprint",
    "status",
    "reason",
    "answer",
    "attempts",
    "age",
];

/// Which dead letters are meant; all of them by default.
#[derive(Clone, Debug, Default)]
pub struct LettersMeant {
    /// What the store looks up.
    pub query: LetterQuery,
    /// What each of those is held against. One for which it has no answer is not meant.
    pub filter: Option<Filter>,
}

/// Compiles a filter over dead letters.
///
/// # Errors
/// Says what was expected of it.
pub fn compile(text: &str) -> Result<Filter, InvalidCondition> {
    Filter::compile(text, &FACTS)
}

impl LettersMeant {
    /// Whether a letter that the store gave is meant; `name` is its destination's, `now` what ages end at.
    pub(super) fn holds(&self, letter: &DeadLetter, name: &str, now: Timestamp) -> bool {
        let Some(filter) = &self.filter else {
            return true;
        };
        let subject = LetterSubject { letter, name, now };
        filter.holds(&subject).unwrap_or(false)
    }
}

/// Names of all destinations there ever were.
pub(super) struct Names(Vec<(DestinationId, String)>);

impl Names {
    pub(super) fn of(store: &Store) -> Self {
        let records = store.catalog().destinations().into_iter();
        Self(records.map(|record| (record.id, record.name)).collect())
    }

    pub(super) fn name(&self, id: DestinationId) -> &str {
        let found = self.0.iter().find(|(known, _)| *known == id);
        found.map_or("", |(_, name)| name)
    }
}

/// A letter as a filter sees it.
struct LetterSubject<'a> {
    letter: &'a DeadLetter,
    name: &'a str,
    now: Timestamp,
}

impl Subject for LetterSubject<'_> {
    fn event(&self) -> &Event {
        &self.letter.event.event
    }

    fn fact(&self, name: &str) -> Option<Fact<'_>> {
        let letter = self.letter;
        let last = letter.attempts.last();
        let text = |text| Fact::Text(std::borrow::Cow::Borrowed(text));
        let number = |number: u64| Fact::Number(i64::try_from(number).unwrap_or(i64::MAX));
        Some(match name {
            "destination" => text(self.name),
            "class" => text(&letter.class),
            "fault" => text(fault_of(&letter.class).map_or("", Fault::name)),
            "fingerprint" => text(&letter.fingerprint),
            "status" => Fact::Number(letter.status.map_or(0, i64::from)),
            "reason" => text(&letter.reason),
            "answer" => text(last.and_then(|last| last.answer.as_deref()).unwrap_or("")),
            "attempts" => number(last.map_or(0, |last| u64::from(last.number))),
            "age" => number(self.now.since(letter.at).as_secs()),
            _ => return None,
        })
    }
}

/// Who has to do something about a failure of this class; `None` where nobody said.
pub fn fault_of(class: &str) -> Option<Fault> {
    FailureClass::from_name(class).and_then(FailureClass::fault)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use wayhold_model::{DestinationSet, EventParts, OutcomeKind, Position, StoredEvent};
    use wayhold_store::AttemptRecord;

    use super::*;

    fn letter() -> DeadLetter {
        let event = Event::new(&EventParts {
            id: "7",
            source: "/shop",
            kind: "order.created",
            data: bytes::Bytes::from_static(br#"{"total":12}"#),
            ..EventParts::default()
        });
        let attempt = AttemptRecord {
            number: 4,
            at: Timestamp::from_micros(60_000_000),
            outcome: OutcomeKind::Refused,
            class: FailureClass::Invalid,
            status: Some(422),
            reason: "host answered 422".to_owned(),
            answer: Some("unknown sku".into()),
            duration: Some(Duration::from_millis(3)),
        };
        DeadLetter {
            id: 9,
            event: Arc::new(StoredEvent {
                position: "g1.s0.7".parse::<Position>().unwrap(),
                accepted_at: Timestamp::EPOCH,
                destinations: Arc::new(DestinationSet::parse("1").unwrap()),
                key_hash: None,
                event: Arc::new(event.unwrap()),
            }),
            destination: DestinationId(1),
            class: "invalid".to_owned(),
            fingerprint: attempt.fingerprint(),
            status: attempt.status,
            reason: attempt.reason.clone(),
            at: attempt.at,
            attempts: vec![attempt],
            redriving: false,
            referred: false,
            replay: None,
            edit: None,
        }
    }

    #[test]
    fn every_fact_of_a_letter_can_be_asked_for() {
        let letter = letter();
        let now = Timestamp::from_micros(3_660_000_000);
        let print = format!("fingerprint == '{}'", letter.fingerprint);
        for (text, expected) in [
            ("destination == 'wms'", true),
            ("class in ['invalid', 'conflict']", true),
            ("fault == 'ours'", true),
            (&print, true),
            ("status >= 400 && status < 500", true),
            ("reason.contains('422')", true),
            ("answer == 'unknown sku'", true),
            ("attempts > 3", true),
            ("age == 3600", true),
            ("age > 3600", false),
            ("type == 'order.created' && data.total == 12", true),
            // It has no answer, so the letter is not meant.
            ("data.nothing == 12", false),
        ] {
            let filter = Some(compile(text).unwrap());
            let selection = LettersMeant {
                filter,
                ..LettersMeant::default()
            };
            assert_eq!(selection.holds(&letter, "wms", now), expected, "{text}");
        }
        for name in FACTS {
            let subject = LetterSubject {
                letter: &letter,
                name: "wms",
                now,
            };
            assert!(subject.fact(name).is_some(), "{name}");
        }
    }
}
