//! An access token as an authorization server gives it (RFC 6749 section 5), and how long it is used.

use std::time::Duration;

use http::HeaderValue;
use serde::Deserialize;
use serde_json::Value as Json;

/// How long a token is used whose lifetime the server does not tell; a shorter one is found out by the 401 that
/// it gets.
const LIFETIME_UNTOLD: Duration = Duration::from_secs(3600);

/// How long before its end a token is no longer used, so that it does not end on the way. Of a
/// shorter lifetime at most half.
const MARGIN: Duration = Duration::from_secs(30);

/// Longest lifetime that is believed: one that is longer is fetched anew then.
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a server gave.
#[derive(Debug)]
pub(super) struct Token {
    /// The header's value, marked sensitive.
    pub(super) header: HeaderValue,
    /// How long it is used from when it was asked for.
    pub(super) used_for: Duration,
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    token_type: Option<String>,
    /// A number, and at some servers the same as a text.
    expires_in: Option<Json>,
}

/// The token of an answer that confirms one.
///
/// # Errors
/// What was expected; never what was there.
pub(super) fn token_of(body: &[u8]) -> Result<Token, &'static str> {
    let answer: Answer =
        serde_json::from_slice(body).map_err(|_| "expected a JSON object with access_token")?;
    let bearer = answer
        .token_type
        .is_none_or(|kind| kind.eq_ignore_ascii_case("bearer"));
    if !bearer {
        return Err("expected token_type Bearer");
    }
    let plain = |byte: u8| byte.is_ascii_graphic();
    if answer.access_token.is_empty() || !answer.access_token.bytes().all(plain) {
        return Err("expected an access_token of visible ASCII characters");
    }
    let mut header = HeaderValue::from_str(&format!("Bearer {}", answer.access_token))
        .map_err(|_| "expected an access_token that a header can hold")?;
    header.set_sensitive(true);
    let lifetime = answer.expires_in.as_ref().and_then(seconds_of);
    Ok(Token {
        header,
        used_for: used_for(lifetime),
    })
}

fn seconds_of(value: &Json) -> Option<Duration> {
    let seconds = match value {
        Json::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    seconds.map(Duration::from_secs)
}

fn used_for(lifetime: Option<Duration>) -> Duration {
    let lifetime = lifetime.unwrap_or(LIFETIME_UNTOLD).min(LIFETIME_MAX);
    lifetime.saturating_sub(MARGIN.min(lifetime / 2))
}

/// The error code of an answer that refuses one, where it is one (RFC 6749 section 5.2): it tells an
/// operator what to mend, and is never the server's free text.
pub(super) fn error_of(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
    }
    let Refusal { error } = serde_json::from_slice(body).ok()?;
    let is_code = (1..=40).contains(&error.len())
        && error
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_code.then_some(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_used_until_shortly_before_its_end() {
        for (answer, seconds) in [
            (
                r#"{"access_token":"a","token_type":"Bearer","expires_in":3600}"#,
                3570,
            ),
            (
                r#"{"access_token":"a","token_type":"bearer","expires_in":"300"}"#,
                270,
            ),
            (r#"{"access_token":"a","expires_in":20}"#, 10),
            (r#"{"access_token":"a","expires_in":0}"#, 0),
            (r#"{"access_token":"a"}"#, 3570),
            (r#"{"access_token":"a","expires_in":-5}"#, 3570),
            (
                r#"{"access_token":"a","expires_in":18446744073709551615}"#,
                86370,
            ),
        ] {
            let token = token_of(answer.as_bytes()).unwrap();
            assert_eq!(token.used_for, Duration::from_secs(seconds), "{answer}");
            assert_eq!(token.header, "Bearer a");
            assert!(token.header.is_sensitive());
        }
    }

    #[test]
    fn what_is_no_token_is_told_and_never_shown() {
        for (answer, expected) in [
            ("<html>", "expected a JSON object with access_token"),
            (
                r#"{"token":"hunter2"}"#,
                "expected a JSON object with access_token",
            ),
            (
                r#"{"access_token":"hunter2","token_type":"mac"}"#,
                "expected token_type Bearer",
            ),
            (
                r#"{"access_token":""}"#,
                "expected an access_token of visible ASCII characters",
            ),
            (
                r#"{"access_token":"hunter2\r\nx: y"}"#,
                "expected an access_token of visible ASCII characters",
            ),
        ] {
            assert_eq!(token_of(answer.as_bytes()).unwrap_err(), expected);
        }
    }

    #[test]
    fn only_a_code_is_told_of_a_refusal() {
        for (answer, expected) in [
            (
                r#"{"error":"invalid_client","error_description":"hunter2"}"#,
                Some("invalid_client"),
            ),
            (r#"{"error":"Secret hunter2 is wrong"}"#, None),
            (r#"{"error":{"code":1}}"#, None),
            ("", None),
        ] {
            assert_eq!(error_of(answer.as_bytes()).as_deref(), expected);
        }
    }
}
