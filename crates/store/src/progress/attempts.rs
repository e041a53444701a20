//! Attempts as they lie in the file: a JSON array, oldest first, with the newest kept.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wayhold_model::{FailureClass, OutcomeKind, Timestamp};

use crate::delivery::{ATTEMPTS_KEPT_MAX, AttemptRecord};

#[derive(Serialize, Deserialize)]
struct Row {
    number: u32,
    at: u64,
    outcome: String,
    /// Absent in files of before attempts had classes.
    #[serde(default)]
    class: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    status: Option<i32>,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    answer: Option<Box<str>>,
    /// In microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    took: Option<u64>,
}

/// The text of these attempts, of which only the newest are kept.
pub(super) fn to_text(attempts: &[AttemptRecord]) -> String {
    let skipped = attempts.len().saturating_sub(ATTEMPTS_KEPT_MAX);
    let rows: Vec<Row> = attempts
        .iter()
        .skip(skipped)
        .map(|attempt| Row {
            number: attempt.number,
            at: attempt.at.as_micros(),
            outcome: attempt.outcome.name().to_owned(),
            class: attempt.class.name().to_owned(),
            status: attempt.status,
            reason: attempt.reason.clone(),
            answer: attempt.answer.clone(),
            took: attempt
                .duration
                .map(|took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
        })
        .collect();
    // Numbers and strings always have a JSON form.
    serde_json::to_string(&rows).unwrap_or_else(|_| "[]".to_owned())
}

/// The attempts of a text. History is for people: a damaged one reads as empty and stops nothing.
pub(super) fn from_text(text: &str) -> Vec<AttemptRecord> {
    let rows: Vec<Row> = serde_json::from_str(text).unwrap_or_default();
    rows.into_iter()
        .map(|row| AttemptRecord {
            number: row.number,
            at: Timestamp::from_micros(row.at),
            outcome: OutcomeKind::from_name(&row.outcome).unwrap_or(OutcomeKind::Unknown),
            class: FailureClass::from_name(&row.class).unwrap_or(FailureClass::Unclassified),
            status: row.status,
            reason: row.reason,
            answer: row.answer,
            duration: row.took.map(Duration::from_micros),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_attempts_are_kept_and_read_back() {
        let attempts: Vec<_> = (1..=25)
            .map(|number| AttemptRecord {
                number,
                at: Timestamp::from_micros(u64::from(number)),
                outcome: OutcomeKind::NotExecuted,
                class: FailureClass::Connect,
                status: (number % 2 == 0).then_some(503),
                reason: "no \"answer\"".to_owned(),
                answer: (number % 3 == 0).then(|| "{\"error\":1}".into()),
                duration: (number % 2 == 0).then_some(Duration::from_micros(1_500)),
            })
            .collect();
        assert_eq!(from_text(&to_text(&attempts)), attempts[5..]);
        assert_eq!(from_text("damaged"), []);
    }

    #[test]
    fn an_attempt_of_before_there_were_classes_reads_as_unclassified() {
        let text = r#"[{"number":2,"at":7,"outcome":"refused","status":400,"reason":"no"}]"#;
        let [attempt] = &from_text(text)[..] else {
            panic!("expected one attempt");
        };
        let told = (attempt.outcome, attempt.class, attempt.status);
        let expected = (OutcomeKind::Refused, FailureClass::Unclassified, Some(400));
        assert_eq!(told, expected);
    }
}
