//! Where a command's words go: results to standard output, everything else to standard error. What
//! came from outside may hold escape sequences, so every line is made harmless on its way out.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use serde_json::Value;

use super::exit::Failure;

/// The two streams of the process.
#[derive(Debug)]
pub struct Output {
    json: bool,
}

impl Output {
    /// Results as JSON, or as lines for a person.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether results are JSON: then `line` is silent and `json` speaks.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// One line of a result for a person.
    pub fn line(&mut self, text: impl AsRef<str>) {
        if !self.json {
            print(std::io::stdout().lock(), &printable(text.as_ref()));
        }
    }

    /// The result for a program: one JSON value, on one line unless somebody looks at it.
    pub fn json(&mut self, value: &Value) {
        if self.json {
            let text = if std::io::stdout().is_terminal() {
                format!("{value:#}")
            } else {
                value.to_string()
            };
            print(std::io::stdout().lock(), &text);
        }
    }

    /// Rows under a heading, in columns as wide as their widest cell.
    pub fn table<const N: usize>(&mut self, heading: [&str; N], rows: &[[String; N]]) {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| row.each_ref().map(|c| printable(c)))
            .collect();
        let mut widths = heading.map(|cell| cell.chars().count());
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        self.line(columns(&heading.map(Cow::Borrowed), &widths));
        for row in &rows {
            self.line(columns(row, &widths));
        }
    }

    /// Every field of an object on its own line; inner objects are indented.
    pub fn fields(&mut self, object: &Value) {
        let mut lines = Vec::new();
        describe(object, 0, &mut lines);
        for line in lines {
            self.line(line);
        }
    }

    /// One line about the work, not part of the result.
    pub fn note(&mut self, text: impl AsRef<str>) {
        print(std::io::stderr().lock(), &printable(text.as_ref()));
    }

    /// Why the command failed.
    pub fn failure(&mut self, failure: &Failure) {
        for (index, line) in failure.message.lines().enumerate() {
            let prefix = if index == 0 { "wayhold: " } else { "  " };
            self.note(format!("{prefix}{line}"));
        }
    }
}

/// The elements of a list answer.
pub fn items(answer: &Value) -> &[Value] {
    answer
        .get("items")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// One field for a person: texts as they are, `-` for what is absent, lists with commas.
pub fn cell(object: &Value, field: &str) -> String {
    object.get(field).map_or_else(|| ABSENT.to_owned(), plain)
}

const ABSENT: &str = "-";

fn plain(value: &Value) -> String {
    match value {
        Value::Null => ABSENT.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

fn describe(value: &Value, depth: usize, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    for (name, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                lines.push(format!("{indent}{name}:"));
                describe(value, depth + 1, lines);
            }
            Value::Array(elements) if elements.iter().any(Value::is_object) => {
                lines.push(format!("{indent}{name}:"));
                for element in elements {
                    lines.push(format!("{indent}  -"));
                    describe(element, depth + 2, lines);
                }
            }
            _ => lines.push(format!("{indent}{name}: {}", plain(value))),
        }
    }
}

fn columns<const N: usize>(cells: &[Cow<'_, str>; N], widths: &[usize; N]) -> String {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        line.push_str(cell);
        // Not `format!`'s padding: it would count bytes of what is no longer one column each.
        let gap = width.saturating_sub(cell.chars().count()) + 2;
        line.extend(std::iter::repeat_n(' ', gap));
    }
    line.truncate(line.trim_end().len());
    line
}

fn print(mut stream: impl Write, line: &str) {
    // A reader that went away (`wayhold status | head -1`) wants no more; there is nobody to tell.
    drop(writeln!(stream, "{line}"));
}

/// The text with everything a terminal would obey (controls, escape sequences, marks that reverse the
/// direction of writing) written out as `\u{...}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if obeyed(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

fn obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        assert_eq!(
            printable("order 42 \u{2192} Köln"),
            "order 42 \u{2192} Köln"
        );
        assert_eq!(printable("\u{1b}]0;pwn\u{7}"), "\\u{1b}]0;pwn\\u{7}");
        assert_eq!(
            printable("a\nb\u{202e}c\u{9b}d"),
            "a\\u{a}b\\u{202e}c\\u{9b}d"
        );
    }

    #[test]
    fn cells_line_up_and_lines_end_without_blanks() {
        let widths = [5, 3];
        assert_eq!(columns(&["größe".into(), "x".into()], &widths), "größe  x");
        assert_eq!(columns(&["a".into(), "b".into()], &widths), "a      b");
    }
}
