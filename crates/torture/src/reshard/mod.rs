//! The number of shards grows and shrinks at random under load, and the server is killed at random moments of
//! that: nothing may be lost, reordered or altered, and while a change is made events go on being accepted.

#![expect(
    clippy::unwrap_used,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;

use crate::black_box::client::Client;
use crate::black_box::ending::{invalid, joined};
use crate::black_box::episode::Series;
use crate::black_box::history::{Bounds, judge_run};
use crate::black_box::load::{Load, PRODUCERS, Plan};
use crate::black_box::receiver::{Mood, Receiver};
use crate::black_box::server::{SMALL_SEGMENTS, Server, shards_of};
use crate::black_box::story::instrumented;
use crate::{Budget, Verdict};

/// Changes between two judgements.
const CHANGES_PER_EPISODE: u64 = 10;

/// Changes of a short run.
const CHANGES: u64 = 6;

/// Most shards that a change asks for.
const SHARDS_MAX: u64 = 5;

/// One change in so many is cut off by a kill.
const KILL_ONE_IN: u64 = 3;

/// The fault of the control.
const ORDER_FORGOTTEN: &str = "reshard-forgets-order";

/// A window that generations leave behind during an episode, so that they are retired under load too. Producers
/// are patient then: what they send again is known.
const SMALL_WINDOW: &str = "window_ids = 2000\nsegment_rows = 250\n";

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Verdict {
    let series = Series {
        kind: "reshard",
        cases: "changes of the number of shards",
        count: CHANGES,
        per_episode: CHANGES_PER_EPISODE,
    };
    match arguments.budget.control {
        true => control(&arguments.budget),
        false => series.run(&arguments.budget, |seed, changes| {
            episode(seed, changes, None)
        }),
    }
}

/// Changes of a server whose lanes read a new generation before they have come to the end of the older ones.
fn control(budget: &Budget) -> Verdict {
    let series = Series {
        kind: "reshard --control",
        cases: "changes of the number of shards",
        count: 4 * CHANGES_PER_EPISODE,
        per_episode: CHANGES_PER_EPISODE,
    };
    series.control(budget, |seed, changes| {
        episode(seed, changes, Some(ORDER_FORGOTTEN))
    })
}

/// Changes of one server with a history, and the judgement.
pub fn episode(seed: u64, changes: u64, planted: Option<&str>) -> String {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("server");
    std::fs::create_dir(&folder).unwrap();
    let receiver = Receiver::start(seed, Mood::Flaky);
    let store = format!("{SMALL_WINDOW}{SMALL_SEGMENTS}");
    let mut server = Server::prepare_sharded(&folder, receiver.address, &store, shards_of(seed));
    receiver.follow(&server);
    if let Some(fault) = planted {
        server.set_program(instrumented());
        server.plant(fault);
    }
    let plan = Plan::patient(server.address, seed);
    server.start();
    let load = Load::start(&plan, PRODUCERS);
    let (mut kills, mut done, mut longest) = (0, 0, 0);
    for _ in 0..changes {
        std::thread::sleep(Duration::from_millis(20 + plan.seed.below(250)));
        let other = 1 + plan.seed.below(SHARDS_MAX - 1);
        let count = 1 + (shards(&server) - 1 + other) % SHARDS_MAX;
        let change = Change::begin(&server, count);
        if plan.seed.one_in(KILL_ONE_IN) {
            std::thread::sleep(Duration::from_millis(plan.seed.below(60)));
            server.kill();
            kills += 1;
            change.end();
            server.start();
            // It was made or it was not, and asking again is safe.
            if Change::begin(&server, count).end() {
                done += 1;
            }
        } else {
            let before = plan.history.stored();
            if change.end() {
                done += 1;
            } else {
                server.fail("a change of the number of shards was refused");
            }
            // Accepting goes on: the load gets further whatever is under way.
            await_progress(&plan, before, &server);
        }
        if shards(&server) != count {
            server.fail(&format!("new events do not go to {count} shards"));
        }
        longest = longest.max(generations(&server));
    }
    load.stop();
    receiver.feel(Mood::Well);
    server.drain();
    let bounds = Bounds {
        stored_min: 20 * usize::try_from(changes).unwrap(),
        unclean_stops: kills,
    };
    let account = judge_run(&mut server, &plan.history, &receiver, bounds);
    if done < changes {
        invalid("a change was not made");
    }
    format!("{changes} changes, {kills} kills, up to {longest} generations, {account}")
}

/// A change that is asked for on a connection of its own.
struct Change {
    asked: std::thread::JoinHandle<bool>,
}

impl Change {
    fn begin(server: &Server, count: u64) -> Self {
        let address = server.address;
        let is_sent = Arc::new(AtomicBool::new(false));
        let sent = Arc::clone(&is_sent);
        let asked = std::thread::spawn(move || {
            let body = format!("{{\"count\": {count}}}");
            sent.store(true, Ordering::SeqCst);
            let answer = Client::new(address).put("/v1/shards", body.as_bytes());
            answer.is_ok_and(|answer| answer.status == 200)
        });
        while !is_sent.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        Self { asked }
    }

    /// Whether it was answered as done.
    fn end(self) -> bool {
        joined(self.asked)
    }
}

/// Over how many shards new events are spread.
fn shards(server: &Server) -> u64 {
    let listed = server.get("/v1/shards");
    let newest = listed
        .get("items")
        .unwrap()
        .as_array()
        .and_then(|items| items.last());
    newest.and_then(|one| one["shards"].as_u64()).unwrap()
}

fn generations(server: &Server) -> usize {
    let listed = server.get("/v1/shards");
    listed.get("items").unwrap().as_array().map_or(0, Vec::len)
}

/// Waits until the load got further than this, and fails after a bound that only a stall reaches.
fn await_progress(plan: &Plan, before: usize, server: &Server) {
    for _ in 0..2_000 {
        if plan.history.stored() > before {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    server.fail("nothing was accepted for ten seconds after a change");
}
