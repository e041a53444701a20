//! From file, environment and flags to a `Config`, or to everything that is wrong.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wayhold_model::route::ROUTES_MAX;

use crate::config::approving::ApprovingConfig;
use crate::config::commands::CommandKind;
use crate::config::destination::DestinationConfig;
use crate::config::environment::Environment;
use crate::config::ledger::LedgerConfig;
use crate::config::limits::Limits;
use crate::config::listen::ListenAddr;
use crate::config::problem::{Origin, Problem, Problems};
use crate::config::quantity::{Size, show_size};
use crate::config::rules::{RULES, add_destination, read_rules, routes_of};
use crate::config::section::{Reading, Section, ShownValue};
use crate::config::setting::{Fault, Setting};
use crate::config::settings::{
    Config, IngestConfig, LogConfig, NetworkConfig, Route, read_keys, read_retention, read_store,
};
use crate::config::source::Sources;
use crate::config::tree::{self, Node, Table, Value};

/// Data directory that nobody chose.
const DATA: &str = "./data";

/// Largest configuration file, in bytes; a thousand destinations take a tenth of it.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Most files that one file includes.
const INCLUDES_MAX: usize = 64;

/// Most destinations: each has a lane with its own queue.
const DESTINATIONS_MAX: usize = 1024;

/// Most listeners.
const LISTENERS_MAX: usize = 16;

/// What the command line says; it beats everything else.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--data`.
    pub data: Option<PathBuf>,
    /// `--listen`, each time it was given.
    pub listen: Vec<ListenAddr>,
    /// `--ops-listen`.
    pub ops_listen: Option<ListenAddr>,
    /// `--no-auth`.
    pub no_auth: bool,
}

/// Where a configuration is read from, kept so that it can be read again.
#[derive(Clone, Debug, Default)]
pub struct ConfigPlace {
    /// The file; none where defaults, environment and flags are all.
    pub file: Option<PathBuf>,
    /// What the command line says.
    pub overrides: Overrides,
    /// What the process was started in.
    pub environment: Environment,
}

impl ConfigPlace {
    /// Reads what is there now.
    ///
    /// # Errors
    /// As [`load`].
    pub fn read(&self) -> Result<Loaded, Problems> {
        load(self.file.as_deref(), &self.overrides, &self.environment)
    }
}

/// A configuration, and where its values came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What is in force.
    pub config: Config,
    /// Every value, in the order of the documentation.
    pub values: Vec<ShownValue>,
    /// Where it was read.
    pub place: ConfigPlace,
}

/// Reads the configuration: defaults alone where there is no file, then the environment's overrides,
/// then the flags.
///
/// # Errors
/// Everything that is wrong, at once. Only when a file cannot be read as TOML its meaning is not looked
/// at.
pub fn load(
    path: Option<&Path>,
    overrides: &Overrides,
    environment: &Environment,
) -> Result<Loaded, Problems> {
    let mut problems = Vec::new();
    let mut tree = match path {
        Some(path) => read_files(path, &mut problems).map_err(Problems)?,
        None => Table::new(),
    };
    for (name, key, text) in environment.overrides() {
        let origin = Origin::Environment(name.to_owned());
        let node = Node {
            origin,
            value: Value::Untyped(text.to_owned()),
        };
        problems.extend(tree::set(&mut tree, &key, node).err());
    }
    set_flags(&mut tree, overrides);
    set_delivered(&mut tree);
    add_destination(&mut tree);

    let mut reading = Reading::new(environment);
    let origin = path.map_or(Origin::Default, |path| Origin::File {
        path: path.into(),
        line: 1,
    });
    let config = reading.whole(origin, &tree, |section| {
        read_config(section, overrides.no_auth)
    });
    problems.append(&mut reading.problems);
    problems.sort_by(|one, other| one.origin.reading_order(&other.origin));
    if problems.is_empty() {
        Ok(Loaded {
            config,
            values: reading.values,
            place: ConfigPlace {
                file: path.map(Path::to_path_buf),
                overrides: overrides.clone(),
                environment: environment.clone(),
            },
        })
    } else {
        Err(Problems(problems))
    }
}

fn read_config(section: &mut Section<'_, '_, '_>, no_auth: bool) -> Config {
    let data = section.get("data", PathBuf::from(DATA));
    let listen = read_listeners(section);
    let ops_listen = section.find("ops_listen");
    let log = section.table("log", LogConfig::read);
    let limits = section.table("limits", Limits::read);
    let (store, shards_chosen) = section.table("store", |section| {
        (read_store(section, &limits), section.has("shards"))
    });
    let (store, record) = section.table("retention", |section| read_retention(section, store));
    let ingest = section.table("ingest", IngestConfig::read);
    let keys = read_keys(section);
    let batch_bytes_max = limits.body_bytes.max(limits.slice_bytes);
    let sources = section.table("sources", |section| Sources::read(section, batch_bytes_max));
    let network = section.table("network", NetworkConfig::read);
    let ledger = section.table("ledger", LedgerConfig::read);

    let (names, destinations) = section.table("destinations", |section| {
        read_destinations(section, &network)
    });
    let commands = section.table("commands", |section| {
        CommandKind::read_all(section, &destinations, &network)
    });
    let mut routes = Route::read_all(section, &names);
    let kinds: Vec<_> = commands.iter().map(|kind| kind.name.clone()).collect();
    let rules = section.table(RULES, |section| read_rules(section, &kinds));
    routes.extend(routes_of(&rules));
    if routes.len() > ROUTES_MAX {
        section.problem(
            RULES,
            format!("expected at most {ROUTES_MAX} of routes and rules together"),
        );
    }
    let approving = ApprovingConfig::read(section, &names);
    if names.is_empty() {
        section.problem("destinations", "expected at least one destination");
        section.suggest("[destinations.NAME]".to_owned());
    } else if routes.is_empty() {
        section.problem(
            "routes",
            "expected at least one route, or nothing is delivered",
        );
        section.suggest("[[routes]]".to_owned());
    }
    Config {
        data,
        listen,
        ops_listen,
        no_auth,
        limits,
        store,
        record,
        shards_chosen,
        ingest,
        keys,
        routes,
        sources,
        rules: rules.into(),
        approving,
        network,
        ledger,
        log,
        commands,
        destinations,
    }
}

fn read_listeners(section: &mut Section<'_, '_, '_>) -> Vec<ListenAddr> {
    let usual = ListenAddr::Tcp(SocketAddr::from(([127, 0, 0, 1], 8700)));
    let listen = section.get("listen", vec![usual]);
    if listen.is_empty() || listen.len() > LISTENERS_MAX {
        section.problem("listen", format!("expected 1 to {LISTENERS_MAX} addresses"));
    }
    for (index, address) in listen.iter().enumerate() {
        // Port 0 is another port each time.
        let same = |other: &ListenAddr| other == address && !other.is_any_port();
        if listen.iter().take(index).any(same) {
            section.problem("listen", format!("expected {address} once"));
        }
    }
    listen
}

/// The names of all destinations, and those that could be read.
fn read_destinations(
    section: &mut Section<'_, '_, '_>,
    network: &NetworkConfig,
) -> (Vec<String>, Vec<DestinationConfig>) {
    let names = section.keys();
    if names.len() > DESTINATIONS_MAX {
        section.problem(
            "",
            format!("expected at most {DESTINATIONS_MAX} destinations"),
        );
    }
    let mut read = |name: &String| {
        section.table(name, |section| {
            DestinationConfig::read(name, network, section)
        })
    };
    let destinations = names
        .iter()
        .take(DESTINATIONS_MAX)
        .filter_map(&mut read)
        .collect();
    (names, destinations)
}

/// Reads a file and what it includes into one tree.
fn read_files(path: &Path, problems: &mut Vec<Problem>) -> Result<Table, Vec<Problem>> {
    let mut tree = read_file(path, &Origin::Default)?;
    let Some(include) = tree.remove("include") else {
        return Ok(tree);
    };
    let unfit = |origin: &Origin, message: &str| Problem {
        origin: origin.clone(),
        key: "include".to_owned(),
        message: message.to_owned(),
        add: None,
    };
    let included = Vec::<PathBuf>::read(&include);
    let included = included.map_err(|faults| {
        let told = |fault: Fault| unfit(&include.origin, &fault.message);
        faults.0.into_iter().map(told).collect::<Vec<_>>()
    })?;
    if included.len() > INCLUDES_MAX {
        let message = format!("expected at most {INCLUDES_MAX} files");
        return Err(vec![unfit(&include.origin, &message)]);
    }
    let mut unread = Vec::new();
    for path in included {
        match read_file(&path, &include.origin) {
            Ok(mut table) => {
                let nested = table.remove("include");
                problems.extend(nested.map(|node| {
                    unfit(
                        &node.origin,
                        "expected only in the file that serve is given",
                    )
                }));
                tree::merge(&mut tree, table, "", problems);
            }
            Err(problems) => unread.extend(problems),
        }
    }
    if unread.is_empty() {
        Ok(tree)
    } else {
        Err(unread)
    }
}

fn read_file(path: &Path, named_by: &Origin) -> Result<Table, Vec<Problem>> {
    let unreadable = |message: String| {
        vec![Problem {
            origin: named_by.clone(),
            key: String::new(),
            message: format!("{}: {message}", path.display()),
            add: None,
        }]
    };
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| unreadable(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(unreadable(format!(
            "expected at most {}",
            show_size(Size(FILE_BYTES_MAX))
        )));
    }
    tree::parse(&Arc::from(path), &text)
}

fn set_flags(tree: &mut Table, overrides: &Overrides) {
    let mut set = |key: &str, flag: &'static str, value: Value| {
        tree.insert(
            key.to_owned(),
            Node {
                origin: Origin::Flag(flag),
                value,
            },
        );
    };
    if let Some(data) = &overrides.data {
        set(
            "data",
            "--data",
            Value::Text(data.to_string_lossy().into_owned()),
        );
    }
    if !overrides.listen.is_empty() {
        let element = |address: &ListenAddr| Node {
            origin: Origin::Flag("--listen"),
            value: Value::Text(address.to_string()),
        };
        set(
            "listen",
            "--listen",
            Value::List(overrides.listen.iter().map(element).collect()),
        );
    }
    if let Some(address) = &overrides.ops_listen {
        set(
            "ops_listen",
            "--ops-listen",
            Value::Text(address.to_string()),
        );
    }
}

/// Where nobody says who gets events, a file in the data directory does: a first look needs no
/// configuration.
fn set_delivered(tree: &mut Table) {
    if tree.contains_key("destinations") || tree.contains_key("routes") {
        return;
    }
    // A data directory that cannot be read is told when it is read for itself.
    let data = tree.get("data").and_then(|node| PathBuf::read(node).ok());
    let path = data.unwrap_or_else(|| DATA.into()).join("delivered.ndjson");
    let node = |value| Node {
        origin: Origin::Default,
        value,
    };
    let text = |text: &str| node(Value::Text(text.to_owned()));
    let table = |entries: Vec<(&str, Node)>| {
        let owned = |(key, node): (&str, Node)| (key.to_owned(), node);
        node(Value::Table(entries.into_iter().map(owned).collect()))
    };
    let file = table(vec![
        ("kind", text("file")),
        ("path", text(&path.to_string_lossy())),
    ]);
    let route = table(vec![("to", node(Value::List(vec![text("delivered")])))]);
    tree.insert("destinations".to_owned(), table(vec![("delivered", file)]));
    tree.insert("routes".to_owned(), node(Value::List(vec![route])));
}
