//! Power cuts under load, on a real filesystem; and the proof that this would notice a store that does not
//! sync.

#![expect(
    clippy::unwrap_used,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

use std::cell::Cell;
use std::time::Duration;

use clap::Args;

use crate::black_box::ending::invalid;
use crate::black_box::episode::Series;
use crate::black_box::history::{Bounds, History, judge_run};
use crate::black_box::load::{Load, PRODUCERS, Plan};
use crate::black_box::native::{Action, SEGMENT_WAL, Shim};
use crate::black_box::receiver::{Mood, Receiver};
use crate::black_box::server::{SMALL_SEGMENTS, Server, shards_of};
use crate::black_box::volume::Volume;
use crate::{Budget, Verdict};

/// Cuts between two judgements.
const CUTS_PER_EPISODE: u64 = 10;

/// Cuts of a short run, and of a short control.
const CUTS: u64 = 20;
const CONTROL_CUTS: u64 = 20;

/// Of 100 cuts of a store that does not sync, so many must be noticed.
const NOTICED_OF_100: u64 = 95;

/// Size of the volume: what an episode accepts, and the space that must stay free, several times over.
const VOLUME_MIB: u64 = 192;

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Verdict {
    match arguments.budget.control {
        true => control(&arguments.budget),
        false => of_the_store(&arguments.budget),
    }
}

/// Cuts of the store as it is: nothing may be lost, reordered or altered.
pub fn of_the_store(budget: &Budget) -> Verdict {
    let series = Series {
        kind: "power-cut",
        cases: "power cuts",
        count: CUTS,
        per_episode: CUTS_PER_EPISODE,
    };
    series.run(budget, episode)
}

fn episode(seed: u64, cuts: u64) -> String {
    let shards = shards_of(seed);
    let root = tempfile::tempdir().unwrap();
    let Some(mut volume) = Volume::make(root.path(), VOLUME_MIB, "power cuts") else {
        invalid("power cuts need root, ext4 in a loop image and a C compiler");
    };
    let receiver = Receiver::start(seed, Mood::Flaky);
    let mut server =
        Server::prepare_sharded(volume.path(), receiver.address, SMALL_SEGMENTS, shards);
    receiver.follow(&server);
    let plan = Plan::new(server.address, seed);
    let load = Load::start(&plan, PRODUCERS);
    for _ in 0..cuts {
        server.start();
        std::thread::sleep(Duration::from_millis(20 + plan.seed.below(300)));
        cut_power(&mut server, &mut volume);
    }
    server.start();
    load.stop();
    receiver.feel(Mood::Well);
    let bounds = Bounds {
        stored_min: 20 * usize::try_from(cuts).unwrap(),
        unclean_stops: cuts,
    };
    let account = judge_run(&mut server, &plan.history, &receiver, bounds);
    format!("{shards} shards, {cuts} power cuts, {account}")
}

/// Ends the machine: its processor first, then its disk. In the other order the server would live on for a
/// moment, in which ext4 reports success of a sync that was under way when it was shut down and whose
/// data it then drops (seen about once in ten cuts on Linux 6.18).
pub fn cut_power(server: &mut Server, volume: &mut Volume) {
    server.freeze();
    volume.cut();
    server.kill();
    volume.mount_again();
}

/// Cuts of a store whose segments' syncs do nothing. That they are noticed is told as a broken promise, since
/// one is; that too few are, as a run that says nothing.
pub fn control(budget: &Budget) -> Verdict {
    let series = Series {
        kind: "power-cut --control",
        cases: "power cuts without syncs",
        count: CONTROL_CUTS,
        per_episode: 1,
    };
    let (cuts, noticed) = (Cell::new(0), Cell::new(0));
    let ended = series.run(budget, |seed, _| {
        let lost = lost_without_sync(seed);
        cuts.set(cuts.get() + 1);
        noticed.set(noticed.get() + u64::from(lost > 0));
        format!("{lost} acknowledged events lost without syncs")
    });
    let found = format!("{} of {} cuts were noticed", noticed.get(), cuts.get());
    println!("power-cut --control: {found}");
    match ended {
        Verdict::Held if noticed.get() * 100 >= NOTICED_OF_100 * cuts.get() => Verdict::Broken(
            format!("as planted: syncs that do nothing lose events, {found}"),
        ),
        Verdict::Held => Verdict::Invalid(format!("the control is not sensitive: {found}")),
        other => other,
    }
}

/// How many acknowledged events one power cut loses of a server whose segments' syncs do nothing.
fn lost_without_sync(seed: u64) -> usize {
    let root = tempfile::tempdir().unwrap();
    let what = "the control of power cuts";
    let (Some(shim), Some(mut volume)) = (
        Shim::build(root.path(), what),
        Volume::make(root.path(), VOLUME_MIB, what),
    ) else {
        invalid("power cuts need root, ext4 in a loop image and a C compiler");
    };
    let receiver = Receiver::start(seed, Mood::Away);
    let mut server = Server::prepare(volume.path(), receiver.address, SMALL_SEGMENTS);
    server.set_environment(shim.environment());
    server.start();
    shim.rule(Action::Swallow, 1, SEGMENT_WAL);
    let plan = Plan::new(server.address, seed);
    let load = Load::start(&plan, PRODUCERS);
    std::thread::sleep(Duration::from_millis(400));
    cut_power(&mut server, &mut volume);
    load.stop();
    shim.clear();
    server.start();
    missing(&server, &plan.history)
}

/// Acknowledged events that the server does not know.
fn missing(server: &Server, history: &History) -> usize {
    history
        .acknowledged()
        .into_iter()
        .filter(|event| !server.knows(*event))
        .count()
}
