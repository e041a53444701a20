//! `kill -9` at named points: the server ends itself when it reaches one for the n-th time, under load and with
//! an operator at work. Every point that the sources name is met; one that is never reached fails the run, since
//! nobody knows what a kill there does.
//!
//! Needs the build that holds the points: this executable itself, where it was built with `failpoints`.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::black_box::episode::Series;
use crate::black_box::operator::Duty;
use crate::black_box::receiver::Mood;
use crate::black_box::server::Server;
use crate::black_box::story::Story;
use crate::{Budget, Verdict, sources};

/// Hits of a point that are met: the first, and some on which something was done before.
const HITS: [u64; 3] = [1, 2, 7];

/// Kills between two judgements.
const PER_EPISODE: u64 = 12;

/// How long a server runs under load before it is asked to stop, so that points of a stop are reached too; the
/// last ones only for what is reached seldom: when a generation of shards was left behind by the window of ids.
const RUNS: [Duration; 6] = [
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(2000),
    Duration::from_millis(6000),
    Duration::from_secs(15),
    Duration::from_secs(30),
];

/// What the operator does most on the way to a point.
fn duty(point: &str) -> Duty {
    match point.split_once('.') {
        Some(("backup", _)) => Duty::Backups,
        Some(("reshard" | "retire", _)) => Duty::Shape,
        _ => Duty::Everyday,
    }
}

/// Where the server may be told to die. What commands go through is met by a harness of its own (`commands`).
pub fn points() -> Vec<String> {
    let mut points = sources::points();
    points.retain(|point| !point.starts_with("commands."));
    points
}

/// How many kills meet every point at every hit once.
pub fn whole_pass() -> u64 {
    (points().len() * HITS.len()) as u64
}

/// Kills at points, in turn; the first pass meets every point at its first hit.
pub fn run(budget: &Budget) -> Verdict {
    let names = points();
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
            let duty = duty(name);
            story.focus.set(duty);
            // What is refused for good keeps shards that could go otherwise.
            story.receiver.feel(match duty {
                Duty::Shape => Mood::Flaky,
                _ => Mood::Picky,
            });
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
            // The guest is owed something then, and gone in the next run.
            server.set_environment(Vec::new());
            server.set_guest(true);
            server.start();
            std::thread::sleep(*run / 2);
            server.kill();
            unclean += 1;
        }
        let at = ("WAYHOLD_FAILPOINT".to_owned(), format!("{name}:{hits}"));
        server.set_environment(vec![at]);
        server.set_guest(false);
        server.spawn();
        let ended = match end_within(server, *run) {
            Some(status) => status,
            None => server.terminate().0,
        };
        if is_kill(ended) {
            return (true, unclean + 1);
        }
        if !ended.success() {
            server.fail(&format!("ended with {ended} on the way to {name}"));
        }
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
