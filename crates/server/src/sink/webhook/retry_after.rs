//! `Retry-After` (RFC 9110 section 10.2.3): seconds, or a date in one of HTTP's three forms; and where there is
//! none, the time of a quota that is used up.

use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use wayhold_model::Timestamp;

use super::rate_limit::until_filled;

/// How long the receiver wants to be left alone. A date that has passed means not at all; what cannot
/// be read is as if it were not there; of several the longest counts. Without any, a quota in `RateLimit` that is
/// used up says it.
pub(in crate::sink) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    headers
        .get_all(RETRY_AFTER)
        .iter()
        .filter_map(|value| parse(value.to_str().ok()?.trim(), now))
        .max()
        .or_else(|| until_filled(headers))
}

fn parse(text: &str, now: Timestamp) -> Option<Duration> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // More seconds than a u64 has are still a wish to wait.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let since_epoch = date.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(since_epoch.saturating_sub(Duration::from_micros(now.as_micros())))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn seconds_and_all_three_date_forms_are_understood_and_garbage_is_ignored() {
        // 1994-11-06T08:49:37Z, the date of RFC 9110's examples, less 60 s.
        let now = Timestamp::from_micros((784_111_777 - 60) * 1_000_000);
        let minute = Some(Duration::from_secs(60));
        for (values, expected) in [
            (&["120"][..], Some(Duration::from_secs(120))),
            (&["0"], Some(Duration::ZERO)),
            (&[" 5 "], Some(Duration::from_secs(5))),
            (&["Sun, 06 Nov 1994 08:49:37 GMT"], minute),
            (&["Sunday, 06-Nov-94 08:49:37 GMT"], minute),
            (&["Sun Nov  6 08:49:37 1994"], minute),
            (&["Sat, 05 Nov 1994 08:49:37 GMT"], Some(Duration::ZERO)),
            (
                &["99999999999999999999999"],
                Some(Duration::from_secs(u64::MAX)),
            ),
            (&["-5"], None),
            (&["1.5"], None),
            (&["soon"], None),
            (&[""], None),
            (&[], None),
            (&["3", "Sun, 06 Nov 1994 08:49:37 GMT"], minute),
            (&["never", "7"], Some(Duration::from_secs(7))),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(RETRY_AFTER, HeaderValue::from_static(value));
            }
            assert_eq!(retry_after(&headers, now), expected, "{values:?}");
        }
    }

    #[test]
    fn a_quota_that_is_used_up_counts_where_nothing_else_is_said() {
        let quota = HeaderValue::from_static(r#""burst";r=0;t=30"#);
        let mut headers = HeaderMap::from_iter([("ratelimit".parse().unwrap(), quota)]);
        let wait = |headers: &HeaderMap| retry_after(headers, Timestamp::EPOCH);
        assert_eq!(wait(&headers), Some(Duration::from_secs(30)));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("40"));
        assert_eq!(wait(&headers), Some(Duration::from_secs(40)));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("soon"));
        assert_eq!(wait(&headers), Some(Duration::from_secs(30)));
    }
}
