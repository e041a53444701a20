//! What the process was given to run in, handed in: its variables and its cores.

use std::collections::BTreeMap;
use std::num::NonZero;

/// Prefix of variables that override values: `WAYHOLD__LIMITS__BODY`. Two underscores, since
/// orchestrators inject variables such as `WAYHOLD_SERVICE_HOST`.
const OVERRIDE_PREFIX: &str = "WAYHOLD__";

/// Environment variables whose names and values are UTF-8, and the number of cores.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    cores: usize,
}

impl Environment {
    /// The variables of this process, and the cores that it may use.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self {
            variables: std::env::vars_os().filter_map(text).collect(),
            cores: std::thread::available_parallelism().map_or(1, NonZero::get),
        }
    }

    /// These variables and no others, on a single core.
    pub fn new<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self {
            variables: variables.into_iter().map(owned).collect(),
            cores: 1,
        }
    }

    /// The same with so many cores.
    #[must_use]
    pub fn with_cores(self, cores: usize) -> Self {
        Self { cores, ..self }
    }

    /// How many cores there are; 0 where nobody said.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// One variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Variables that override values: the variable's name, the path of its key, its text.
    pub(crate) fn overrides(&self) -> impl Iterator<Item = (&str, Vec<String>, &str)> {
        self.variables.iter().filter_map(|(name, value)| {
            let path = name.strip_prefix(OVERRIDE_PREFIX)?;
            let path = path.split("__").map(str::to_ascii_lowercase).collect();
            Some((name.as_str(), path, value.as_str()))
        })
    }
}
