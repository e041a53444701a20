//! One table of the configuration while it is read. Every key that is asked for is remembered with its
//! value and origin; what nobody asked for is an unknown key. Reading goes on after a problem, so that
//! all of them are told at once.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;

use serde_json::Value as Json;

use crate::config::environment::Environment;
use crate::config::problem::{Origin, Problem};
use crate::config::quantity::Size;
use crate::config::secret::Secret;
use crate::config::setting::{Faults, Setting, text_of};
use crate::config::tree::{Node, Table, Value, dotted, inline, join};

/// Longest secret, in bytes: private keys are the longest that anybody configures.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// What reading has found so far.
#[derive(Debug)]
pub(crate) struct Reading<'e> {
    environment: &'e Environment,
    /// What is wrong.
    pub(crate) problems: Vec<Problem>,
    /// Every value that was asked for, in the order of asking.
    pub(crate) values: Vec<ShownValue>,
}

/// A value in force, to be shown.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownValue {
    /// Path of its key.
    pub key: String,
    /// The value as the file would write it; secrets are left out.
    pub value: Json,
    /// Where it came from.
    pub origin: Origin,
    /// What it stands for, where `value` does not show all of it: the content of secrets and files.
    pub content: Option<Secret>,
}

/// A text, or a secret that the configuration refers to.
pub(crate) enum TextOrSecret {
    /// Written in the configuration.
    Text(String),
    /// From the environment or a file.
    Secret(Secret),
}

impl TextOrSecret {
    /// The text itself.
    pub(crate) fn expose(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Secret(secret) => secret.expose(),
        }
    }
}

/// A table that is being read.
pub(crate) struct Section<'t, 'r, 'e> {
    reading: &'r mut Reading<'e>,
    path: String,
    origin: Origin,
    table: Option<&'t Table>,
    asked: Vec<String>,
}

impl<'e> Reading<'e> {
    pub(crate) fn new(environment: &'e Environment) -> Self {
        Self {
            environment,
            problems: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Reads the whole tree.
    pub(crate) fn whole<R>(
        &mut self,
        origin: Origin,
        table: &Table,
        read: impl FnOnce(&mut Section<'_, '_, 'e>) -> R,
    ) -> R {
        read_section(self, String::new(), origin, Some(table), read)
    }
}

fn read_section<'t, 'e, R>(
    reading: &mut Reading<'e>,
    path: String,
    origin: Origin,
    table: Option<&'t Table>,
    read: impl FnOnce(&mut Section<'t, '_, 'e>) -> R,
) -> R {
    let mut section = Section {
        reading,
        path,
        origin,
        table,
        asked: Vec::new(),
    };
    let result = read(&mut section);
    section.refuse_unknown();
    result
}

impl<'t, 'e> Section<'t, '_, 'e> {
    /// The value, or its default.
    pub(crate) fn get<T: Setting>(&mut self, key: &str, default: T) -> T {
        match self.read(key) {
            Ok(value) => value,
            Err(Absent::Invalid) => default,
            Err(Absent::Unset) => {
                self.show(key, default.show(), Origin::Default);
                default
            }
        }
    }

    /// The value, or its default, where both lie between two bounds.
    pub(crate) fn within<T: Setting + PartialOrd>(
        &mut self,
        key: &str,
        default: T,
        min: T,
        max: T,
    ) -> T {
        let value = self.get(key, default);
        if value < min || value > max {
            let (min, max) = (min.show(), max.show());
            self.problem(
                key,
                format!("expected between {min} and {max}, not {}", value.show()),
            );
        }
        value
    }

    /// The value, where it is set.
    pub(crate) fn find<T: Setting>(&mut self, key: &str) -> Option<T> {
        self.read(key).ok()
    }

    /// The value, which has no default; `None` only with a problem noted.
    pub(crate) fn require<T: Setting>(&mut self, key: &str, example: &str) -> Option<T> {
        match self.read(key) {
            Ok(value) => Some(value),
            Err(Absent::Invalid) => None,
            Err(Absent::Unset) => {
                self.problem_at(self.origin.clone(), key, "expected a value".to_owned());
                self.suggest(format!("{key} = {example}"));
                None
            }
        }
    }

    /// A text or a secret, where it is set: `"text"`, `{ env = "NAME" }` or `{ file = "PATH" }`. A
    /// text may be a credential too: `show` says what of it can be shown.
    pub(crate) fn find_secret(
        &mut self,
        key: &str,
        show: impl Fn(&str) -> String,
    ) -> Option<TextOrSecret> {
        let node = self.node(key)?;
        let origin = node.origin.clone();
        match self.reading.secret_of(node) {
            Ok((value, reference)) => {
                let shown = match (&value, reference) {
                    (_, Some(reference)) => reference,
                    (TextOrSecret::Text(text), None) => show(text).into(),
                    (TextOrSecret::Secret(_), None) => Json::Null,
                };
                self.show_part(key, shown, origin, value.expose());
                Some(value)
            }
            Err(message) => {
                self.problem_at(origin, key, message);
                None
            }
        }
    }

    /// A list of secrets, each by reference; empty where it is absent. `parse` makes of each what it is
    /// for; its words must not hold the secret.
    pub(crate) fn secrets<T, E: Display>(
        &mut self,
        key: &str,
        max: usize,
        parse: impl Fn(&Secret) -> Result<T, E>,
    ) -> Vec<T> {
        let Some(node) = self.node(key) else {
            self.show(key, Json::Array(Vec::new()), Origin::Default);
            return Vec::new();
        };
        let inline = match &node.value {
            Value::Untyped(text) => inline(text, &node.origin),
            _ => None,
        };
        let Value::List(elements) = inline.as_ref().unwrap_or(&node.value) else {
            self.problem(
                key,
                "expected a list of { env = \"NAME\" } or { file = \"PATH\" }",
            );
            return Vec::new();
        };
        if elements.len() > max {
            self.problem(
                key,
                format!("expected at most {max}, not {}", elements.len()),
            );
        }
        let mut shown = Vec::new();
        let mut contents = Vec::new();
        let mut parsed = Vec::new();
        for (index, element) in elements.iter().take(max).enumerate() {
            let read = match self.reading.secret_of(element) {
                Ok((TextOrSecret::Secret(secret), Some(reference))) => {
                    shown.push(reference);
                    contents.push(secret.expose().to_owned());
                    parse(&secret).map_err(|error| error.to_string())
                }
                Ok(_) => Err("expected { env = \"NAME\" } or { file = \"PATH\" }".to_owned()),
                Err(message) => Err(message),
            };
            match read {
                Ok(value) => parsed.push(value),
                Err(message) => {
                    self.problem_at(element.origin.clone(), &format!("{key}[{index}]"), message);
                }
            }
        }
        // How many there are is shown; what is hidden is compared as one text.
        let content = contents.join("\n\n");
        self.show_part(key, Json::Array(shown), node.origin.clone(), &content);
        parsed
    }

    /// A secret, where it is set. A text is refused: the file may be read by people who may not know it.
    pub(crate) fn find_reference(&mut self, key: &str) -> Option<Secret> {
        match self.find_secret(key, |_| "[redacted]".to_owned())? {
            TextOrSecret::Secret(secret) => Some(secret),
            TextOrSecret::Text(_) => {
                self.problem(key, "expected { env = \"NAME\" } or { file = \"PATH\" }");
                None
            }
        }
    }

    /// A secret, which has no default; `None` only with a problem noted.
    pub(crate) fn require_reference(&mut self, key: &str) -> Option<Secret> {
        if self.has(key) {
            return self.find_reference(key);
        }
        self.require::<String>(key, "{ env = \"NAME\" }").and(None)
    }

    /// A table below this one; empty where it is absent.
    pub(crate) fn table<R>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Section<'t, '_, 'e>) -> R,
    ) -> R {
        let node = self.node(key);
        let table = node.and_then(|node| match &node.value {
            Value::Table(table) => Some(table),
            other => {
                let message = format!("expected a table, not {}", other.kind());
                self.problem_at(node.origin.clone(), key, message);
                None
            }
        });
        let origin = node.map_or_else(|| self.origin.clone(), |node| node.origin.clone());
        read_section(self.reading, join(&self.path, key), origin, table, read)
    }

    /// This table, with the tables below `keys` read as keys with dots (`tree::dotted`).
    pub(crate) fn dotted<R>(
        &mut self,
        keys: &[&str],
        read: impl FnOnce(&mut Section<'_, '_, 'e>) -> R,
    ) -> R {
        self.keys();
        let flat = self.table.map(|table| dotted(table, keys));
        let (path, origin) = (self.path.clone(), self.origin.clone());
        read_section(self.reading, path, origin, flat.as_ref(), read)
    }

    /// A number of bytes between two bounds.
    pub(crate) fn bytes_within(&mut self, key: &str, default: u64, min: u64, max: u64) -> u64 {
        self.within(key, Size(default), Size(min), Size(max)).0
    }

    /// A list of tables below this one, written `[[key]]`; empty where it is absent.
    pub(crate) fn tables<R>(
        &mut self,
        key: &str,
        max: usize,
        mut read: impl FnMut(&mut Section<'t, '_, 'e>) -> R,
    ) -> Vec<R> {
        let Some(node) = self.node(key) else {
            return Vec::new();
        };
        let Value::List(elements) = &node.value else {
            let message = format!("expected [[{key}]], not {}", node.value.kind());
            self.problem_at(node.origin.clone(), key, message);
            return Vec::new();
        };
        if elements.len() > max {
            self.problem(
                key,
                format!("expected at most {max}, not {}", elements.len()),
            );
        }
        let mut results = Vec::new();
        for (index, element) in elements.iter().take(max).enumerate() {
            let key = format!("{key}[{index}]");
            let Value::Table(table) = &element.value else {
                let message = format!("expected a table, not {}", element.value.kind());
                self.problem_at(element.origin.clone(), &key, message);
                continue;
            };
            let path = join(&self.path, &key);
            let origin = element.origin.clone();
            results.push(read_section(
                self.reading,
                path,
                origin,
                Some(table),
                &mut read,
            ));
        }
        results
    }

    /// The keys that are set, where they are names and not settings: none of them is unknown, also where there
    /// are more of them than are read.
    pub(crate) fn keys(&mut self) -> Vec<String> {
        let keys = self.table.map(|table| table.keys().cloned());
        let keys: Vec<_> = keys.into_iter().flatten().collect();
        self.asked.extend(keys.iter().cloned());
        keys
    }

    /// Whether a key is set at all.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Whether a key is set to a table.
    pub(crate) fn is_table(&self, key: &str) -> bool {
        let node = self.table.and_then(|table| table.get(key));
        node.is_some_and(|node| matches!(node.value, Value::Table(_)))
    }

    /// How many cores the process has.
    pub(crate) fn cores(&self) -> usize {
        self.reading.environment.cores()
    }

    /// A path that a key's value names, relative to the file that holds it.
    pub(crate) fn resolve(&self, key: &str, path: &str) -> std::path::PathBuf {
        let set = self.table.and_then(|table| table.get(key));
        set.map_or(&self.origin, |node| &node.origin).resolve(path)
    }

    /// Path of this table.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Notes a value that is made of others.
    pub(crate) fn show(&mut self, key: &str, value: Json, origin: Origin) {
        self.reading.values.push(ShownValue {
            key: join(&self.path, key),
            value,
            origin,
            content: None,
        });
    }

    /// Notes a value of which only a part may be shown.
    fn show_part(&mut self, key: &str, value: Json, origin: Origin, content: &str) {
        self.reading.values.push(ShownValue {
            key: join(&self.path, key),
            value,
            origin,
            content: Some(Secret::new(content)),
        });
    }

    /// Notes that a key's value does not do.
    pub(crate) fn problem(&mut self, key: &str, message: impl Into<String>) {
        let set = self.table.and_then(|table| table.get(key));
        let origin = set.map_or_else(|| self.origin.clone(), |node| node.origin.clone());
        self.problem_at(origin, key, message.into());
    }

    /// Adds to the newest problem the line that solves it.
    pub(crate) fn suggest(&mut self, line: String) {
        if let Some(problem) = self.reading.problems.last_mut() {
            problem.add = Some(line);
        }
    }

    fn problem_at(&mut self, origin: Origin, key: &str, message: String) {
        let key = if key.is_empty() {
            self.path.clone()
        } else {
            join(&self.path, key)
        };
        self.reading.problems.push(Problem {
            origin,
            key,
            message,
            add: None,
        });
    }

    fn node(&mut self, key: &str) -> Option<&'t Node> {
        self.asked.push(key.to_owned());
        self.table.and_then(|table| table.get(key))
    }

    fn read<T: Setting>(&mut self, key: &str) -> Result<T, Absent> {
        let node = self.node(key).ok_or(Absent::Unset)?;
        match T::read(node) {
            Ok(value) => {
                self.show(key, value.show(), node.origin.clone());
                Ok(value)
            }
            Err(Faults(faults)) => {
                for fault in faults {
                    let (key, origin) = match fault.element {
                        Some((index, origin)) => (format!("{key}[{index}]"), origin),
                        None => (key.to_owned(), node.origin.clone()),
                    };
                    self.problem_at(origin, &key, fault.message);
                }
                Err(Absent::Invalid)
            }
        }
    }

    fn refuse_unknown(&mut self) {
        let Some(table) = self.table else {
            return;
        };
        for (key, node) in table {
            if self.asked.contains(key) {
                continue;
            }
            let message = format!("unknown key; expected {}", self.asked.join(", "));
            self.problem_at(node.origin.clone(), key, message);
        }
    }
}

/// Why there is no value.
enum Absent {
    Unset,
    /// The problem is noted.
    Invalid,
}

impl Reading<'_> {
    /// The text or secret, and the reference that led to it.
    fn secret_of(&self, node: &Node) -> Result<(TextOrSecret, Option<Json>), String> {
        let expected = "expected a text, { env = \"NAME\" } or { file = \"PATH\" }";
        let parsed = match &node.value {
            Value::Untyped(text) => inline(text, &node.origin),
            _ => None,
        };
        let Value::Table(table) = parsed.as_ref().unwrap_or(&node.value) else {
            let text = text_of(node).ok_or_else(|| expected.to_owned())?;
            return Ok((TextOrSecret::Text(text.to_owned()), None));
        };
        let mut entries = table.iter();
        let (Some((key, reference)), None) = (entries.next(), entries.next()) else {
            return Err(expected.to_owned());
        };
        let name = text_of(reference).ok_or_else(|| expected.to_owned())?;
        let secret = match key.as_str() {
            "env" => {
                let secret = self.environment.get(name).map(str::to_owned);
                secret.ok_or_else(|| format!("expected environment variable {name:?} to be set"))?
            }
            "file" => {
                let path = node.origin.resolve(name);
                read_secret(&path).map_err(|error| format!("{}: {error}", path.display()))?
            }
            _ => return Err(expected.to_owned()),
        };
        if secret.is_empty() {
            return Err("expected a secret that is not empty".to_owned());
        }
        let reference = serde_json::json!({ key: name });
        Ok((TextOrSecret::Secret(Secret::new(&secret)), Some(reference)))
    }
}

/// A secret's file, without the newline that editors leave at its end.
fn read_secret(path: &std::path::Path) -> Result<String, std::io::Error> {
    let mut text = String::new();
    let read = File::open(path)?
        .take(SECRET_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > SECRET_BYTES_MAX {
        return Err(std::io::Error::other(format!(
            "expected at most {SECRET_BYTES_MAX} bytes"
        )));
    }
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    Ok(text)
}
