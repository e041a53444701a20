//! `kill -9` at named points: the server ends itself when it reaches one for the n-th time, under load and with
//! an operator at work. Every point that the sources name is met; one that is never reached fails the run, since
//! nobody knows what a kill there does.
//!
//! Needs the build that holds the points: this executable itself, where it was built with `failpoints`.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::black_box::episode::Series;
use crate::black_box::server::Server;
use crate::black_box::story::Story;
use crate::{Budget, Verdict};

/// Hits of a point that are met: the first, and some on which something was done before.
const HITS: [u64; 3] = [1, 2, 7];

/// Kills between two judgements.
const PER_EPISODE: u64 = 12;

/// How long a server runs under load before it is asked to stop, so that points of a stop are reached too; the
/// last ones only for what is reached seldom.
const RUNS: [Duration; 4] = [
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(2000),
    Duration::from_millis(6000),
];

/// Where a process may be told to die: every point that the product's sources name, in order.
pub fn names() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut names = BTreeSet::new();
    for source in ["store/src", "server/src"].map(|part| crates.join(part)) {
        for file in rust_files(&source) {
            let text = std::fs::read_to_string(&file).unwrap();
            let after = text.split("failpoint!(\"").skip(1);
            names.extend(after.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    names.into_iter().collect()
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let below = |path: PathBuf| match path.is_dir() {
        true => rust_files(&path),
        false if path.extension().is_some_and(|end| end == "rs") => vec![path],
        false => Vec::new(),
    };
    entries.map(|entry| entry.path()).flat_map(below).collect()
}

/// How many kills meet every point at every hit once.
pub fn whole_pass() -> u64 {
    (names().len() * HITS.len()) as u64
}

/// Kills at points, in turn; the first pass meets every point at its first hit.
pub fn run(budget: &Budget) -> Verdict {
    let names = names();
    let (reached, tried) = (Mutex::new(BTreeSet::new()), Mutex::new(BTreeSet::new()));
    let series = Series {
        kind: "kill --at points",
        cases: "kills at points",
        count: names.len() as u64,
        per_episode: PER_EPISODE,
    };
    let verdict = series.run(budget, |seed, kills| {
        let first = (seed - 1) * PER_EPISODE;
        let cases: Vec<(&str, u64)> = (first..first + kills)
            .map(|number| {
                let number = usize::try_from(number).unwrap();
                let hits = HITS[number / names.len() % HITS.len()];
                (names[number % names.len()].as_str(), hits)
            })
            .collect();
        tried
            .lock()
            .unwrap()
            .extend(cases.iter().map(|(name, _)| (*name).to_owned()));
        let (met, account) = episode(seed, &cases);
        reached.lock().unwrap().extend(met);
        account
    });
    let (tried, reached) = (tried.into_inner().unwrap(), reached.into_inner().unwrap());
    let missed: Vec<_> = tried.difference(&reached).collect();
    println!(
        "kill --at points: {} of {} points reached",
        reached.len(),
        names.len()
    );
    match verdict {
        Verdict::Held if !missed.is_empty() => {
            Verdict::Invalid(format!("never reached: {missed:?}"))
        }
        other => other,
    }
}

/// Goes through cases on one data directory; which points were reached, and what there is to say.
fn episode(seed: u64, cases: &[(&str, u64)]) -> (Vec<String>, String) {
    let mut reached = Vec::new();
    let mut story = Story::new(seed);
    let unclean_stops = story.under_load(|story| {
        let mut kills = 0;
        for (name, hits) in cases {
            let (met, ended) = meet(&mut story.server, name, *hits);
            kills += ended;
            if met {
                reached.push((*name).to_owned());
            }
        }
        kills
    });
    let account = story.judge(100, unclean_stops);
    story.server.expect_no_alarm();
    let cases = cases.len();
    let account = format!("{} of {cases} points reached, {account}", reached.len());
    (reached, account)
}

/// Runs the server until it dies at that point; whether it did, and how often it ended uncleanly.
fn meet(server: &mut Server, name: &str, hits: u64) -> (bool, u64) {
    let mut unclean = 0;
    // What is met once in a run, or seldom, is not waited for the seventh time.
    let runs = if hits == 1 { &RUNS[..] } else { &RUNS[..2] };
    for (attempt, run) in runs.iter().enumerate() {
        if attempt > 0 {
            // The last one ended as it should: give the next one something to recover.
            server.set_environment(Vec::new());
            server.start();
            std::thread::sleep(*run / 2);
            server.kill();
            unclean += 1;
        }
        let at = ("WAYHOLD_FAILPOINT".to_owned(), format!("{name}:{hits}"));
        server.set_environment(vec![at]);
        server.spawn();
        let ended = match end_within(server, *run) {
            Some(status) => status,
            None => server.terminate().0,
        };
        if is_kill(ended) {
            return (true, unclean + 1);
        }
        assert!(ended.success(), "{name}: ended with {ended}");
    }
    (false, unclean)
}

fn end_within(server: &mut Server, time: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if let Some(status) = server.ended() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    // A run that has not come so far yet on a busy machine is no clean stop.
    server.ready_or_ended().err()
}

fn is_kill(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}
