//! The configuration of everything behind our front: defaults, one destination that does nothing, and
//! one route that asks something of each event.

use wayhold::config::{self, Environment, ListenAddr, Loaded, Overrides};

use super::args::Args;
use super::crowd;
use crate::BenchError;

/// The one destination.
pub const DESTINATION: &str = "sink";

/// Most deliveries that a patient destination holds: more than any comparison lets wait, so that what all of them take is
/// seen, and not what the bound of a destination leaves of it.
const HELD_MAX: u32 = 1_000_000;

const ROUTE: &str = r#"
[[routes]]
when = 'type.startsWith("com.example.")'
to = ["sink"]
"#;

/// The checked configuration of one server, as a file and flags would give it.
pub fn settings(args: &Args) -> Result<Loaded, BenchError> {
    let file = args.data.join("wayhold.toml");
    // Tables of a file may come in any order.
    let commands = args.commands.as_ref();
    let commands = commands.map(|kind| target_of(kind) + ROUTE);
    let destinations = commands.or_else(|| crowd::destinations(args));
    let destinations = destinations.unwrap_or_else(|| destination(args) + ROUTE);
    std::fs::write(&file, destinations + &limits(args) + &source(args))?;
    let overrides = Overrides {
        data: Some(args.data.join("data")),
        listen: vec![ListenAddr::Tcp(args.listen)],
        ..Overrides::default()
    };
    // The environment of whoever measures changes nothing.
    let loaded = config::load(Some(&file), &overrides, &Environment::default())?;
    std::fs::create_dir_all(&loaded.config.data)?;
    Ok(loaded)
}

/// What is not as usual.
fn limits(args: &Args) -> String {
    let window = args.window_reach.map(|ids| format!("window_ids = {ids}\n"));
    let shards = args.shards.map(|shards| format!("shards = {shards}\n"));
    let store = window.into_iter().chain(shards).collect::<String>();
    let store = (!store.is_empty()).then(|| format!("[store]\n{store}"));
    let retention = args
        .retention_bytes
        .map(|bytes| format!("[retention]\nbytes = \"{bytes} B\"\n"));
    store.into_iter().chain(retention).collect()
}

/// A target that is down, and commands for it that nobody has to approve.
fn target_of(kind: &str) -> String {
    format!(
        "[destinations.{DESTINATION}]\nkind = \"http\"\nurl = \"http://127.0.0.1:9/orders\"\n\
         allow_networks = [\"127.0.0.0/8\"]\n\
         [commands.{kind}]\ndestination = \"{DESTINATION}\"\nrisk = \"low\"\n\
         reversibility = \"compensatable\"\ntarget_idempotent = true\n"
    )
}

/// A table that is read.
fn source(args: &Args) -> String {
    let file = args.outbox.as_ref();
    file.map_or_else(String::new, |file| {
        format!(
            "[sources.bench]\nkind = \"outbox_table\"\nurl = {{ file = {file:?} }}\n\
             table = \"outboxevent\"\n"
        )
    })
}

#[cfg(feature = "kafka")]
fn destination(args: &Args) -> String {
    match (&args.kafka, &args.topic) {
        (Some(servers), Some(topic)) => format!(
            "[destinations.{DESTINATION}]\nkind = \"kafka\"\nbootstrap_servers = {servers:?}\ntopic = {topic:?}\n"
        ),
        _ => webhook(args).unwrap_or_else(nothing),
    }
}

#[cfg(not(feature = "kafka"))]
fn destination(args: &Args) -> String {
    webhook(args).unwrap_or_else(nothing)
}

fn webhook(args: &Args) -> Option<String> {
    let url = args.webhook.as_ref()?;
    let rate = args.rate.as_ref();
    let rate = rate.map_or_else(String::new, |rate| format!("rate = {rate:?}\n"));
    let patient = match args.patient {
        true => format!(
            "max_blocked_keys = {HELD_MAX}\n[destinations.{DESTINATION}.retry]\nwaits = [\"1h\"]\n\
             [destinations.{DESTINATION}.breaker]\nfailures = 1000000\n"
        ),
        false => String::new(),
    };
    Some(format!(
        "[destinations.{DESTINATION}]\nkind = \"webhook\"\nurl = {url:?}\n\
         allow_networks = [\"127.0.0.0/8\"]\n{rate}{patient}"
    ))
}

fn nothing() -> String {
    format!("[destinations.{DESTINATION}]\nkind = \"null\"\n")
}
