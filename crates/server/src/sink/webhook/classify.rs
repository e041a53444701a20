//! What an answer, or the lack of one, means for the event. No reason holds the URL beyond its host:
//! path and query may be the credential.

use std::error::Error;
use std::io;
use std::time::Duration;

use http::StatusCode;
use wayhold_model::{Failure, FailureClass, Outcome, OutcomeKind};

use super::address::Denied;
use super::auth::NoToken;

/// The outcome of an answer with this status.
pub(super) fn outcome_of_status(
    host: &str,
    status: StatusCode,
    retry_after: Option<Duration>,
) -> Outcome {
    let code = status.as_u16();
    let (kind, class) = meaning_of_status(code, retry_after.is_some());
    let reason = match class {
        FailureClass::Redirected => {
            format!("{host} answered {code}, a redirect, which is not followed")
        }
        _ => format!("{host} answered {code}"),
    };
    let failure = || {
        Failure::new(class, reason)
            .with_status(i32::from(code))
            .with_retry_after(retry_after)
    };
    match kind {
        OutcomeKind::Delivered => Outcome::Delivered,
        OutcomeKind::Refused => Outcome::Refused(failure()),
        OutcomeKind::NotExecuted => Outcome::NotExecuted(failure()),
        OutcomeKind::Unknown => Outcome::Unknown(failure()),
    }
}

/// What a status says; `waits` is whether it came with a time to wait. The class of a success is not used.
pub(crate) fn meaning_of_status(code: u16, waits: bool) -> (OutcomeKind, FailureClass) {
    use FailureClass as Class;
    use OutcomeKind::{Delivered, NotExecuted, Refused, Unknown};
    match code {
        200..=299 => (Delivered, Class::Unclassified),
        300..=399 => (Refused, Class::Redirected),
        401 | 402 | 403 | 407 | 511 => (Refused, Class::Auth),
        404 => (Refused, Class::NotFound),
        410 => (Refused, Class::Gone),
        // The event itself, or what of it became the URL or headers.
        413 | 414 | 431 => (Refused, Class::TooLarge),
        // Somebody else is at it, or it depends on something that failed: another time it may do.
        409 | 423 | 424 => (Refused, Class::Conflict),
        // The receiver says that it did not look at the request, or will not before a time.
        429 => (NotExecuted, Class::Throttled),
        421 | 425 => (NotExecuted, Class::Unavailable),
        503 if waits => (NotExecuted, Class::Unavailable),
        408 => (Unknown, Class::Timeout),
        501 | 505 => (Refused, Class::Invalid),
        // It may have failed after the event had its effect.
        500..=599 => (Unknown, Class::Unavailable),
        400..=499 => (Refused, Class::Invalid),
        // An interim status is no answer, and there are none above 599.
        _ => (Unknown, Class::Protocol),
    }
}

/// The outcome of a request that got no answer: not executed where the connection never stood.
pub(super) fn outcome_of_error(host: &str, error: &reqwest::Error) -> Outcome {
    let causes = causes_of(error);
    let words = words_of(&causes);
    if error.is_builder() {
        let reason = format!("request to {host} cannot be made: {words}");
        return Outcome::Refused(Failure::new(FailureClass::Mapping, reason));
    }
    if error.is_connect() {
        let class = class_of_connecting(&causes);
        let failure = Failure::new(class, format!("no connection to {host}: {words}"));
        return Outcome::NotExecuted(match no_such_name(&causes) {
            true => failure.of_no_such_name(),
            false => failure,
        });
    }
    let garbled = causes.iter().any(|cause| {
        let hyper = cause.downcast_ref::<hyper::Error>();
        hyper.is_some_and(hyper::Error::is_parse)
    });
    let class = match garbled {
        true => FailureClass::Protocol,
        false => FailureClass::ConnectionLost,
    };
    Outcome::Unknown(Failure::new(
        class,
        format!("no answer from {host}: {words}"),
    ))
}

/// The outcome of an attempt whose time ran out before an answer began.
pub(super) fn outcome_of_timeout(host: &str, timeout: Duration) -> Outcome {
    Outcome::Unknown(Failure::new(
        FailureClass::Timeout,
        format!("no answer from {host} within {timeout:?}"),
    ))
}

/// The outcome of an attempt for which there was no credential: nothing was sent.
pub(super) fn outcome_of_no_token(error: &NoToken) -> Outcome {
    Outcome::NotExecuted(error.failure())
}

/// The outcome of an address that may not be reached.
pub(super) fn outcome_of_denial(host: &str, denied: Denied) -> Outcome {
    Outcome::NotExecuted(Failure::new(
        FailureClass::BlockedAddress,
        format!("{host} may not be reached: {denied}"),
    ))
}

/// A name that could not be resolved; tells this apart from a connection that failed.
#[derive(Debug, thiserror::Error)]
#[error("name not resolved: {0}")]
pub(super) struct Unresolved(pub(super) io::Error);

/// What was in the way of a connection.
fn class_of_connecting(causes: &[&(dyn Error + 'static)]) -> FailureClass {
    let of_one = |cause: &&(dyn Error + 'static)| {
        if cause.is::<Denied>() {
            return Some(FailureClass::BlockedAddress);
        }
        if cause.is::<Unresolved>() {
            return Some(FailureClass::Dns);
        }
        match cause.downcast_ref::<rustls::Error>()? {
            rustls::Error::InvalidCertificate(_) => Some(FailureClass::Certificate),
            _ => Some(FailureClass::Tls),
        }
    };
    let known = causes.iter().find_map(of_one);
    known.unwrap_or(FailureClass::Connect)
}

/// Whether the system's resolver was told that there is no such name. It has only words for that: glibc's for a
/// name that is not known and one without addresses, and musl's.
fn no_such_name(causes: &[&(dyn Error + 'static)]) -> bool {
    const WORDS: [&str; 3] = [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
    ];
    let unresolved = causes
        .iter()
        .find_map(|cause| cause.downcast_ref::<Unresolved>());
    unresolved.is_some_and(|Unresolved(error)| {
        let words = error.to_string();
        WORDS.iter().any(|known| words.contains(known))
    })
}

/// The errors within, outermost first. An IO error shows what it wraps to `get_ref` only.
fn causes_of(error: &dyn Error) -> Vec<&(dyn Error + 'static)> {
    let mut causes = Vec::new();
    let mut next: Option<&(dyn Error + 'static)> = error.source();
    while let Some(cause) = next {
        causes.push(cause);
        let wrapped = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        next = match wrapped {
            Some(inner) => Some(inner),
            None => cause.source(),
        };
    }
    causes
}

/// The innermost error's own words: those around it repeat them, and the outermost names the URL.
fn words_of(causes: &[&(dyn Error + 'static)]) -> String {
    let innermost = causes.last();
    innermost.map_or_else(|| "no cause given".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some client's error around a cause, as deep as clients nest them.
    #[derive(Debug, thiserror::Error)]
    #[error("client error")]
    struct Client(#[source] io::Error);

    #[test]
    fn a_cause_is_found_however_deep_it_lies() {
        use rustls::{AlertDescription, CertificateError};
        let certificate = rustls::Error::InvalidCertificate(CertificateError::Expired);
        let handshake = rustls::Error::AlertReceived(AlertDescription::HandshakeFailure);
        let denied = Denied::NotPublic([127, 0, 0, 1].into());
        let no_name = Unresolved(io::Error::other("no such name"));
        for (cause, class) in [
            (io::Error::other(certificate), FailureClass::Certificate),
            (io::Error::other(handshake), FailureClass::Tls),
            (io::Error::other(denied), FailureClass::BlockedAddress),
            (io::Error::other(no_name), FailureClass::Dns),
            (
                io::Error::from(io::ErrorKind::ConnectionRefused),
                FailureClass::Connect,
            ),
            (
                io::Error::from(io::ErrorKind::TimedOut),
                FailureClass::Connect,
            ),
        ] {
            let error = Client(io::Error::other(Client(cause)));
            assert_eq!(class_of_connecting(&causes_of(&error)), class, "{error:?}");
        }
    }

    #[test]
    fn only_a_resolver_that_was_told_so_says_that_a_name_does_not_exist() {
        let told = |words: &str| {
            let error = Client(io::Error::other(Unresolved(io::Error::other(
                words.to_owned(),
            ))));
            no_such_name(&causes_of(&error))
        };
        let failed = "failed to lookup address information";
        assert!(told(&format!("{failed}: Name or service not known")));
        assert!(told(&format!(
            "{failed}: No address associated with hostname"
        )));
        assert!(told(&format!("{failed}: Name does not resolve")));
        assert!(!told(&format!(
            "{failed}: Temporary failure in name resolution"
        )));
        assert!(!told("timed out"));
        let other = Client(io::Error::other("Name or service not known"));
        assert!(!no_such_name(&causes_of(&other)), "not from a resolver");
    }

    /// The whole table: every status there is, by ranges.
    #[test]
    fn each_status_has_its_outcome_and_class() {
        use FailureClass as Class;
        use OutcomeKind::{Delivered, NotExecuted, Refused, Unknown};
        let wait = Some(Duration::from_secs(3));
        let all = |ranges: &[(u16, u16)]| -> Vec<u16> {
            ranges.iter().flat_map(|(a, b)| *a..=*b).collect()
        };
        let mut seen = std::collections::BTreeSet::new();
        for (codes, retry_after, kind, class) in [
            (all(&[(200, 299)]), None, Delivered, Class::Unclassified),
            (all(&[(300, 399)]), None, Refused, Class::Redirected),
            (vec![401, 402, 403, 407, 511], None, Refused, Class::Auth),
            (vec![404], None, Refused, Class::NotFound),
            (vec![408], None, Unknown, Class::Timeout),
            (vec![409, 423, 424], wait, Refused, Class::Conflict),
            (vec![410], None, Refused, Class::Gone),
            (vec![413, 414, 431], None, Refused, Class::TooLarge),
            (vec![421, 425], None, NotExecuted, Class::Unavailable),
            (vec![429], wait, NotExecuted, Class::Throttled),
            (vec![503], None, Unknown, Class::Unavailable),
            (vec![503], wait, NotExecuted, Class::Unavailable),
            (vec![501, 505], None, Refused, Class::Invalid),
            (
                all(&[(500, 500), (502, 502), (504, 504), (506, 510), (512, 599)]),
                wait,
                Unknown,
                Class::Unavailable,
            ),
            (
                all(&[
                    (400, 400),
                    (405, 406),
                    (411, 412),
                    (415, 420),
                    (422, 422),
                    (426, 428),
                    (430, 430),
                    (432, 499),
                ]),
                None,
                Refused,
                Class::Invalid,
            ),
            (
                all(&[(100, 199), (600, 999)]),
                None,
                Unknown,
                Class::Protocol,
            ),
        ] {
            for code in codes {
                seen.insert(code);
                let status = StatusCode::from_u16(code).unwrap();
                let outcome = outcome_of_status("shop.example", status, retry_after);
                assert_eq!(outcome.kind(), kind, "{code}");
                if let Some(failure) = outcome.failure() {
                    assert_eq!(failure.class, class, "{code}");
                    assert_eq!(failure.status, Some(i32::from(code)));
                    assert!(failure.reason.contains("shop.example"));
                    assert_eq!(failure.retry_after, retry_after);
                }
            }
        }
        assert_eq!(seen.len(), 900, "the table says something of every status");
    }
}
