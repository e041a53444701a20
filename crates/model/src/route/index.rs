//! Which rules an event may match at all, found by the texts that they ask for.

use std::collections::HashMap;

use super::RouteRule;
use crate::attribute::{AttributeName, Attributes};
use crate::condition::Condition;

/// Fewer rules over one attribute are asked one after the other: that costs less than finding them.
const FOUND_FROM: usize = 8;

/// Places of rules by the text that they need of one attribute, ascending.
type ByText = HashMap<Box<str>, Vec<usize>>;

/// Rules by the texts of attributes that they need, and those that need none.
///
/// Only rules that can always be answered are found so: leaving one out never hides a failure.
#[derive(Debug)]
pub(super) struct Index {
    /// Places of rules that are asked about every event, ascending.
    always: Vec<usize>,
    by_text: Vec<(AttributeName, ByText)>,
}

impl Index {
    pub(super) fn of(rules: &[RouteRule]) -> Self {
        let needs: Vec<_> = rules
            .iter()
            .map(|rule| rule.when.as_ref().and_then(Condition::needs))
            .collect();
        let alike = |name: &AttributeName| {
            let names = needs.iter().flatten().map(|(name, _)| *name);
            names.filter(|other| *other == name).count()
        };
        let mut always = Vec::new();
        let mut names: Vec<&AttributeName> = Vec::new();
        for (at, need) in needs.iter().enumerate() {
            match need {
                Some((name, _)) if alike(name) >= FOUND_FROM => {
                    if !names.contains(name) {
                        names.push(name);
                    }
                }
                _ => always.push(at),
            }
        }
        let by_text = names.into_iter().map(|name| {
            let of_name = needs.iter().enumerate().filter_map(|(at, need)| {
                let (_, texts) = need.as_ref().filter(|(other, _)| *other == name)?;
                Some((at, texts.as_slice()))
            });
            (name.clone(), by_text(of_name))
        });
        Self {
            by_text: by_text.collect(),
            always,
        }
    }

    /// Calls `ask` with the place of every rule that the event may match, each once, until it fails.
    pub(super) fn each_candidate<E>(
        &self,
        event: &(impl Attributes + ?Sized),
        mut ask: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        for (name, texts) in &self.by_text {
            let value = event.attribute(name);
            for at in texts.get(&*value).into_iter().flatten() {
                ask(*at)?;
            }
        }
        self.always.iter().try_for_each(|at| ask(*at))
    }
}

fn by_text<'a>(
    rules: impl Iterator<Item = (usize, &'a [&'a str])>,
) -> HashMap<Box<str>, Vec<usize>> {
    let mut found: HashMap<Box<str>, Vec<usize>> = HashMap::new();
    for (at, texts) in rules {
        for text in texts {
            let places = found.entry((*text).into()).or_default();
            // A condition may name a text twice.
            if places.last() != Some(&at) {
                places.push(at);
            }
        }
    }
    found
}
