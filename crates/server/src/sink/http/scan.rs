//! From a template's text to its pieces, with the position of everything that is wrong with it. No
//! message holds the text itself: a URL or a header may be a credential.

use wayhold_model::place::Place;

/// A run of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Literal(Box<str>),
    Place(Place),
}

/// Something wrong at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// In bytes from the template's beginning.
    pub(super) at: usize,
    /// What was expected there.
    pub(super) message: &'static str,
}

impl Fault {
    /// The fault as a person looks for it in this text.
    pub(super) fn told(&self, text: &str) -> String {
        let before = text.get(..self.at).unwrap_or(text);
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        let line = before.matches('\n').count() + 1;
        if text.contains('\n') {
            format!("line {line}, character {column}: {}", self.message)
        } else {
            format!("character {column}: {}", self.message)
        }
    }
}

/// The pieces of a text in which braces always mean a place; one that is meant itself is doubled.
pub(super) fn scan(text: &str) -> Result<Vec<Piece>, Vec<Fault>> {
    let mut pieces = Vec::new();
    let mut faults = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.find(['{', '}']).map(|at| rest.split_at(at)) {
        literal.push_str(before);
        if let Some(after) = from.strip_prefix("{{") {
            literal.push('{');
            rest = after;
        } else if let Some(after) = from.strip_prefix("}}") {
            literal.push('}');
            rest = after;
        } else {
            let (place, after) = take_place(from);
            match place {
                Ok(place) => {
                    push_literal(&mut pieces, &mut literal);
                    pieces.push(Piece::Place(place));
                }
                Err(message) => faults.push(Fault {
                    at: text.len() - from.len(),
                    message,
                }),
            }
            rest = after;
        }
    }
    literal.push_str(rest);
    push_literal(&mut pieces, &mut literal);
    if faults.is_empty() {
        Ok(pieces)
    } else {
        Err(faults)
    }
}

/// The place that a text begins with, or what was expected, and what follows it.
pub(super) fn take_place(text: &str) -> (Result<Place, &'static str>, &str) {
    let Some(inner) = text.strip_prefix('{') else {
        let after = text.strip_prefix('}').unwrap_or_default();
        return (Err("expected \"{\" before \"}\""), after);
    };
    let Some((name, after)) = inner.split_once('}') else {
        return (Err("expected \"}\" after \"{\""), "");
    };
    let expected =
        "expected an attribute such as {subject}, or a JSON pointer such as {/data/order}";
    (Place::parse(name).ok_or(expected), after)
}

fn push_literal(pieces: &mut Vec<Piece>, literal: &mut String) {
    if !literal.is_empty() {
        pieces.push(Piece::Literal(std::mem::take(literal).into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        let faults = scan(text).unwrap_err();
        faults.iter().map(|fault| fault.told(text)).collect()
    }

    #[test]
    fn every_fault_is_told_at_once_with_its_position() {
        let place =
            "expected an attribute such as {subject}, or a JSON pointer such as {/data/order}";
        assert_eq!(
            told("ä{Type}/{id}/}x{/date/y}{"),
            [
                format!("character 2: {place}"),
                "character 14: expected \"{\" before \"}\"".to_owned(),
                format!("character 16: {place}"),
                "character 25: expected \"}\" after \"{\"".to_owned(),
            ]
        );
        assert_eq!(told("a\nb{}"), [format!("line 2, character 2: {place}")]);
    }

    #[test]
    fn doubled_braces_stand_for_themselves() {
        let pieces = scan("{{a}}{id}}}").unwrap();
        let place = Place::parse("id").unwrap();
        assert_eq!(
            pieces,
            [
                Piece::Literal("{a}".into()),
                Piece::Place(place),
                Piece::Literal("}".into())
            ]
        );
    }
}
