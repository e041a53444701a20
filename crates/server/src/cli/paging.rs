//! Lists of any length: page after page, until there is as much as was asked for.

use serde_json::Value;

use super::client::{Client, with_query};
use super::exit::Failure;
use super::output::{Output, items};

/// Items asked for at once: as many as the server gives on one page.
const PAGE: &str = "100";

/// The first items of a list.
#[derive(Debug)]
pub struct Few {
    /// At most as many as were asked for.
    pub items: Vec<Value>,
    /// Where the next page of the server begins, where there is one.
    pub next: Option<String>,
    more: bool,
}

impl Few {
    /// Says that there are more, where there are.
    pub fn note_more(&self, limit: usize, output: &mut Output) {
        if self.more {
            output.note(format!("there are more than {limit}; --limit shows them"));
        }
    }
}

/// Follows the cursor of a list until `limit` items are there.
///
/// # Errors
/// When no server answers or it refuses.
pub async fn follow(
    client: &mut Client,
    path: &str,
    parameters: &[(&str, &str)],
    limit: usize,
) -> Result<Few, Failure> {
    let (mut all, mut next): (Vec<Value>, Option<String>) = (Vec::new(), None);
    loop {
        let mut query = vec![("limit", PAGE)];
        query.extend_from_slice(parameters);
        query.extend(next.as_deref().map(|cursor| ("after", cursor)));
        let page = client.get(&with_query(path.to_owned(), &query)).await?;
        all.extend_from_slice(items(&page));
        next = page.get("next").and_then(Value::as_str).map(str::to_owned);
        if all.len() > limit || next.is_none() {
            break;
        }
    }
    let more = next.is_some() || all.len() > limit;
    all.truncate(limit);
    Ok(Few {
        items: all,
        next,
        more,
    })
}
