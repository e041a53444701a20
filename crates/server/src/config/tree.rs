//! The raw configuration: values from files, environment and flags in one tree, each with its origin.
//! What it means is decided where it is read.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::problem::{Origin, Problem};

/// A value and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) origin: Origin,
    pub(crate) value: Value,
}

/// A value as it was written.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Integer(i64),
    Fraction(f64),
    Boolean(bool),
    List(Vec<Node>),
    Table(Table),
    /// Text of an environment variable, which may stand for any scalar, or for a list or table in
    /// TOML's inline form.
    Untyped(String),
    /// Something that no setting takes; the words say what.
    Unusable(&'static str),
}

/// Values by key.
pub(crate) type Table = BTreeMap<String, Node>;

impl Value {
    /// What a person calls it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Untyped(_) => "text",
            Self::Integer(_) => "a number",
            Self::Fraction(_) => "a number with a fraction",
            Self::Boolean(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Unusable(kind) => kind,
        }
    }
}

/// Reads TOML. Every syntax error becomes a problem of its line.
pub(crate) fn parse(path: &Arc<Path>, text: &str) -> Result<Table, Vec<Problem>> {
    let lines = Lines::new(path, text);
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(lines.table(table.get_ref()));
    }
    let problem = |error: toml::de::Error| Problem {
        origin: lines.origin(error.span().map_or(0, |span| span.start)),
        key: String::new(),
        message: error.message().to_owned(),
        add: None,
    };
    Err(errors.into_iter().map(problem).collect())
}

/// Adds what another file says. Tables grow together and lists of tables follow each other; a value
/// that both files set is a problem, since neither file is more important.
pub(crate) fn merge(into: &mut Table, from: Table, path: &str, problems: &mut Vec<Problem>) {
    for (key, node) in from {
        let key_path = join(path, &key);
        match into.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(node);
            }
            Entry::Occupied(mut entry) => {
                let first = entry.get_mut();
                match (&mut first.value, node.value) {
                    (Value::Table(first), Value::Table(second)) => {
                        merge(first, second, &key_path, problems);
                    }
                    (Value::List(first), Value::List(second))
                        if first
                            .iter()
                            .chain(&second)
                            .all(|node| matches!(node.value, Value::Table(_))) =>
                    {
                        first.extend(second);
                    }
                    _ => problems.push(Problem {
                        message: format!("expected it once, but {} sets it too", first.origin),
                        origin: node.origin,
                        key: key_path,
                        add: None,
                    }),
                }
            }
        }
    }
}

/// Sets the value at a path, replacing what was there.
///
/// # Errors
/// Names the first step that cannot be taken.
pub(crate) fn set(table: &mut Table, path: &[String], node: Node) -> Result<(), Problem> {
    let mut table = table;
    let mut taken = String::new();
    let no_table = |key: &str| Problem {
        origin: node.origin.clone(),
        key: key.to_owned(),
        message: "expected a table to set a key in".to_owned(),
        add: None,
    };
    let Some((last, steps)) = path.split_last() else {
        return Err(no_table(""));
    };
    for step in steps {
        taken = join(&taken, step);
        let next = table.entry(step.clone()).or_insert_with(|| Node {
            origin: node.origin.clone(),
            value: Value::Table(Table::new()),
        });
        let Value::Table(next) = &mut next.value else {
            return Err(no_table(&taken));
        };
        table = next;
    }
    table.insert(last.clone(), node);
    Ok(())
}

/// A copy in which the tables below `keys` are keys with dots: `route.by.field = "x"` reads like
/// `"route.by.field" = "x"`, as products name their options that keep them in files of properties.
pub(crate) fn dotted(table: &Table, keys: &[&str]) -> Table {
    let mut flat = Table::new();
    for (key, node) in table {
        match &node.value {
            Value::Table(below) if keys.contains(&key.as_str()) => flatten(key, below, &mut flat),
            _ => drop(flat.insert(key.clone(), node.clone())),
        }
    }
    flat
}

fn flatten(path: &str, table: &Table, flat: &mut Table) {
    for (key, node) in table {
        let path = format!("{path}.{key}");
        match &node.value {
            Value::Table(below) => flatten(&path, below, flat),
            _ => drop(flat.insert(path, node.clone())),
        }
    }
}

/// The inline list or table that an environment variable's text is; `None` where it is none.
pub(crate) fn inline(text: &str, origin: &Origin) -> Option<Value> {
    let value = DeValue::parse(text).ok()?;
    Some(value_of(value.get_ref(), &|_| origin.clone()))
}

/// Path of a key below another; quoted where TOML would quote it.
pub(crate) fn join(path: &str, key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '[' | ']');
    let is_bare = !key.is_empty() && key.chars().all(bare);
    let between = if path.is_empty() { "" } else { "." };
    if is_bare {
        format!("{path}{between}{key}")
    } else {
        format!("{path}{between}{key:?}")
    }
}

/// Where the lines of a file begin.
struct Lines<'a> {
    path: &'a Arc<Path>,
    ends: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(path: &'a Arc<Path>, text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self {
            path,
            ends: ends.map(|(offset, _)| offset).collect(),
        }
    }

    fn origin(&self, offset: usize) -> Origin {
        let line = self.ends.partition_point(|end| *end < offset) + 1;
        Origin::File {
            path: Arc::clone(self.path),
            line,
        }
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        table_of(table, &|offset| self.origin(offset))
    }
}

fn table_of(table: &DeTable<'_>, origin_at: &dyn Fn(usize) -> Origin) -> Table {
    let node = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| Node {
        origin: origin_at(key.span().start),
        value: value_of(value.get_ref(), origin_at),
    };
    table
        .iter()
        .map(|(key, value)| (key.get_ref().to_string(), node((key, value))))
        .collect()
}

fn value_of(value: &DeValue<'_>, origin_at: &dyn Fn(usize) -> Origin) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Unusable("a number beyond 64 bits"), Value::Integer),
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .map_or(Value::Unusable("a number with a fraction"), Value::Fraction),
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(_) => Value::Unusable("a date"),
        DeValue::Array(elements) => Value::List(
            elements
                .iter()
                .map(|element| Node {
                    origin: origin_at(element.span().start),
                    value: value_of(element.get_ref(), origin_at),
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(table_of(table, origin_at)),
    }
}
