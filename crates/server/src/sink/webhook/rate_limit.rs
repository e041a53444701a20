//! `RateLimit` (draft-ietf-httpapi-ratelimit-headers): what is left of each quota, and when it is filled again.

use std::time::Duration;

use http::HeaderMap;
use sfv::{BareItem, List, ListEntry, Parser};

const FIELD: &str = "ratelimit";

/// How long until every quota that is used up is filled again; `None` where none is, or the field is not as the
/// draft has it: then it is as if it were not there.
pub(super) fn until_filled(headers: &HeaderMap) -> Option<Duration> {
    let lines: Vec<&[u8]> = headers
        .get_all(FIELD)
        .iter()
        .map(http::HeaderValue::as_bytes)
        .collect();
    if lines.is_empty() {
        return None;
    }
    let quotas: List = Parser::new(&lines.join(&b","[..])).parse().ok()?;
    quotas.iter().filter_map(time_to_fill).max()
}

/// Of one quota, `"name";r=0;t=30`: its time, where nothing is left.
fn time_to_fill(quota: &ListEntry) -> Option<Duration> {
    let ListEntry::Item(quota) = quota else {
        return None;
    };
    quota.bare_item.as_string()?;
    let number = |name: &str| {
        let value = quota.params.get(name).and_then(BareItem::as_integer)?;
        u64::try_from(i64::from(value)).ok()
    };
    match number("r")? {
        0 => number("t").map(Duration::from_secs),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_quota_that_is_used_up_makes_us_wait_and_the_longest_counts() {
        let secs = |secs| Some(Duration::from_secs(secs));
        for (lines, expected) in [
            (&[r#""burst";r=0;t=30"#][..], secs(30)),
            (&[r#""burst";r=50;t=30"#], None),
            (&[r#""burst";r=0;t=30, "daily";r=0;t=3600"#], secs(3_600)),
            (&[r#""burst";r=0;t=30, "daily";r=7;t=3600"#], secs(30)),
            (&[r#""burst";r=5;t=30"#, r#""daily";r=0;t=60"#], secs(60)),
            (&[r#""burst";pk=:dXNlcg==:;r=0;t=1"#], secs(1)),
            (&[r#""burst";r=0"#], None),
            (&[r#""burst";t=30"#], None),
            (&[r#""burst";r=0;t=-1"#], None),
            (&[r#""burst";r=0;t="30""#], None),
            (&["burst;r=0;t=30"], None),
            // Older forms, and what is none at all.
            (&["limit=10, remaining=0, reset=30"], None),
            (&["0"], None),
            (&[r#""burst";r=0;t=30,"#], None),
            (&[""], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(FIELD, HeaderValue::from_static(line));
            }
            assert_eq!(until_filled(&headers), expected, "{lines:?}");
        }
    }
}
