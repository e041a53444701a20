//! What an answer, or the lack of one, means for the event. No reason holds the URL beyond its host:
//! path and query may be the credential.

use std::error::Error;
use std::time::Duration;

use http::StatusCode;
use wayhold_model::{Failure, Outcome};

use super::address::Denied;

/// The outcome of an answer with this status.
pub(super) fn outcome_of_status(
    host: &str,
    status: StatusCode,
    retry_after: Option<Duration>,
) -> Outcome {
    let code = status.as_u16();
    let failure = |retry_after| {
        Failure::new(format!("{host} answered {code}"))
            .with_status(i32::from(code))
            .with_retry_after(retry_after)
    };
    match code {
        200..=299 => Outcome::Delivered,
        300..=399 => Outcome::Refused(
            Failure::new(format!(
                "{host} answered {code}, a redirect, which is not followed"
            ))
            .with_status(i32::from(code)),
        ),
        // The receiver says that it did not look at the request, or will not before a time.
        425 | 429 | 501 | 505 | 511 => Outcome::NotExecuted(failure(retry_after)),
        503 if retry_after.is_some() => Outcome::NotExecuted(failure(retry_after)),
        // It may have failed after the event had its effect.
        408 | 500..=599 => Outcome::Unknown(failure(retry_after)),
        _ => Outcome::Refused(failure(None)),
    }
}

/// The outcome of a request that got no answer: not executed where the connection never stood.
pub(super) fn outcome_of_error(host: &str, error: &reqwest::Error) -> Outcome {
    let cause = root_cause(error);
    if error.is_builder() {
        return Outcome::Refused(Failure::new(format!(
            "request to {host} cannot be made: {cause}"
        )));
    }
    if error.is_connect() {
        return Outcome::NotExecuted(Failure::new(format!("no connection to {host}: {cause}")));
    }
    Outcome::Unknown(Failure::new(format!("no answer from {host}: {cause}")))
}

/// The outcome of an attempt whose time ran out before an answer began.
pub(super) fn outcome_of_timeout(host: &str, timeout: Duration) -> Outcome {
    Outcome::Unknown(Failure::new(format!(
        "no answer from {host} within {timeout:?}"
    )))
}

/// The outcome of an address that may not be reached.
pub(super) fn outcome_of_denial(host: &str, denied: Denied) -> Outcome {
    Outcome::NotExecuted(Failure::new(format!("{host} may not be reached: {denied}")))
}

/// The innermost error's own words: those around it repeat them, and the outermost names the URL.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    let mut words = None;
    while let Some(inner) = cause {
        words = Some(inner.to_string());
        cause = inner.source();
    }
    words.unwrap_or_else(|| "no cause given".to_owned())
}

#[cfg(test)]
mod tests {
    use wayhold_model::OutcomeKind;

    use super::*;

    #[test]
    fn each_status_has_its_outcome() {
        let wait = Some(Duration::from_secs(3));
        for (codes, retry_after, expected) in [
            (&[200, 201, 202, 204, 299][..], None, OutcomeKind::Delivered),
            (
                &[408, 500, 502, 503, 504, 522, 599],
                None,
                OutcomeKind::Unknown,
            ),
            (&[425, 429, 501, 505, 511], None, OutcomeKind::NotExecuted),
            (&[503], wait, OutcomeKind::NotExecuted),
            (&[500], wait, OutcomeKind::Unknown),
            (&[301, 302, 303, 304, 307, 308], None, OutcomeKind::Refused),
            (
                &[400, 401, 403, 404, 409, 410, 413, 415, 421, 422, 451],
                None,
                OutcomeKind::Refused,
            ),
        ] {
            for &code in codes {
                let status = StatusCode::from_u16(code).unwrap();
                let outcome = outcome_of_status("shop.example", status, retry_after);
                assert_eq!(outcome.kind(), expected, "{code}");
                if let Some(failure) = outcome.failure() {
                    assert_eq!(failure.status, Some(i32::from(code)));
                    assert!(failure.reason.contains("shop.example"));
                    assert_eq!(failure.retry_after, retry_after);
                }
            }
        }
    }
}
