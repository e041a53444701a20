//! Commands, through kills at every change of their state, a target that fails, dawdles and asks for time, and people
//! who approve through the API: each is executed exactly once by the target's own count, none is stuck, and every
//! state of it is in a ledger that verifies.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

mod judge;
mod people;
mod target;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Args;

use self::judge::judge;
use self::people::People;
use self::target::Target;
use crate::black_box::ending::invalid;
use crate::black_box::episode::Series;
use crate::black_box::server::Server;
use crate::black_box::story::instrumented;
use crate::{Budget, Verdict, sources};

/// Commands of a run that a change waits for.
const COMMANDS: u64 = 300;

/// Commands between two judgements.
const PER_EPISODE: u64 = 10_000;

/// Hits of a point at which the server dies, one after the other.
const HITS: [u64; 3] = [1, 4, 9];

/// How often a point that was not met is tried again: whether anything comes by there is up to chance.
const TRIES: usize = 8;

/// How long a run of the server may take to come to a point before it is asked to stop.
const RUN: Duration = Duration::from_secs(3);

/// How long the last run may get no further before something counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a fault in asking before sending again is planted by.
pub const SENT_BLINDLY: &str = "unknown-sent-again";

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,
}

/// Runs it. Under `--control` what may have been executed is sent again without asking.
pub fn run(arguments: &Arguments) -> Verdict {
    let budget = &arguments.budget;
    let reached = Mutex::new(BTreeSet::new());
    let series = Series {
        kind: "commands",
        cases: "commands",
        count: COMMANDS,
        per_episode: PER_EPISODE,
    };
    if budget.control {
        return series.control(budget, |seed, count| {
            episode(seed, count, Some(SENT_BLINDLY), &reached)
        });
    }
    let verdict = series.run(budget, |seed, count| episode(seed, count, None, &reached));
    let reached = reached.into_inner().unwrap();
    let missed: Vec<_> = points()
        .into_iter()
        .filter(|point| !reached.contains(point))
        .collect();
    match verdict {
        Verdict::Held if !missed.is_empty() => {
            Verdict::Invalid(format!("never reached: {missed:?}"))
        }
        other => other,
    }
}

/// A short episode with a planted fault, for whoever tests the tests.
pub fn hunt(seed: u64, fault: &str) {
    episode(seed, 60, Some(fault), &Mutex::default());
}

/// Where the server dies: at every point of commands.
fn points() -> Vec<String> {
    let mut points = sources::points();
    points.retain(|point| point.starts_with("commands."));
    points
}

fn episode(
    seed: u64,
    count: u64,
    planted: Option<&str>,
    reached: &Mutex<BTreeSet<String>>,
) -> String {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("server");
    std::fs::create_dir(&folder).unwrap();
    let target = Target::start(seed);
    let mut server = Server::configured(&folder, &configuration(&target));
    server.set_program(instrumented());
    if let Some(fault) = planted {
        server.plant(fault);
    }
    server.start();
    let people = People::hire(&server);
    server.kill();
    let mut load = people.work(seed, count);
    let mut kills = 0;
    // Without a fault every point is met; with one a few kills are enough to leave attempts open.
    let points = points();
    let some = if planted.is_some() { 4 } else { points.len() };
    for hits in HITS {
        for point in points.iter().take(some) {
            if meet(&mut server, point, hits) {
                kills += 1;
                reached.lock().unwrap().insert(point.clone());
            }
        }
    }
    for point in points.iter().take(some) {
        for _ in 0..TRIES {
            if reached.lock().unwrap().contains(point) {
                break;
            }
            if meet(&mut server, point, 1) {
                kills += 1;
                reached.lock().unwrap().insert(point.clone());
            }
        }
    }
    server.set_environment(Vec::new());
    server.start();
    target.recover();
    let proposed = load.proposed(&server);
    await_ends(&people, &server);
    load.end();
    let account = judge(&people, &mut server, &target, &proposed, Path::new(&folder));
    if planted.is_none() && target.is_too_kind() {
        invalid("the target did not fail, dawdle and ask for time");
    }
    format!("{kills} kills, {account}")
}

/// Runs the server until it dies at that point; whether it did.
fn meet(server: &mut Server, point: &str, hits: u64) -> bool {
    let at = ("WAYHOLD_FAILPOINT".to_owned(), format!("{point}:{hits}"));
    server.set_environment(vec![at]);
    server.spawn();
    let until = Instant::now() + RUN;
    while Instant::now() < until {
        if let Some(status) = server.ended() {
            return status.signal() == Some(9);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if server.ready_or_ended().is_err() {
        return true;
    }
    let (status, _) = server.terminate();
    status.signal() == Some(9)
}

/// Waits until every command has ended; as long as it gets further.
fn await_ends(people: &People, server: &Server) {
    let (mut further, mut least) = (Instant::now(), usize::MAX);
    loop {
        let open = people.open();
        if open.is_empty() {
            return;
        }
        if open.len() < least {
            (further, least) = (Instant::now(), open.len());
        }
        if further.elapsed() > PATIENCE {
            server.fail(&format!("commands are stuck: {open:?}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Kinds for a target that knows keys again and for one that has to be asked, each with and without approval.
fn configuration(target: &Target) -> String {
    let address = target.address;
    let mut text = format!(
        r#"
[store]
min_free = "8 MiB"
reserve_bytes = "1 MiB"
segment_bytes = "1 MiB"

[network]
allow = ["127.0.0.0/8"]

[destinations.keyed]
kind = "http"
url = "http://{address}/keyed"
timeout = "400ms"
concurrency = 16
retry = {{ base = "20ms", cap = "200ms" }}
breaker = {{ failures = 100000 }}

[destinations.asked]
kind = "http"
url = "http://{address}/asked"
timeout = "400ms"
concurrency = 16
retry = {{ base = "20ms", cap = "200ms" }}
breaker = {{ failures = 100000 }}

[destinations.rest]
kind = "null"

[[routes]]
to = ["rest"]
"#
    );
    for (name, risk, target) in [
        ("keyed_auto", "low", "keyed"),
        ("keyed_approved", "high", "keyed"),
        ("asked_auto", "low", "asked"),
        ("asked_approved", "high", "asked"),
    ] {
        let ask = match target {
            "keyed" => "target_idempotent = true".to_owned(),
            _ => format!("reconcile = {{ url = \"http://{address}/asked/{{id}}\" }}"),
        };
        let kind = format!(
            "[commands.{name}]\ndestination = \"{target}\"\nrisk = \"{risk}\"\nreversibility = \"compensatable\"\n{ask}\n"
        );
        text.push_str(&kind);
    }
    text
}
