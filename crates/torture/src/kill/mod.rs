//! `kill -9` with many requests in flight: at random moments, also while it starts; at named points
//! (`points`); and once with everything that may follow (`combined`).

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

mod combined;
pub mod points;

use std::time::Duration;

use crate::black_box::ending::invalid;
use crate::black_box::episode::Series;
use crate::black_box::history::{Bounds, judge_run};
use crate::black_box::load::{Load, PRODUCERS, Plan};
use crate::black_box::receiver::{Mood, Receiver};
use crate::black_box::server::{SMALL_SEGMENTS, Server, shards_of};
use crate::black_box::story::instrumented;
use crate::{Budget, Verdict};
use clap::{Args, ValueEnum};

/// Kills between two judgements.
const KILLS_PER_EPISODE: u64 = 10;

/// Kills of a short run.
const KILLS: u64 = 20;

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,

    /// Only these kills; otherwise all of them, one after the other, the points first.
    #[arg(long)]
    at: Option<At>,
}

/// When a server is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum At {
    /// At random moments.
    Random,
    /// At every named point, at several hits.
    Points,
    /// Inside a commit, and then everything that may follow, a power cut included.
    Combined,
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Verdict {
    let budget = &arguments.budget;
    if budget.control {
        return control(budget);
    }
    match arguments.at {
        Some(At::Random) => at_random(budget),
        Some(At::Points) => points::run(budget),
        Some(At::Combined) => combined::run(budget),
        None => all(budget),
    }
}

/// The points, then the combined scenario, then random moments for the rest of the count; each within the time.
fn all(budget: &Budget) -> Verdict {
    let of = |count| Budget {
        count: Some(count),
        ..budget.clone()
    };
    let short = points::points().len() as u64;
    let wanted = budget.count.unwrap_or(short + KILLS);
    let at_points = wanted.min(points::whole_pass());
    let verdict = points::run(&of(at_points));
    if verdict != Verdict::Held {
        return verdict;
    }
    let verdict = combined::run(&of(wanted.div_ceil(200)));
    match (verdict, wanted - at_points) {
        (Verdict::Held, rest @ 1..) => at_random(&of(rest)),
        (verdict, _) => verdict,
    }
}

/// Kills at random moments.
pub fn at_random(budget: &Budget) -> Verdict {
    let series = Series {
        kind: "kill --at random",
        cases: "kills",
        count: KILLS,
        per_episode: KILLS_PER_EPISODE,
    };
    series.run(budget, |seed, kills| episode(seed, kills, None))
}

/// The same of a server that forgets ids when it starts: what is sent again is stored again.
fn control(budget: &Budget) -> Verdict {
    let series = Series {
        kind: "kill --control",
        cases: "kills",
        count: KILLS,
        per_episode: KILLS_PER_EPISODE,
    };
    let planted = "ids-forgotten-at-restart";
    series.control(budget, |seed, kills| episode(seed, kills, Some(planted)))
}

fn episode(seed: u64, kills: u64, planted: Option<&str>) -> String {
    let shards = shards_of(seed);
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("server");
    std::fs::create_dir(&folder).unwrap();
    let receiver = Receiver::start(seed, Mood::Flaky);
    let mut server = Server::prepare_sharded(&folder, receiver.address, SMALL_SEGMENTS, shards);
    receiver.follow(&server);
    if let Some(fault) = planted {
        server.set_program(instrumented());
        server.plant(fault);
    }
    let plan = Plan::new(server.address, seed);
    let load = Load::start(&plan, PRODUCERS);
    let mut while_starting = 0;
    let mut left_open = 0;
    for kill in 0..kills {
        server.spawn();
        // The first start makes the directory; what is killed afterwards has something to recover.
        if kill > 0 && plan.seed.one_in(3) {
            std::thread::sleep(Duration::from_millis(plan.seed.below(120)));
            while_starting += u64::from(!server.is_ready());
        } else {
            server.await_ready();
            std::thread::sleep(Duration::from_millis(20 + plan.seed.below(250)));
        }
        server.kill();
        left_open = left_open.max(plan.history.unknown());
    }
    server.start();
    load.stop();
    receiver.feel(Mood::Well);
    server.drain();
    let bounds = Bounds {
        stored_min: 100 + 20 * usize::try_from(kills).unwrap(),
        unclean_stops: kills,
    };
    let account = judge_run(&mut server, &plan.history, &receiver, bounds);
    if left_open == 0 {
        invalid("no request was in flight when it was killed");
    }
    server.expect_no_alarm();
    let (status, _) = server.terminate();
    if !status.success() {
        server.fail(&format!("does not stop as it should: {status}"));
    }
    format!("{shards} shards, {kills} kills ({while_starting} while starting), {account}")
}
