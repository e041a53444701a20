//! Kinds of commands, tables `[commands.KIND]`: where they go, what their arguments are, and what it costs to be
//! wrong about them.

use std::fs::File;
use std::io::Read as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jsonschema::Validator;
use serde_json::{Value as Json, json};
use wayhold_model::approval::Limit;
use wayhold_model::command::{Reversibility, Risk};
use wayhold_model::ledger::{Hash, canonical};
use wayhold_model::pointer::Pointer;

use crate::config::SinkConfig;
use crate::config::approving::read_limit_of;
use crate::config::destination::DestinationConfig;
use crate::config::section::Section;
use crate::config::setting::Choice;
use crate::config::settings::NetworkConfig;
use crate::sink::http::config::{HttpConfig, Verb};

/// Most kinds: each may have a schema in memory and a client for asking its target.
pub const KINDS_MAX: usize = 256;

/// Longest name of a kind, in bytes: it is the `type` of an event and stands in every record.
const NAME_BYTES_MAX: usize = 100;

/// Largest schema, in bytes.
const SCHEMA_BYTES_MAX: u64 = 256 * 1024;

/// Most arguments that are compared with what the target says, or given to a compensation.
const MEMBERS_MAX: usize = 32;

/// Longest time after which a target shows what it did.
const DELAY_MAX: Duration = Duration::from_secs(3600);

/// Between two passes of questions on schedule: a target is not asked all the time, and not forgotten.
const EVERY: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 3600);

/// A kind of command.
#[derive(Clone, Debug)]
pub struct CommandKind {
    /// Its name, which is the `type` of its events.
    pub name: String,
    /// Names this version of the table and its schema: a digest of both.
    pub version: String,
    /// The destination that its commands go to.
    pub destination: String,
    /// What arguments must look like; any JSON object where `None`.
    pub arguments: Option<ArgumentSchema>,
    /// Harm that a wrong one may do.
    pub risk: Risk,
    /// Whether it can be taken back.
    pub reversibility: Reversibility,
    /// Whether the target executes a repeated request with the same `Idempotency-Key` once.
    pub target_idempotent: bool,
    /// How the target is asked whether it executed one.
    pub reconcile: Option<ReconcileConfig>,
    /// The kind that makes up for it.
    pub compensation: Option<Compensation>,
    /// The argument that limits and policies call the amount.
    pub amount: Option<Pointer>,
    /// The argument that order is kept by.
    pub order_key: Option<Pointer>,
    /// How much may be asked for.
    pub limits: Option<Limit>,
}

/// A JSON Schema for arguments.
#[derive(Clone)]
pub struct ArgumentSchema {
    /// Where it was read.
    pub file: PathBuf,
    validator: Arc<Validator>,
}

impl std::fmt::Debug for ArgumentSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ArgumentSchema").field(&self.file).finish()
    }
}

impl ArgumentSchema {
    /// What is wrong with arguments, as pointer and sentence; at most `max` of it.
    pub fn faults(&self, arguments: &Json, max: usize) -> Vec<(String, String)> {
        let errors = self.validator.iter_errors(arguments).take(max);
        errors
            .map(|error| (error.instance_path().to_string(), error.to_string()))
            .collect()
    }
}

/// How a target is asked whether it executed a command: a request as of a destination of kind `http`, made of the
/// command's event.
#[derive(Clone, Debug)]
pub struct ReconcileConfig {
    /// The request; what it lists as `success` says that the command was executed.
    pub request: HttpConfig,
    /// Statuses that say that it was not.
    pub absent: Vec<u32>,
    /// Arguments, and where the answer has the same.
    pub compare: Vec<(Pointer, Pointer)>,
    /// How long after an attempt the target is sure to show it.
    pub delay: Duration,
    /// How often it is asked about every command that moved meanwhile; on somebody's wish alone where `None`.
    pub every: Option<Duration>,
    /// How it lists what it did, for what the ledger never sent.
    pub list: Option<ListConfig>,
}

/// How a target lists what it did since a time: a request made of an event whose `time` that is.
#[derive(Clone, Debug)]
pub struct ListConfig {
    /// The request.
    pub request: HttpConfig,
    /// Where the list is in the answer; the whole of it where it is empty.
    pub items: Pointer,
    /// Where an item has the id of its command, as it came as `Idempotency-Key`.
    pub id: Pointer,
}

impl ListConfig {
    /// The ids of what is listed.
    ///
    /// # Errors
    /// It is no such list; says what was expected.
    pub fn ids_in(&self, answer: &[u8]) -> Result<Vec<String>, String> {
        let missing = |at: &Pointer, what: &str| format!("expected {what} at \"{at}\" of its list");
        let items = self
            .items
            .raw_in(answer)
            .and_then(|raw| serde_json::from_str(raw).ok());
        let Some(Json::Array(items)) = items else {
            return Err(missing(&self.items, "a list"));
        };
        let id = |item: &Json| {
            let text = item.to_string();
            let id = self.id.text_in(text.as_bytes());
            id.ok_or_else(|| missing(&self.id, "an id"))
        };
        items.iter().map(id).collect()
    }

    fn read(section: &mut Section<'_, '_, '_>, network: &NetworkConfig) -> Option<Self> {
        let items = section.get("items", String::new());
        let items = Pointer::parse(&items);
        if items.is_none() {
            section.problem("items", "expected a JSON pointer such as \"/orders\"");
        }
        let id = read_pointer(section, "id");
        if !section.has("id") {
            section.problem("id", "expected a JSON pointer such as \"/key\"");
        }
        let request = HttpConfig::read_as(section, network, Verb::Get)?;
        Some(Self {
            request,
            items: items?,
            id: id?,
        })
    }
}

/// What makes up for a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compensation {
    /// Kind of the command that does.
    pub kind: String,
    /// Its arguments, each taken out of `{"command", "arguments", "result"}` of what it makes up for; that whole
    /// document where there are none.
    pub arguments: Vec<(String, Pointer)>,
}

impl Choice for Risk {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("low", Self::Low),
        ("medium", Self::Medium),
        ("high", Self::High),
        ("critical", Self::Critical),
    ];
}

impl Choice for Reversibility {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("reversible", Self::Reversible),
        ("compensatable", Self::Compensatable),
        ("irreversible", Self::Irreversible),
    ];
}

impl CommandKind {
    /// Reads every table below `[commands]`.
    pub(super) fn read_all(
        section: &mut Section<'_, '_, '_>,
        destinations: &[DestinationConfig],
        network: &NetworkConfig,
    ) -> Vec<Self> {
        let names = section.keys();
        if names.len() > KINDS_MAX {
            section.problem(
                "",
                format!("expected at most {KINDS_MAX} kinds of commands"),
            );
        }
        let kinds: Vec<_> = names
            .iter()
            .take(KINDS_MAX)
            .filter_map(|name| {
                if !is_kind_name(name) {
                    section.problem(
                        name,
                        format!(
                            "expected a name of 1 to {NAME_BYTES_MAX} lower-case letters, digits, '.', '-' or '_'"
                        ),
                    );
                }
                section.table(name, |section| Self::read(name, section, destinations, network))
            })
            .collect();
        for kind in &kinds {
            let Some(compensation) = &kind.compensation else {
                continue;
            };
            if !names.contains(&compensation.kind) {
                let message = format!("expected a configured kind, not \"{}\"", compensation.kind);
                section.problem(&format!("{}.compensation", kind.name), message);
            }
        }
        kinds
    }

    fn read(
        name: &str,
        section: &mut Section<'_, '_, '_>,
        destinations: &[DestinationConfig],
        network: &NetworkConfig,
    ) -> Option<Self> {
        let destination = section.require::<String>("destination", "\"NAME\"");
        if let Some(wanted) = &destination {
            match destinations.iter().find(|one| one.name.as_str() == wanted) {
                None => section.problem(
                    "destination",
                    format!("expected a configured destination, not \"{wanted}\""),
                ),
                Some(one) if !takes_commands(&one.sink) => section.problem(
                    "destination",
                    format!(
                        "expected a destination of kind \"http\" or \"webhook\", which {wanted} is not: a command \
                         needs an answer of its own"
                    ),
                ),
                Some(_) => {}
            }
        }
        let (arguments, schema) = section.table("arguments", read_arguments);
        let risk = section.require::<Risk>("risk", "\"high\"");
        let reversibility = section.get("reversibility", Reversibility::Irreversible);
        let target_idempotent = section.get("target_idempotent", false);
        let reconcile = section
            .has("reconcile")
            .then(|| {
                section.table("reconcile", |section| {
                    ReconcileConfig::read(section, network)
                })
            })
            .flatten();
        let compensation = read_compensation(section);
        if compensation.is_some() && reversibility == Reversibility::Irreversible {
            section.problem(
                "compensation",
                "expected only with reversibility = \"compensatable\" or \"reversible\"",
            );
        }
        let amount = read_pointer(section, "amount");
        let order_key = read_pointer(section, "order_key");
        let has_limits = section.has("limits");
        let limits = section.table("limits", |section| {
            has_limits.then(|| read_limit_of(name, section))
        });
        let (destination, risk) = (destination?, risk?);
        let said = json!({
            "destination": destination,
            "schema": schema,
            "risk": risk.name(),
            "reversibility": reversibility.name(),
            "amount": amount.as_ref().map(ToString::to_string),
            "order_key": order_key.as_ref().map(ToString::to_string),
        });
        // A schema may hold numbers that have no canonical form; then its text as it is tells versions apart.
        let said = canonical::of_foreign(&said).unwrap_or_else(|_| said.to_string().into_bytes());
        let mut version = Hash::of(&said).to_string();
        version.truncate(VERSION_DIGITS);
        Some(Self {
            name: name.to_owned(),
            version,
            destination,
            arguments,
            risk,
            reversibility,
            target_idempotent,
            reconcile,
            compensation,
            amount,
            order_key,
            limits,
        })
    }
}

/// Hexadecimal digits of a version: enough to tell a kind's versions apart.
const VERSION_DIGITS: usize = 16;

/// Kinds that answer each request for itself.
fn takes_commands(sink: &SinkConfig) -> bool {
    matches!(sink, SinkConfig::Http(_) | SinkConfig::Webhook(_))
}

fn is_kind_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.bytes().next().is_some_and(plain)
        && name.len() <= NAME_BYTES_MAX
        && name
            .bytes()
            .all(|byte| plain(byte) || matches!(byte, b'.' | b'-' | b'_'))
}

fn read_pointer(section: &mut Section<'_, '_, '_>, key: &str) -> Option<Pointer> {
    let text = section.find::<String>(key)?;
    let pointer = Pointer::parse(&text).filter(|_| !text.is_empty());
    if pointer.is_none() {
        section.problem(key, "expected a JSON pointer such as \"/amount\"");
    }
    pointer
}

/// The schema, and what it says.
fn read_arguments(section: &mut Section<'_, '_, '_>) -> (Option<ArgumentSchema>, Json) {
    let Some(file) = section.find::<PathBuf>("file") else {
        return (None, Json::Null);
    };
    match read_schema(&file) {
        Ok((validator, schema)) => {
            let validator = Arc::new(validator);
            (Some(ArgumentSchema { file, validator }), schema)
        }
        Err(message) => {
            section.problem("file", message);
            (None, Json::Null)
        }
    }
}

fn read_schema(path: &Path) -> Result<(Validator, Json), String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    file.take(SCHEMA_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if text.len() as u64 > SCHEMA_BYTES_MAX {
        return Err(format!("expected at most {SCHEMA_BYTES_MAX} bytes"));
    }
    let schema: Json = serde_json::from_str(&text)
        .map_err(|error| format!("expected a JSON Schema; {}: {error}", path.display()))?;
    // Nothing is fetched: a reference must lead to a place within the same file.
    let validator = jsonschema::validator_for(&schema)
        .map_err(|error| format!("expected a JSON Schema; {}: {error}", path.display()))?;
    Ok((validator, schema))
}

fn read_compensation(section: &mut Section<'_, '_, '_>) -> Option<Compensation> {
    let kind = section.find::<String>("compensation");
    let arguments = section.table("compensation_arguments", |section| {
        let names = section.keys();
        if names.len() > MEMBERS_MAX {
            section.problem("", format!("expected at most {MEMBERS_MAX} arguments"));
        }
        let mut read = |name: &String| Some((name.clone(), read_pointer(section, name)?));
        names
            .iter()
            .take(MEMBERS_MAX)
            .filter_map(&mut read)
            .collect::<Vec<_>>()
    });
    if kind.is_none() && !arguments.is_empty() {
        section.problem("compensation_arguments", "expected compensation beside it");
    }
    Some(Compensation {
        kind: kind?,
        arguments,
    })
}

impl ReconcileConfig {
    fn read(section: &mut Section<'_, '_, '_>, network: &NetworkConfig) -> Option<Self> {
        let absent = section.get("absent", vec![404_u32, 410]);
        if !absent.iter().all(|status| (400..=499).contains(status)) {
            section.problem("absent", "expected statuses from 400 to 499");
        }
        let delay = section.within("delay", Duration::ZERO, Duration::ZERO, DELAY_MAX);
        let every = section.find::<Duration>("every");
        if every.is_some_and(|every| !EVERY.contains(&every)) {
            section.problem("every", "expected between 1s and 30d");
        }
        let list = section
            .has("list")
            .then(|| section.table("list", |section| ListConfig::read(section, network)))
            .flatten();
        if section.has("list") && every.is_none() {
            section.problem(
                "list",
                "expected every beside it: a list is asked for on schedule",
            );
        }
        let compare = section.table("compare", |section| {
            let names = section.keys();
            if names.len() > MEMBERS_MAX {
                section.problem("", format!("expected at most {MEMBERS_MAX} arguments"));
            }
            let mut compare = Vec::new();
            for name in names.iter().take(MEMBERS_MAX) {
                let there = read_pointer(section, name);
                match Pointer::parse(name).filter(|_| !name.is_empty()) {
                    Some(argument) => compare.extend(there.map(|there| (argument, there))),
                    None => section.problem(name, "expected a JSON pointer to an argument"),
                }
            }
            compare
        });
        let request = HttpConfig::read_as(section, network, Verb::Get)?;
        Some(Self {
            request,
            absent,
            compare,
            delay,
            every,
            list,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_out_of_a_list_wherever_that_is_and_nothing_else_counts_as_one() {
        let text = "[destinations.erp]\nkind = \"http\"\nurl = \"http://127.0.0.1/x\"\nallow_networks = [\"127.0.0.0/8\"]\n\
                    [[routes]]\nto = [\"erp\"]\n[commands.refund]\ndestination = \"erp\"\nrisk = \"low\"\n\
                    [commands.refund.reconcile]\nurl = \"http://127.0.0.1/{id}\"\nallow_networks = [\"127.0.0.0/8\"]\nevery = \"1h\"\n\
                    [commands.refund.reconcile.list]\nurl = \"http://127.0.0.1/since/{time}\"\nallow_networks = [\"127.0.0.0/8\"]\n\
                    id = \"/key\"\nITEMS\n";
        let list = |items: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("wayhold.toml");
            std::fs::write(&path, text.replace("ITEMS", items)).unwrap();
            let (overrides, environment) = Default::default();
            let loaded = crate::config::load(Some(&path), &overrides, &environment).unwrap();
            let kind = loaded.config.commands.into_iter().next().unwrap();
            kind.reconcile.unwrap().list.unwrap()
        };
        let ids = |list: &ListConfig, answer: &str| list.ids_in(answer.as_bytes());
        let (whole, inside) = (list(""), list("items = \"/data/refunds\""));
        let found = Ok(vec!["a".to_owned(), "7".to_owned()]);
        assert_eq!(ids(&whole, r#"[{"key":"a"},{"key":7,"more":1}]"#), found);
        assert_eq!(
            ids(&inside, r#"{"data":{"refunds":[{"key":"a"},{"key":7}]}}"#),
            found
        );
        assert_eq!(ids(&whole, "[]"), Ok(Vec::new()));
        for answer in ["", "{}", r#"{"data":{"refunds":{}}}"#, r#"[{"id":"a"}]"#] {
            assert!(ids(&whole, answer).is_err(), "{answer}");
            assert!(ids(&inside, answer).is_err(), "{answer}");
        }
    }
}
