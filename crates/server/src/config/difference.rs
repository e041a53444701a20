//! What differs between the configuration in force and another one, key by key, and whether a running
//! server can follow it. Pure: it compares values as `config show` gives them, and the contents of secrets
//! and files, which it never tells.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::config::secret::Secret;
use crate::config::section::ShownValue;

/// A value that is another one now.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Path of the key, such as `destinations.wms.url`; of an element of a list of tables, its place in the
    /// newer list, or in the older one where it is gone.
    pub path: String,
    /// What is in force, as the file would write it; `null` where there is none.
    pub from: Json,
    /// What is wanted instead.
    pub to: Json,
    /// Whether what changed lies behind the value: the content of a secret or file, or the part of a URL
    /// that is not shown.
    pub content: bool,
    /// What it takes to follow it.
    pub effect: Effect,
}

/// What it takes to follow a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A reload applies it.
    Applied,
    /// Only a restart can: the thing is held open, or was sized, when the server started.
    NeedsRestart,
}

impl Effect {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::NeedsRestart => "needs a restart",
        }
    }
}

/// What only a restart changes: sockets and files that are held open, memory and files that were sized by
/// it, and where the log goes.
const FIXED: [&str; 7] = [
    "data",
    "listen",
    "ops_listen",
    "store",
    "retention",
    "ledger",
    "log",
];

impl Change {
    /// The destination whose table it lies in.
    pub fn destination(&self) -> Option<&str> {
        let below = self.path.strip_prefix("destinations.")?;
        Some(below.split('.').next().unwrap_or(below))
    }

    fn new(path: String, from: Option<&ShownValue>, to: Option<&ShownValue>) -> Self {
        let shown = |value: Option<&ShownValue>| value.map_or(Json::Null, |one| one.value.clone());
        Self {
            effect: effect_on(&path),
            content: from
                .zip(to)
                .is_some_and(|(from, to)| from.value == to.value),
            from: shown(from),
            to: shown(to),
            path,
        }
    }
}

fn effect_on(path: &str) -> Effect {
    let section = path.split(['.', '[']).next().unwrap_or(path);
    if FIXED.contains(&section) {
        Effect::NeedsRestart
    } else {
        Effect::Applied
    }
}

/// What changes from `old` to `new`, in the order in which keys are documented; what is gone comes last.
pub fn changes(old: &[ShownValue], new: &[ShownValue]) -> Vec<Change> {
    let (old, new) = (Values::of(old), Values::of(new));
    let mut changes = Vec::new();
    for (key, value) in &new.single {
        let before = old.find(key);
        if before.is_none_or(|before| !is_same(before, value)) {
            changes.push(Change::new((*key).to_owned(), before, Some(value)));
        }
    }
    let gone = old.single.iter().filter(|(key, _)| new.find(key).is_none());
    changes.extend(gone.map(|(key, value)| Change::new((*key).to_owned(), Some(value), None)));
    let lists: BTreeSet<_> = old.lists.keys().chain(new.lists.keys()).copied().collect();
    let none = Vec::new();
    for list in lists {
        let of = |values: &Values<'_>| values.lists.get(list).unwrap_or(&none).clone();
        compare_lists(list, &of(&old), &of(&new), &mut changes);
    }
    changes
}

fn is_same(one: &ShownValue, other: &ShownValue) -> bool {
    one.value == other.value && one.content == other.content
}

/// Values by what they are compared as.
struct Values<'v> {
    /// Keys of tables, in order.
    single: Vec<(&'v str, &'v ShownValue)>,
    places: BTreeMap<&'v str, usize>,
    /// Elements of lists of tables, `[[routes]]`, each as a whole.
    lists: BTreeMap<&'v str, Vec<Element>>,
}

/// An element of a list of tables: what it shows, and what it does not.
#[derive(Clone, Debug, Default, PartialEq)]
struct Element {
    shown: serde_json::Map<String, Json>,
    hidden: Vec<Option<Secret>>,
}

impl<'v> Values<'v> {
    fn of(values: &'v [ShownValue]) -> Self {
        let mut all = Self {
            single: Vec::new(),
            places: BTreeMap::new(),
            lists: BTreeMap::new(),
        };
        for value in values {
            let Some((list, index, field)) = element_of(&value.key) else {
                all.places.insert(&value.key, all.single.len());
                all.single.push((&value.key, value));
                continue;
            };
            let elements: &mut Vec<Element> = all.lists.entry(list).or_default();
            while elements.len() <= index {
                elements.push(Element::default());
            }
            if let Some(element) = elements.get_mut(index) {
                element.shown.insert(field.to_owned(), value.value.clone());
                element.hidden.push(value.content.clone());
            }
        }
        all
    }

    fn find(&self, key: &str) -> Option<&'v ShownValue> {
        let place = self.places.get(key)?;
        self.single.get(*place).map(|(_, value)| *value)
    }
}

/// `routes[2].when` is field `when` of element 2 of `routes`.
fn element_of(key: &str) -> Option<(&str, usize, &str)> {
    let (list, rest) = key.split_once('[')?;
    let (index, field) = rest.split_once("].")?;
    let is_list = list
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    Some((list, index.parse().ok()?, field)).filter(|_| is_list)
}

/// What lies between the elements that both lists begin and end with. Their order counts: of key rules the
/// first that matches decides.
fn compare_lists(list: &str, old: &[Element], new: &[Element], changes: &mut Vec<Change>) {
    let same = |pair: &(&Element, &Element)| pair.0 == pair.1;
    let first = old.iter().zip(new).take_while(same).count();
    let (old_rest, new_rest) = (
        old.get(first..).unwrap_or(&[]),
        new.get(first..).unwrap_or(&[]),
    );
    let last = old_rest
        .iter()
        .rev()
        .zip(new_rest.iter().rev())
        .take_while(same)
        .count();
    let between = |rest: &[Element]| rest.len() - last;
    for place in 0..between(old_rest).max(between(new_rest)) {
        let at = |rest: &[Element]| rest.get(place).filter(|_| place < between(rest)).cloned();
        let (from, to) = (at(old_rest), at(new_rest));
        let path = format!("{list}[{}]", first + place);
        let shown = |element: &Option<Element>| {
            element
                .clone()
                .map_or(Json::Null, |element| Json::Object(element.shown))
        };
        changes.push(Change {
            effect: effect_on(&path),
            from: shown(&from),
            to: shown(&to),
            content: from
                .zip(to)
                .is_some_and(|(from, to)| from.shown == to.shown),
            path,
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Origin;

    fn value(key: &str, value: Json) -> ShownValue {
        ShownValue {
            key: key.to_owned(),
            value,
            origin: Origin::Default,
            content: None,
        }
    }

    fn secret(key: &str, content: &str) -> ShownValue {
        ShownValue {
            content: Some(Secret::new(content)),
            ..value(key, json!({ "file": "key" }))
        }
    }

    fn told(old: &[ShownValue], new: &[ShownValue]) -> Vec<(String, Json, Json, &'static str)> {
        let told = |change: Change| (change.path, change.from, change.to, change.effect.name());
        changes(old, new).into_iter().map(told).collect()
    }

    #[test]
    fn each_key_is_told_with_what_it_takes_to_follow_it() {
        let old = [
            value("data", json!("./data")),
            value("limits.body_bytes", json!("1 MiB")),
            value("store.window", json!("1d")),
            value("destinations.a.rate", json!("1/s")),
            value("destinations.b.kind", json!("null")),
        ];
        let new = [
            value("data", json!("./data")),
            value("limits.body_bytes", json!("2 MiB")),
            value("store.window", json!("2d")),
            value("destinations.a.timeout", json!("1s")),
            value("destinations.c.kind", json!("null")),
        ];
        let none = Json::Null;
        let expected = [
            (
                "limits.body_bytes",
                json!("1 MiB"),
                json!("2 MiB"),
                "applied",
            ),
            ("store.window", json!("1d"), json!("2d"), "needs a restart"),
            (
                "destinations.a.timeout",
                none.clone(),
                json!("1s"),
                "applied",
            ),
            (
                "destinations.c.kind",
                none.clone(),
                json!("null"),
                "applied",
            ),
            ("destinations.a.rate", json!("1/s"), none.clone(), "applied"),
            ("destinations.b.kind", json!("null"), none, "applied"),
        ];
        let expected = expected.map(|(path, from, to, effect)| (path.to_owned(), from, to, effect));
        assert_eq!(told(&old, &new), expected);
        assert_eq!(told(&new, &new), []);
        let of = |path: &str| {
            let change = Change::new(path.to_owned(), None, None);
            change.destination().map(str::to_owned)
        };
        assert_eq!(of("destinations.a.on.503.then").as_deref(), Some("a"));
        assert_eq!(of("limits.body_bytes"), None);
    }

    #[test]
    fn every_key_that_needs_a_restart_is_known_by_its_table() {
        for path in [
            "data",
            "listen",
            "ops_listen",
            "store.shards",
            "retention.time",
            "log.level",
        ] {
            assert_eq!(effect_on(path), Effect::NeedsRestart, "{path}");
        }
        for path in [
            "limits.headers",
            "routes[0]",
            "keys[1]",
            "ingest.mode",
            "network.allow",
        ] {
            assert_eq!(effect_on(path), Effect::Applied, "{path}");
        }
    }

    #[test]
    fn another_content_behind_the_same_words_is_a_change_that_does_not_tell_it() {
        let (old, new) = (
            [secret("destinations.a.url", "one")],
            [secret("destinations.a.url", "two")],
        );
        let [change] = &changes(&old, &new)[..] else {
            panic!("one change");
        };
        assert!(change.content);
        assert_eq!(change.from, change.to);
        assert!(!format!("{change:?}").contains("two"), "{change:?}");
        assert_eq!(changes(&old, &old), []);
    }

    /// Routes as they follow each other, by their condition.
    fn routes(conditions: &[&str]) -> Vec<ShownValue> {
        let of =
            |(index, when): (usize, &&str)| value(&format!("routes[{index}].when"), json!(when));
        conditions.iter().enumerate().map(of).collect()
    }

    #[test]
    fn of_a_list_only_what_was_put_in_taken_out_or_changed_is_told() {
        let route = |when: &str| json!({ "when": when });
        let none = || Json::Null;
        for (old, new, expected) in [
            (&["a", "b"][..], &["a", "b"][..], vec![]),
            (
                &["a", "b"],
                &["x", "a", "b"],
                vec![("routes[0]", none(), route("x"))],
            ),
            (
                &["a", "b"],
                &["a", "x", "b"],
                vec![("routes[1]", none(), route("x"))],
            ),
            (
                &["a", "b"],
                &["a", "b", "x"],
                vec![("routes[2]", none(), route("x"))],
            ),
            (
                &["a", "b", "c"],
                &["a", "c"],
                vec![("routes[1]", route("b"), none())],
            ),
            (
                &["a", "b", "c"],
                &["a", "x", "c"],
                vec![("routes[1]", route("b"), route("x"))],
            ),
            (&["a", "a"], &["a"], vec![("routes[1]", route("a"), none())]),
            (
                &["a", "b"],
                &["b", "a"],
                vec![
                    ("routes[0]", route("a"), route("b")),
                    ("routes[1]", route("b"), route("a")),
                ],
            ),
            (&["a"], &[], vec![("routes[0]", route("a"), none())]),
        ] {
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(path, from, to)| (path.to_owned(), from, to, "applied"))
                .collect();
            assert_eq!(
                told(&routes(old), &routes(new)),
                expected,
                "{old:?} {new:?}"
            );
        }
    }
}
