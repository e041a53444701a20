//! `wayhold config`: an example to begin from, a check of what was written, and what is in force.

mod following;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::block_on;
use super::client::ServerArguments;
use super::exit::{Exit, Failure};
use super::output::Output;
use crate::config::example::example;
use crate::config::{Environment, Loaded, Overrides, load};

/// Write, check and show configuration.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Print a complete configuration with comments.
    Example,
    /// Say everything that is wrong with a configuration; exit code 2 when anything is.
    Check(Source),
    /// Print every value in force and where it came from; secrets are left out.
    Show(Source),
    /// Ask a server what its configuration file says that is not in force.
    Diff(ServerArguments),
    /// Have a server read its configuration file again: whole or not at all.
    Reload(ServerArguments),
}

/// Which configuration.
#[derive(Debug, Args)]
pub struct Source {
    /// Configuration file; without it the defaults and the environment count.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The same, as `serve` takes it.
    #[arg(long = "config", value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
}

impl Config {
    /// Does what was asked for.
    ///
    /// # Errors
    /// When the configuration has problems, or no server answers that was asked.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Self::Example => print_example(output),
            Self::Check(source) => check(&source, output),
            Self::Show(source) => show(&source, output),
            Self::Diff(server) => block_on(following::diff(&server, output)),
            Self::Reload(server) => block_on(following::reload(&server, output)),
        }
    }
}

impl Source {
    fn load(&self) -> Result<Loaded, crate::config::Problems> {
        let file = self.file.as_deref().or(self.config.as_deref());
        load(file, &Overrides::default(), &Environment::of_process())
    }
}

fn print_example(output: &mut Output) -> Result<(), Failure> {
    let example = example();
    output.json(&json!({ "toml": example }));
    for line in example.lines() {
        output.line(line);
    }
    Ok(())
}

fn check(source: &Source, output: &mut Output) -> Result<(), Failure> {
    match source.load() {
        Ok(loaded) => {
            let config = &loaded.config;
            let (destinations, routes) = (config.destinations.len(), config.routes.len());
            output.json(&json!({ "valid": true, "problems": [] }));
            output.line(format!(
                "valid: destinations {destinations}, routes {routes}"
            ));
            Ok(())
        }
        Err(problems) => {
            let body = |problem: &crate::config::Problem| {
                json!({
                    "at": problem.origin.to_string(),
                    "key": problem.key,
                    "message": problem.message,
                    "add": problem.add,
                })
            };
            let bodies: Vec<_> = problems.0.iter().map(body).collect();
            output.json(&json!({ "valid": false, "problems": bodies }));
            Err(Failure::new(Exit::Usage, problems.to_string()))
        }
    }
}

fn show(source: &Source, output: &mut Output) -> Result<(), Failure> {
    let loaded = source
        .load()
        .map_err(|problems| Failure::usage(problems.to_string()))?;
    let body = |value: &crate::config::ShownValue| json!({ "key": value.key, "value": value.value, "origin": value.origin.to_string() });
    output.json(&json!({ "items": loaded.values.iter().map(body).collect::<Vec<_>>() }));
    let rows: Vec<_> = loaded
        .values
        .iter()
        .map(|value| {
            [
                value.key.clone(),
                value.value.to_string(),
                value.origin.to_string(),
            ]
        })
        .collect();
    output.table(["key", "value", "origin"], &rows);
    Ok(())
}
