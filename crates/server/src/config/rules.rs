//! Rules, tables `[rules.NAME]`: events that become proposals of commands. They are delivered to by a destination of
//! kind `rules`, which is made where nobody configures it, so that the outbox's promises hold for them: no event is
//! lost on the way, one that fails waits or becomes a dead letter, and an operator can pause them.

use wayhold_model::filter::Filter;
use wayhold_model::rule::{MAPPING_DEPTH_MAX, Mapping, RULES_MAX, Rule};
use wayhold_model::template::Template;

use crate::config::destination::DestinationName;
use crate::config::section::Section;
use crate::config::setting::{DataTemplate, Faults, Setting};
use crate::config::settings::Route;
use crate::config::tree::{Node, Table, Value};

/// Name of the destination that is made for rules, and its kind.
pub(crate) const RULES: &str = "rules";

/// Adds a destination of kind `rules` where there are rules and nobody configured one.
pub(super) fn add_destination(tree: &mut Table) {
    let is_table = |node: &&Node| matches!(&node.value, Value::Table(rules) if !rules.is_empty());
    let Some(origin) = tree
        .get(RULES)
        .filter(is_table)
        .map(|node| node.origin.clone())
    else {
        return;
    };
    let node = |value| Node {
        origin: origin.clone(),
        value,
    };
    let destinations = tree
        .entry("destinations".to_owned())
        .or_insert_with(|| node(Value::Table(Table::new())));
    if let Value::Table(destinations) = &mut destinations.value {
        let kind = node(Value::Text(RULES.to_owned()));
        let made = Table::from([("kind".to_owned(), kind)]);
        destinations
            .entry(RULES.to_owned())
            .or_insert_with(|| node(Value::Table(made)));
    }
}

/// Reads `[rules]`; `kinds` are the names of the kinds of commands that are configured.
pub(super) fn read_rules(section: &mut Section<'_, '_, '_>, kinds: &[String]) -> Vec<Rule> {
    let names = section.keys();
    if names.len() > RULES_MAX {
        section.problem("", format!("expected at most {RULES_MAX} rules"));
    }
    let mut read = |name: &String| section.table(name, |section| read_rule(name, section, kinds));
    names.iter().take(RULES_MAX).filter_map(&mut read).collect()
}

/// Routes that bring events to the rules: for each rule those that it can want by their attributes.
pub(super) fn routes_of(rules: &[Rule]) -> Vec<Route> {
    let to: Vec<DestinationName> = RULES.parse().into_iter().collect();
    let route = |rule: &Rule| Route {
        name: format!("rules.{}", rule.name),
        when: rule.guard(),
        to: to.clone(),
    };
    rules.iter().map(route).collect()
}

fn read_rule(name: &str, section: &mut Section<'_, '_, '_>, kinds: &[String]) -> Option<Rule> {
    if let Err(error) = name.parse::<DestinationName>() {
        section.problem("", error.to_string());
    }
    let when = section.require::<DataCondition>("when", "'type == \"TYPE\"'");
    let propose = section.require::<String>("propose", "\"KIND\"");
    if let Some(kind) = propose.as_ref().filter(|kind| !kinds.contains(kind)) {
        let message = format!("expected a kind of [commands], not {kind:?}");
        section.problem("propose", message);
    }
    let arguments = section.find::<Arguments>("arguments").unwrap_or_default();
    let dedupe = section.require::<DataTemplate>("dedupe", "\"{source} {id}\"");
    let on_behalf_of = section.find::<DataTemplate>("on_behalf_of");
    let rationale = section.find::<DataTemplate>("rationale");
    let template = |one: DataTemplate| -> Template { one.0 };
    Some(Rule {
        name: name.to_owned(),
        when: when?.0,
        propose: propose?,
        arguments: arguments.fields,
        dedupe: template(dedupe?),
        on_behalf_of: on_behalf_of.map(template),
        rationale: rationale.map(template),
    })
}

/// A condition that sees data.
struct DataCondition(Filter);

impl Setting for DataCondition {
    fn read(node: &Node) -> Result<Self, Faults> {
        let text = String::read(node)?;
        Filter::compile(&text, &[]).map(Self).map_err(Faults::new)
    }

    fn show(&self) -> serde_json::Value {
        self.0.to_string().into()
    }
}

/// Arguments as a table of texts with places, numbers, booleans, lists and tables.
#[derive(Default)]
struct Arguments {
    fields: Vec<(String, Mapping)>,
    shown: serde_json::Value,
}

impl Setting for Arguments {
    fn read(node: &Node) -> Result<Self, Faults> {
        let Value::Table(table) = &node.value else {
            return Err(Faults::new(format!(
                "expected a table, not {}",
                node.value.kind()
            )));
        };
        let mut faults = Vec::new();
        let fields = fields_of(table, "", MAPPING_DEPTH_MAX, &mut faults);
        if !faults.is_empty() {
            return Err(Faults::several(faults));
        }
        let shown = shown(&node.value);
        Ok(Self { fields, shown })
    }

    fn show(&self) -> serde_json::Value {
        self.shown.clone()
    }
}

fn fields_of(
    table: &Table,
    path: &str,
    depth_left: usize,
    faults: &mut Vec<String>,
) -> Vec<(String, Mapping)> {
    let each = |(name, node): (&String, &Node)| {
        let path = match path {
            "" => name.clone(),
            path => format!("{path}.{name}"),
        };
        Some((name.clone(), mapping_of(node, &path, depth_left, faults)?))
    };
    table.iter().filter_map(each).collect()
}

fn mapping_of(
    node: &Node,
    path: &str,
    depth_left: usize,
    faults: &mut Vec<String>,
) -> Option<Mapping> {
    let Some(depth_left) = depth_left.checked_sub(1) else {
        faults.push(format!(
            "{path}: expected at most {MAPPING_DEPTH_MAX} levels"
        ));
        return None;
    };
    match &node.value {
        Value::Text(text) | Value::Untyped(text) => match Mapping::of_text(text) {
            Ok(mapping) => Some(mapping),
            Err(error) => {
                faults.push(format!("{path}: {error}"));
                None
            }
        },
        Value::Integer(number) => Some(Mapping::Literal((*number).into())),
        Value::Fraction(number) => Some(Mapping::Literal((*number).into())),
        Value::Boolean(value) => Some(Mapping::Literal((*value).into())),
        Value::Table(table) => Some(Mapping::Object(fields_of(table, path, depth_left, faults))),
        Value::List(elements) => {
            let each = |(at, node): (usize, &Node)| {
                mapping_of(node, &format!("{path}[{at}]"), depth_left, faults)
            };
            Some(Mapping::List(
                elements.iter().enumerate().filter_map(each).collect(),
            ))
        }
        Value::Unusable(kind) => {
            let expected = "a text, a number, true or false, a list or a table";
            faults.push(format!("{path}: expected {expected}, not {kind}"));
            None
        }
    }
}

/// As the file would write it.
fn shown(value: &Value) -> serde_json::Value {
    match value {
        Value::Text(text) | Value::Untyped(text) => text.as_str().into(),
        Value::Integer(number) => (*number).into(),
        Value::Fraction(number) => (*number).into(),
        Value::Boolean(value) => (*value).into(),
        Value::List(elements) => elements.iter().map(|node| shown(&node.value)).collect(),
        Value::Table(table) => {
            let each = |(name, node): (&String, &Node)| (name.clone(), shown(&node.value));
            serde_json::Value::Object(table.iter().map(each).collect())
        }
        Value::Unusable(_) => serde_json::Value::Null,
    }
}
