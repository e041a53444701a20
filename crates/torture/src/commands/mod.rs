//! Commands, through kills at every change of their state or cuts of the disk's power, a target that fails, dawdles and
//! asks for time, and people who approve through the API: each is executed exactly once by the target's own count, none
//! is stuck, and every state of it is in a ledger that verifies, also against the checkpoints in a second place, and
//! after what is older than the retention was removed.

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

use self::judge::{SECOND_PLACE, judge, judge_erasures, judge_remainder};
use self::people::{Load, People};
use self::target::Target;
use crate::black_box::ending::invalid;
use crate::black_box::episode::Series;
use crate::black_box::seed::Seed;
use crate::black_box::server::Server;
use crate::black_box::story::instrumented;
use crate::black_box::volume::Volume;
use crate::power_cut::cut_power;
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

/// Power cuts of an episode at least.
const CUTS_MIN: u64 = 10;

/// Size of the volume whose power is cut: commands and their ledger, and the space that must stay free, several times
/// over.
const VOLUME_MIB: u64 = 256;

/// What the points begin with at which records are removed, which is after everything was judged.
const RETENTION: &str = "commands.retention-";

/// What a fault in asking before sending again is planted by.
pub const SENT_BLINDLY: &str = "unknown-sent-again";

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,

    /// Cuts the power of the disk at random moments, as root, instead of killing the server at its points.
    #[arg(long)]
    power: bool,
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
    if arguments.power {
        let series = Series {
            kind: "commands --power",
            ..series
        };
        return series.run(budget, |seed, count| episode(seed, count, Ends::PowerCuts));
    }
    if budget.control {
        let ends = Ends::AtPoints(Some(SENT_BLINDLY), &reached);
        return series.control(budget, |seed, count| episode(seed, count, ends));
    }
    let ends = Ends::AtPoints(None, &reached);
    let verdict = series.run(budget, |seed, count| episode(seed, count, ends));
    let reached = reached.into_inner().unwrap();
    let (working, forgetting) = points();
    let missed: Vec<_> = working
        .into_iter()
        .chain(forgetting)
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
    let reached = Mutex::default();
    episode(seed, 60, Ends::AtPoints(Some(fault), &reached));
}

/// Where the server dies: at every point of commands and of their ledger, while it works; and where it removes records.
fn points() -> (Vec<String>, Vec<String>) {
    let mut points = sources::points();
    points.retain(|point| point.starts_with("commands."));
    points
        .into_iter()
        .partition(|point| !point.starts_with(RETENTION))
}

/// How the server ends again and again.
#[derive(Clone, Copy)]
enum Ends<'a> {
    /// It dies at each point, with a fault planted in it where one is named, and what was reached is noted.
    AtPoints(Option<&'a str>, &'a Mutex<BTreeSet<String>>),
    /// The power of its disk fails.
    PowerCuts,
}

fn episode(seed: u64, count: u64, ends: Ends<'_>) -> String {
    let root = tempfile::tempdir().unwrap();
    let mut volume = match ends {
        Ends::AtPoints(..) => None,
        Ends::PowerCuts => match Volume::make(root.path(), VOLUME_MIB, "power cuts") {
            Some(volume) => Some(volume),
            None => invalid("power cuts need root, ext4 in a loop image and a C compiler"),
        },
    };
    let inside = volume.as_ref().map_or(root.path(), |volume| volume.path());
    let folder = inside.join("server");
    std::fs::create_dir(&folder).unwrap();
    let target = Target::start(seed);
    // Beside the server's disk, so that it keeps what it was given when the power of that one fails.
    let second = root.path().join(SECOND_PLACE);
    let mut server = Server::configured(&folder, &configuration(&target, &second));
    if let Ends::AtPoints(planted, _) = ends {
        server.set_program(instrumented());
        planted.iter().for_each(|fault| server.plant(fault));
    }
    server.start();
    let people = People::hire(&server);
    server.kill();
    let mut load = people.work(seed, count);
    let ended = match (ends, &mut volume) {
        (Ends::AtPoints(planted, reached), _) => {
            let kills = die(&mut server, (seed, &load), planted.is_some(), reached);
            format!("{kills} kills")
        }
        (Ends::PowerCuts, Some(volume)) => {
            format!("{} power cuts", cut(&mut server, volume, (seed, &load)))
        }
        (Ends::PowerCuts, None) => invalid("no volume"),
    };
    server.set_environment(Vec::new());
    server.start();
    target.recover();
    let proposed = load.proposed(&server);
    await_ends(&people, &server);
    let erased = load.end();
    let account = judge(&people, &mut server, &target, &proposed, root.path());
    let erasures = judge_erasures(&server, &erased, root.path());
    let forgotten = match ends {
        Ends::AtPoints(None, reached) => {
            let kills = forget(&mut server, root.path(), reached);
            format!("; {kills} kills where records are removed")
        }
        Ends::AtPoints(Some(_), _) | Ends::PowerCuts => String::new(),
    };
    let is_planted = matches!(ends, Ends::AtPoints(Some(_), _));
    if !is_planted && target.is_too_kind() {
        invalid("the target did not fail, dawdle and ask for time");
    }
    format!("{ended}, {account}, {erasures} erased{forgotten}")
}

/// Lets the server die at every point, and on and on while there is more to propose; how often it did.
fn die(
    server: &mut Server,
    (seed, load): (u64, &Load),
    is_planted: bool,
    reached: &Mutex<BTreeSet<String>>,
) -> u64 {
    let mut kills = 0;
    // Without a fault every point is met; with one a few kills are enough to leave attempts open.
    let (points, _) = points();
    let some = if is_planted { 4 } else { points.len() };
    for hits in HITS {
        for point in points.iter().take(some) {
            if meet(server, point, hits) {
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
            if meet(server, point, 1) {
                kills += 1;
                reached.lock().unwrap().insert(point.clone());
            }
        }
    }
    let dice = Seed::new(seed ^ 0xd1e5);
    let mut again = points.iter().take(some).cycle();
    while load.goes_on()
        && let Some(point) = again.next()
    {
        let hits = HITS[usize::try_from(dice.below(HITS.len() as u64)).unwrap()];
        kills += u64::from(meet(server, point, hits));
    }
    kills
}

/// Cuts the power of the disk again and again while there is more to propose; how often.
fn cut(server: &mut Server, volume: &mut Volume, (seed, load): (u64, &Load)) -> u64 {
    let dice = Seed::new(seed ^ 0xc07);
    let mut cuts = 0;
    while load.goes_on() || cuts < CUTS_MIN {
        server.start();
        std::thread::sleep(Duration::from_millis(20 + dice.below(600)));
        cut_power(server, volume);
        cuts += 1;
    }
    cuts
}

/// Has records removed for their age, and the server killed where it does so; how often it was. What is left verifies,
/// against what was exported before.
fn forget(server: &mut Server, beside: &Path, reached: &Mutex<BTreeSet<String>>) -> u64 {
    let mut kills = 0;
    let aged = ("WAYHOLD_LEDGER_AGED".to_owned(), "1".to_owned());
    let (_, points) = points();
    for hits in HITS {
        for point in &points {
            if meet_with(server, vec![aged.clone()], point, hits) {
                kills += 1;
                reached.lock().unwrap().insert(point.clone());
            }
        }
    }
    server.set_environment(vec![aged]);
    server.start();
    std::thread::sleep(RUN);
    judge_remainder(server, beside);
    kills
}

/// Runs the server until it dies at that point; whether it did.
fn meet(server: &mut Server, point: &str, hits: u64) -> bool {
    meet_with(server, Vec::new(), point, hits)
}

/// The same, with more in its environment.
fn meet_with(
    server: &mut Server,
    mut environment: Vec<(String, String)>,
    point: &str,
    hits: u64,
) -> bool {
    environment.push(("WAYHOLD_FAILPOINT".to_owned(), format!("{point}:{hits}")));
    server.set_environment(environment);
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
fn configuration(target: &Target, second: &Path) -> String {
    let (address, second) = (target.address, second.display());
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

[ledger.anchors.second]
kind = "folder"
path = "{second}"
every = "1s"

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
