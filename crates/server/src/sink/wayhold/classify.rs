//! What an answer means for a batch. Nothing is given up for what is no event's own fault: an event is refused
//! only where the other Wayhold itself says which one it will never take, or where one alone is too large.

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use wayhold_model::{Failure, FailureClass, Outcome, OutcomeKind};

use crate::sink::webhook;

/// What came of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// All of it is stored.
    Stored,
    /// Nothing of it is stored, because of one event, or because it is too large as a whole.
    Refused {
        /// What that event's attempt ends with.
        failure: Failure,
        /// Which one, where it is known.
        index: Option<usize>,
    },
    /// Nothing is known to be stored, and no event is at fault.
    Failed(Outcome),
}

/// What of a problem detail (RFC 9457) is looked at.
#[derive(Deserialize)]
struct Problem<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    index: Option<usize>,
}

/// Types of problems that one event has and always will have.
const OF_ONE_EVENT: [&str; 6] = [
    "malformed-body",
    "invalid-event",
    "too-large",
    "no-route",
    "route-failed",
    "event-conflict",
];

/// Types that say so much of themselves that an operator is told them.
const PROBLEMS: &str = "/problems/";

/// What an answer other than a success says of a batch of `events`.
pub(super) fn answer_of(
    host: &str,
    status: StatusCode,
    wait: Option<Duration>,
    body: &[u8],
    events: usize,
) -> Answer {
    let code = status.as_u16();
    let problem: Option<Problem<'_>> = serde_json::from_slice(body).ok();
    let kind = problem
        .as_ref()
        .and_then(|problem| problem.kind.strip_prefix(PROBLEMS))
        .filter(|kind| is_plain(kind));
    let words = match kind {
        Some(kind) => format!("{host} answered {code} {kind}"),
        None => format!("{host} answered {code}"),
    };
    let failure = |class| {
        Failure::new(class, &words)
            .with_status(i32::from(code))
            .with_retry_after(wait)
    };
    let index = problem
        .as_ref()
        .and_then(|problem| problem.index)
        .filter(|index| *index < events);
    if code == TOO_LARGE {
        let failure = failure(FailureClass::TooLarge);
        return Answer::Refused { failure, index };
    }
    if index.is_some() && kind.is_some_and(|kind| OF_ONE_EVENT.contains(&kind)) {
        let failure = failure(FailureClass::Invalid);
        return Answer::Refused { failure, index };
    }
    let (kind, class) = match webhook::meaning_of_status(code, wait.is_some()) {
        (OutcomeKind::Refused, class) => of_everything(class),
        other => other,
    };
    Answer::Failed(match kind {
        OutcomeKind::Refused => Outcome::Refused(failure(class)),
        OutcomeKind::NotExecuted => Outcome::NotExecuted(failure(class)),
        OutcomeKind::Unknown | OutcomeKind::Delivered => Outcome::Unknown(failure(class)),
    })
}

/// What a status says of an event that was sent alone.
pub(crate) fn meaning_of_status(code: u16, waits: bool) -> (OutcomeKind, FailureClass) {
    match code {
        TOO_LARGE => (OutcomeKind::Refused, FailureClass::TooLarge),
        400 | 409 | 422 => (OutcomeKind::Refused, FailureClass::Invalid),
        _ => match webhook::meaning_of_status(code, waits) {
            (OutcomeKind::Refused, class) => of_everything(class),
            other => other,
        },
    }
}

const TOO_LARGE: u16 = 413;

/// A refusal that no event is at fault for. Only credentials are for somebody to mend before anything else is
/// sent; the rest is a server that is set up wrong, or is none of ours, and is tried until it is.
fn of_everything(class: FailureClass) -> (OutcomeKind, FailureClass) {
    use FailureClass as Class;
    match class {
        Class::Auth => (OutcomeKind::Refused, Class::Auth),
        Class::NotFound | Class::Gone => (OutcomeKind::NotExecuted, Class::NotFound),
        Class::Redirected => (OutcomeKind::NotExecuted, Class::Redirected),
        _ => (OutcomeKind::NotExecuted, Class::Protocol),
    }
}

/// Whether a type can be shown: a name, and nothing that anybody put into it.
fn is_plain(kind: &str) -> bool {
    kind.len() <= 40
        && kind
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, body: &str) -> Answer {
        let status = StatusCode::from_u16(code).unwrap();
        let wait = matches!(code, 429 | 503).then_some(Duration::from_secs(3));
        answer_of("centre.example", status, wait, body.as_bytes(), 3)
    }

    fn problem(kind: &str, members: &str) -> String {
        format!(r#"{{"type":"/problems/{kind}","title":"t","status":0,"detail":"d"{members}}}"#)
    }

    #[test]
    fn only_what_names_an_event_or_is_too_large_is_an_events_own_fault() {
        use FailureClass as Class;
        for (code, kind, members, class, index) in [
            (
                400,
                "invalid-event",
                r#","index":2"#,
                Class::Invalid,
                Some(2),
            ),
            (
                400,
                "malformed-body",
                r#","index":0,"offset":9"#,
                Class::Invalid,
                Some(0),
            ),
            (
                409,
                "event-conflict",
                r#","index":1"#,
                Class::Invalid,
                Some(1),
            ),
            (
                422,
                "no-route",
                r#","routes":[],"index":1"#,
                Class::Invalid,
                Some(1),
            ),
            (
                422,
                "route-failed",
                r#","index":1"#,
                Class::Invalid,
                Some(1),
            ),
            (413, "too-large", r#","limit":9"#, Class::TooLarge, None),
        ] {
            let Answer::Refused { failure, index: at } = answer(code, &problem(kind, members))
            else {
                panic!("{code} {kind} is of one event");
            };
            assert_eq!((failure.class, at), (class, index), "{code} {kind}");
            let words = format!("centre.example answered {code} {kind}");
            assert_eq!(failure.reason, words);
            assert_eq!(meaning_of_status(code, false).1, class);
        }
        // A proxy's word, which knows a size and nothing of events.
        assert!(matches!(
            answer(413, "<html>too large</html>"),
            Answer::Refused { index: None, .. }
        ));
    }

    #[test]
    fn whatever_concerns_all_events_gives_none_up() {
        use FailureClass as Class;
        use OutcomeKind::{NotExecuted, Refused, Unknown};
        for (code, body, kind, class) in [
            // Without the event, or with one that was not sent.
            (
                400,
                problem("invalid-event", ""),
                NotExecuted,
                Class::Protocol,
            ),
            (
                400,
                problem("invalid-event", r#","index":3"#),
                NotExecuted,
                Class::Protocol,
            ),
            (
                400,
                problem("invalid-request", r#","index":0"#),
                NotExecuted,
                Class::Protocol,
            ),
            (
                400,
                "<html>The plain HTTP request was sent to HTTPS port</html>".to_owned(),
                NotExecuted,
                Class::Protocol,
            ),
            (401, problem("unauthenticated", ""), Refused, Class::Auth),
            (403, problem("forbidden", ""), Refused, Class::Auth),
            (404, "not found".to_owned(), NotExecuted, Class::NotFound),
            (405, String::new(), NotExecuted, Class::Protocol),
            (410, String::new(), NotExecuted, Class::NotFound),
            (
                415,
                problem("unsupported-media", ""),
                NotExecuted,
                Class::Protocol,
            ),
            (302, String::new(), NotExecuted, Class::Redirected),
            (
                429,
                problem("backlog-full", r#","index":1"#),
                NotExecuted,
                Class::Throttled,
            ),
            (
                503,
                problem("no-space", ""),
                NotExecuted,
                Class::Unavailable,
            ),
            (500, problem("internal", ""), Unknown, Class::Unavailable),
            (408, String::new(), Unknown, Class::Timeout),
            (199, String::new(), Unknown, Class::Protocol),
        ] {
            let Answer::Failed(outcome) = answer(code, &body) else {
                panic!("{code} {body} concerns all");
            };
            let failure = outcome.failure().unwrap();
            assert_eq!(
                (outcome.kind(), failure.class),
                (kind, class),
                "{code} {body}"
            );
            let waits = matches!(code, 429 | 503);
            assert_eq!(failure.retry_after.is_some(), waits, "{code}");
        }
    }

    #[test]
    fn a_reason_holds_nothing_that_somebody_could_have_put_into_a_problem() {
        for kind in ["Order 42 of Ann", "x/y", &"a".repeat(41)] {
            let Answer::Failed(outcome) = answer(400, &problem(kind, "")) else {
                panic!("{kind} is no type that is known");
            };
            assert_eq!(
                outcome.failure().unwrap().reason,
                "centre.example answered 400"
            );
        }
    }
}
