//! `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers): what is left of each quota and when
//! it is filled again, and how many each allows in which time. A field that is not as the draft has it is as if
//! it were not there.

use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use sfv::{BareItem, List, ListEntry, Parser};
use wayhold_model::quota::{Quota, Stands};

const FIELD: &str = "ratelimit";
const POLICY_FIELD: &str = "ratelimit-policy";

/// How long until every quota that is used up is filled again; `None` where none is.
pub(super) fn until_filled(headers: &HeaderMap) -> Option<Duration> {
    let filled = |quota: Quota| match quota.stands {
        Stands::Left {
            requests: 0,
            filled_in,
        } => Some(filled_in),
        Stands::Left { .. } | Stands::Allows { .. } => None,
    };
    what_is_left(headers).into_iter().filter_map(filled).max()
}

/// How every quota of requests stands. `Retry-After` stands before all of them.
pub(super) fn quotas_of(headers: &HeaderMap) -> Vec<Quota> {
    if headers.contains_key(RETRY_AFTER) {
        return Vec::new();
    }
    let mut quotas = what_is_left(headers);
    for policy in list_of(headers, POLICY_FIELD) {
        let Some(policy) = Policy::read(&policy) else {
            continue;
        };
        if !policy.counts_requests {
            // Bytes, or requests at a time: nothing of that is known here.
            quotas.retain(|quota| quota.name != policy.name);
        } else if let Some(allows) = policy.allows
            && !quotas.iter().any(|quota| quota.name == policy.name)
        {
            quotas.push(Quota {
                name: policy.name,
                stands: allows,
            });
        }
    }
    quotas
}

fn what_is_left(headers: &HeaderMap) -> Vec<Quota> {
    list_of(headers, FIELD).iter().filter_map(left_of).collect()
}

fn list_of(headers: &HeaderMap, field: &str) -> List {
    let lines: Vec<&[u8]> = headers
        .get_all(field)
        .iter()
        .map(http::HeaderValue::as_bytes)
        .collect();
    if lines.is_empty() {
        return List::new();
    }
    Parser::new(&lines.join(&b","[..]))
        .parse()
        .unwrap_or_default()
}

/// Of one quota, `"name";r=5;t=30`.
fn left_of(quota: &ListEntry) -> Option<Quota> {
    Some(Quota {
        name: name_of(quota)?,
        stands: Stands::Left {
            requests: number_of(quota, "r")?,
            filled_in: Duration::from_secs(number_of(quota, "t")?),
        },
    })
}

/// One policy, `"name";q=100;w=60;qu="requests"`.
struct Policy {
    name: String,
    counts_requests: bool,
    allows: Option<Stands>,
}

impl Policy {
    fn read(policy: &ListEntry) -> Option<Self> {
        let ListEntry::Item(item) = policy else {
            return None;
        };
        let unit = item.params.get("qu").map(BareItem::as_string);
        let allows = || {
            let window = Duration::from_secs(number_of(policy, "w").filter(|secs| *secs > 0)?);
            let requests = number_of(policy, "q").filter(|requests| *requests > 0)?;
            Some(Stands::Allows { requests, window })
        };
        Some(Self {
            name: name_of(policy)?,
            counts_requests: unit
                .is_none_or(|unit| unit.is_some_and(|unit| unit.as_str() == "requests")),
            allows: allows(),
        })
    }
}

fn name_of(entry: &ListEntry) -> Option<String> {
    let ListEntry::Item(item) = entry else {
        return None;
    };
    item.bare_item
        .as_string()
        .map(|name| name.as_str().to_owned())
}

fn number_of(entry: &ListEntry, name: &str) -> Option<u64> {
    let ListEntry::Item(item) = entry else {
        return None;
    };
    let value = item.params.get(name).and_then(BareItem::as_integer)?;
    u64::try_from(i64::from(value)).ok()
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

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

    /// What an answer with these fields says, as `name left/seconds` or `name quota per seconds`.
    fn told(fields: &[(&'static str, &'static str)]) -> Vec<String> {
        let field = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        let headers: HeaderMap = fields.iter().map(field).collect();
        let told = |quota: Quota| match quota.stands {
            Stands::Left {
                requests,
                filled_in,
            } => format!("{} {requests}/{}", quota.name, filled_in.as_secs()),
            Stands::Allows { requests, window } => {
                format!("{} {requests} per {}", quota.name, window.as_secs())
            }
        };
        quotas_of(&headers).into_iter().map(told).collect()
    }

    #[test]
    fn what_is_left_stands_before_what_a_policy_allows_and_only_requests_count() {
        let left = (FIELD, r#""burst";r=50;t=30"#);
        let policy = (POLICY_FIELD, r#""burst";q=100;w=60,"daily";q=1000;w=86400"#);
        assert_eq!(told(&[left]), ["burst 50/30"]);
        assert_eq!(
            told(&[policy]),
            ["burst 100 per 60", "daily 1000 per 86400"]
        );
        assert_eq!(
            told(&[left, policy]),
            ["burst 50/30", "daily 1000 per 86400"]
        );
        assert_eq!(
            told(&[left, policy, ("retry-after", "5")]),
            Vec::<String>::new()
        );
        let bytes = (POLICY_FIELD, r#""burst";q=9;w=1;qu="content-bytes""#);
        assert_eq!(told(&[left, bytes]), Vec::<String>::new());
        let requests = (POLICY_FIELD, r#""b";q=9;w=1;qu="requests""#);
        assert_eq!(told(&[requests]), ["b 9 per 1"]);
        for broken in [
            r#""b";q=0;w=60"#,
            r#""b";q=9;w=0"#,
            r#""b";q=9"#,
            "b;q=9;w=1",
            "9",
        ] {
            assert_eq!(
                told(&[(POLICY_FIELD, broken)]),
                Vec::<String>::new(),
                "{broken}"
            );
        }
    }
}
