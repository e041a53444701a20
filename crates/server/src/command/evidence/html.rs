//! The page as one HTML file without anything that is loaded or run. Every text passes through [`escape`].

use std::fmt::Write as _;

use super::collect::{Entry, Evidence};
use super::text::proven;

const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
    <meta http-equiv=\"content-security-policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
    <meta name=\"viewport\" content=\"width=device-width\">\n\
    <style>body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
    table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.15rem .6rem .15rem 0}\
    th{width:14rem;font-weight:600}td{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate}\
    h3{margin-bottom:.2rem}.by{color:#555}pre{overflow-wrap:anywhere;white-space:pre-wrap}</style>\n";

/// The page.
pub fn html(evidence: &Evidence) -> String {
    let command = escape(&evidence.command);
    let mut page = format!("{HEAD}<title>Command {command}</title>\n<h1>Command {command}</h1>\n");
    for section in &evidence.sections {
        writeln!(page, "<h2>{}</h2>", escape(section.title)).ok();
        for entry in &section.entries {
            push_entry(&mut page, entry);
        }
    }
    if evidence.has_more {
        page.push_str("<p>There are more records of it.</p>\n");
    }
    writeln!(
        page,
        "<h2>What proves it</h2>\n<p>{}</p>",
        escape(&proven(evidence))
    )
    .ok();
    if let Some(checkpoint) = &evidence.checkpoint {
        writeln!(page, "<pre>{}</pre>", escape(checkpoint)).ok();
    }
    page.push_str("</html>\n");
    page
}

fn push_entry(page: &mut String, entry: &Entry) {
    writeln!(
        page,
        "<h3>{}</h3>\n<p class=\"by\">{} by {}, record {}, {}</p>\n<table>",
        escape(&entry.kind),
        escape(&entry.at),
        escape(&entry.actor),
        entry.idx,
        escape(&entry.leaf)
    )
    .ok();
    for field in &entry.fields {
        writeln!(
            page,
            "<tr><th>{}</th><td>{}</td></tr>",
            escape(&field.name),
            escape(&field.text)
        )
        .ok();
    }
    page.push_str("</table>\n");
}

/// A text that means itself within an element, whatever it holds.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' => safe.push(c),
            '\t' => safe.push_str("&#9;"),
            // Not allowed in HTML, or obeyed by what shows it.
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}
