//! The page as text. What came from outside stands behind its name, indented, with every character written out that a terminal
//! would obey, so that no payload can look like a line of the page.

use std::fmt::Write as _;

use super::collect::Evidence;
use crate::cli::output::printable;

/// The page.
pub fn text(evidence: &Evidence) -> String {
    let mut page = String::new();
    let mut line = |text: &str| {
        page.push_str(text);
        page.push('\n');
    };
    line(&format!("command {}", printable(&evidence.command)));
    for section in &evidence.sections {
        line("");
        line(section.title);
        for entry in &section.entries {
            line(&format!(
                "  {} {} by {} (record {})",
                printable(&entry.at),
                printable(&entry.kind),
                printable(&entry.actor),
                entry.idx
            ));
            for field in &entry.fields {
                let mut lines = field.text.split('\n').map(printable);
                let first = lines.next().unwrap_or_default();
                line(&format!("    {}: {first}", printable(&field.name)));
                for more in lines {
                    line(&format!("      {more}"));
                }
            }
        }
    }
    line("");
    if evidence.has_more {
        line("there are more records of it; `wayhold ledger show --command` lists them all");
    }
    line(&proven(evidence));
    page
}

/// What the page's words rest on.
pub(super) fn proven(evidence: &Evidence) -> String {
    let mut words = match &evidence.checkpoint {
        None => "no checkpoint is signed yet, so nothing of this is proven".to_owned(),
        Some(_) => format!(
            "records below {} are covered by the newest signed checkpoint",
            evidence.proven
        ),
    };
    let last = evidence
        .sections
        .iter()
        .flat_map(|section| &section.entries);
    if let Some(last) = last.map(|entry| entry.idx).max() {
        write!(
            words,
            "; `wayhold ledger export` and `verify` prove them; the last one here is record {last}"
        )
        .ok();
    }
    words
}
