//! The trace context that HTTP carries beside an event (W3C Trace Context, level 2). It is stored as
//! the event's creation context when the event brings none; an unreadable one is left out.

use http::HeaderMap;

/// A valid context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    /// `traceparent`.
    pub(crate) parent: String,
    /// `tracestate`, or empty.
    pub(crate) state: String,
}

/// Longest `tracestate` kept; the standard asks to carry at least 512 characters.
const STATE_BYTES_MAX: usize = 512;

/// The context of a request, where it has a valid one.
pub(crate) fn context(headers: &HeaderMap) -> Option<Context> {
    let mut parents = headers.get_all("traceparent").iter();
    let parent = parents.next()?.to_str().ok()?;
    if parents.next().is_some() || !is_traceparent(parent) {
        return None;
    }
    let states: Vec<_> = headers
        .get_all("tracestate")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let state = states.join(",");
    let state = if state.len() > STATE_BYTES_MAX {
        String::new()
    } else {
        state
    };
    Some(Context {
        parent: parent.to_owned(),
        state,
    })
}

/// `version-traceid-parentid-flags` in lower-case hex; ids of zeros and version `ff` are invalid, and
/// a later version may continue after a dash.
fn is_traceparent(text: &str) -> bool {
    let hex = |from: usize, to: usize| {
        text.get(from..to).filter(|field| {
            field
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
    };
    let dash = |at: usize| text.as_bytes().get(at) == Some(&b'-');
    let id = |from, to| hex(from, to).is_some_and(|id| id.bytes().any(|byte| byte != b'0'));
    let length = match hex(0, 2) {
        None | Some("ff") => false,
        Some("00") => text.len() == 55,
        Some(_) => text.len() == 55 || dash(55),
    };
    length && dash(2) && id(3, 35) && dash(35) && id(36, 52) && dash(52) && hex(53, 55).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_parents_are_taken() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for (text, taken) in [
            (valid.to_owned(), true),
            (valid.replacen("00", "cc", 1), true),
            (format!("{}-future", valid.replacen("00", "cc", 1)), true),
            (format!("{valid}-more"), false),
            (valid.replacen("00", "ff", 1), false),
            (valid.to_uppercase(), false),
            (format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)), false),
            (
                format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16)),
                false,
            ),
            ("00-abc".to_owned(), false),
            (String::new(), false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", text.parse().unwrap());
            assert_eq!(context(&headers).is_some(), taken, "{text}");
        }
    }
}
