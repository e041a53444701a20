//! One thing after the other: killed inside a commit, restarted, everything that was open sent again, delivered;
//! then the power fails, it starts again, takes 100 new events, and all are delivered.

use std::time::Duration;

use crate::black_box::client::Client;
use crate::black_box::ending::invalid;
use crate::black_box::episode::Series;
use crate::black_box::history::{Bounds, Told, judge_run};
use crate::black_box::load::{Load, PRODUCERS, Plan};
use crate::black_box::receiver::{Mood, Receiver};
use crate::black_box::server::{SMALL_SEGMENTS, Server, shards_of};
use crate::black_box::story::instrumented;
use crate::black_box::volume::Volume;
use crate::power_cut::cut_power;
use crate::{Budget, Verdict};

/// Where a commit is cut: nothing of it written, all of it but the end, synced and not told.
const POINTS: [&str; 3] = ["group.before-commit", "group.inserted", "group.committed"];

/// New events at the end.
const NEW: u64 = 100;

const VOLUME_MIB: u64 = 192;

/// Runs scenarios, each with another point and another hit.
pub(super) fn run(budget: &Budget) -> Verdict {
    let series = Series {
        kind: "kill --at combined",
        cases: "scenarios",
        count: 1,
        per_episode: 1,
    };
    series.run(budget, |seed, _| scenario(seed))
}

fn scenario(seed: u64) -> String {
    let root = tempfile::tempdir().unwrap();
    let Some(mut volume) = Volume::make(root.path(), VOLUME_MIB, "the combined scenario") else {
        invalid("power cuts need root, ext4 in a loop image and a C compiler");
    };
    let receiver = Receiver::start(seed, Mood::Flaky);
    let shards = shards_of(seed);
    let mut server =
        Server::prepare_sharded(volume.path(), receiver.address, SMALL_SEGMENTS, shards);
    server.set_program(instrumented());
    let plan = Plan::new(server.address, seed);

    let point = POINTS[usize::try_from(seed).unwrap() % POINTS.len()];
    let hits = 20 + plan.seed.below(60);
    let at = ("WAYHOLD_FAILPOINT".to_owned(), format!("{point}:{hits}"));
    server.set_environment(vec![at]);
    server.start();
    let load = Load::start(&plan, PRODUCERS);
    server.await_end();
    let left_open = plan.history.unknown();

    server.set_environment(Vec::new());
    server.start();
    // Producers send again what they were not told of, and now and then what they were.
    std::thread::sleep(Duration::from_millis(200 + plan.seed.below(300)));
    load.stop();
    let mut client = Client::new(server.address);
    for event in plan.history.open() {
        plan.send(&mut client, &[event]).unwrap();
    }
    let duplicates = plan.duplicates.load(std::sync::atomic::Ordering::Relaxed);
    cut_power(&mut server, &mut volume);

    server.start();
    let mut client = Client::new(server.address);
    let fresh: Vec<_> = (0..NEW).map(|_| plan.event()).collect();
    for event in &fresh {
        plan.send(&mut client, &[*event]).unwrap();
    }
    let stored = |event: &&_| matches!(plan.history.told(**event), Told::Stored(_));
    let taken = fresh.iter().filter(stored).count();
    if taken as u64 != NEW {
        server.fail(&format!("takes {taken} of {NEW} new events after all that"));
    }
    receiver.feel(Mood::Well);
    let bounds = Bounds {
        stored_min: 200,
        unclean_stops: 2,
    };
    let account = judge_run(&mut server, &plan.history, &receiver, bounds);
    if left_open == 0 || duplicates == 0 {
        invalid("nothing was in flight when it was killed, or nothing was sent again");
    }
    format!(
        "{shards} shards, killed at {point} with {left_open} open, {duplicates} duplicates, {account}"
    )
}
