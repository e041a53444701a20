//! The process's environment, handed in.

use std::collections::BTreeMap;

/// Prefix of variables that override values: `WAYHOLD__LIMITS__BODY`. Two underscores, since
/// orchestrators inject variables such as `WAYHOLD_SERVICE_HOST`.
const OVERRIDE_PREFIX: &str = "WAYHOLD__";

/// Environment variables whose names and values are UTF-8.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// These variables and no others.
    pub fn new<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self(variables.into_iter().map(owned).collect())
    }

    /// One variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Variables that override values: the variable's name, the path of its key, its text.
    pub(crate) fn overrides(&self) -> impl Iterator<Item = (&str, Vec<String>, &str)> {
        self.0.iter().filter_map(|(name, value)| {
            let path = name.strip_prefix(OVERRIDE_PREFIX)?;
            let path = path.split("__").map(str::to_ascii_lowercase).collect();
            Some((name.as_str(), path, value.as_str()))
        })
    }
}
