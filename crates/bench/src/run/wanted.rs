//! Which figures are asked for: those whose names begin as somebody said, and those that they are held
//! against.

use super::verdict::{Target, VOID};
use crate::BenchError;

/// A choice of figures.
pub struct Wanted {
    /// `None`: every figure.
    names: Option<Vec<String>>,
}

impl Wanted {
    /// The figures of `known` that begin with one of `prefixes`, or all without a prefix.
    ///
    /// # Errors
    /// A prefix that begins no name.
    pub fn new(
        prefixes: &[String],
        known: &[&str],
        targets: &[&Target],
    ) -> Result<Self, BenchError> {
        if prefixes.is_empty() {
            return Ok(Self { names: None });
        }
        if let Some(foreign) = prefixes
            .iter()
            .find(|prefix| !known.iter().any(|name| name.starts_with(prefix.as_str())))
        {
            return Err(format!("{foreign} begins no name; there are {}", known.join(", ")).into());
        }
        let asked: Vec<String> = known
            .iter()
            .filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
            .map(|&name| name.to_owned())
            .collect();
        let held_against = targets
            .iter()
            .map(|target| target.of)
            .chain(VOID.iter().map(|(figure, _)| *figure))
            .filter(|figure| asked.iter().any(|name| name == figure.subject()))
            .flat_map(|figure| figure.names())
            .map(str::to_owned)
            .collect();
        Ok(Self {
            names: Some([asked, held_against].concat()),
        })
    }

    /// Whether somebody named figures.
    pub fn is_by_name(&self) -> bool {
        self.names.is_some()
    }

    /// Whether a figure is asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.names
            .as_ref()
            .is_none_or(|names| names.iter().any(|other| other == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::verdict::{Derived, Limit};

    const KNOWN: [&str; 4] = ["a.one", "a.two", "b", "c"];

    fn wanted(prefixes: &[&str]) -> Result<Wanted, BenchError> {
        let prefixes: Vec<String> = prefixes.iter().map(|&prefix| prefix.into()).collect();
        let target = Target {
            of: Derived::Ratio {
                of: "a.one",
                over: "c",
            },
            limit: Limit::AtLeast,
            pass: 1.0,
            stretch: 2.0,
        };
        Wanted::new(&prefixes, &KNOWN, &[&target])
    }

    #[test]
    fn a_name_brings_what_begins_with_it_and_what_that_is_held_against() {
        for (prefixes, expected) in [
            (&[][..], &KNOWN[..]),
            (&["a"], &["a.one", "a.two", "c"]),
            (&["b"], &["b"]),
            (&["c", "b"], &["b", "c"]),
        ] {
            let wanted = wanted(prefixes).unwrap();
            let names: Vec<_> = KNOWN
                .into_iter()
                .filter(|name| wanted.wants(name))
                .collect();
            assert_eq!(names, expected, "{prefixes:?}");
        }
    }

    #[test]
    fn a_name_that_nothing_begins_with_is_refused() {
        let error = wanted(&["b", "d"]).err().unwrap().to_string();
        assert!(error.starts_with("d begins no name"), "{error}");
    }
}
