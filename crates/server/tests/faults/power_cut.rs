//! Power cuts under load, on a real filesystem; and the proof that this test would notice a store that
//! does not sync.

use std::time::Duration;

use super::history::{Bounds, History, judge_run};
use super::kill::{SHARDS, SMALL_SEGMENTS};
use super::load::{Load, PRODUCERS, Plan};
use super::native::{Action, SEGMENT_WAL, Shim};
use super::receiver::{Mood, Receiver};
use super::seed::{episode, first_seed, rounds};
use super::server::Server;
use super::volume::Volume;

/// Cuts between two judgements, and cuts that a change waits for.
const CUTS_PER_EPISODE: u64 = 5;
const CUTS: u64 = 10;

/// Cuts of a store that does not sync, each of which must be noticed.
const CONTROL_CUTS: u64 = 3;

/// Size of the volume: what an episode accepts, and the space that must stay free, several times over.
const VOLUME_MIB: u64 = 192;

#[test]
fn a_server_whose_power_is_cut_again_and_again_loses_reorders_and_alters_nothing() {
    let cuts = rounds(CUTS);
    for number in 0..cuts.div_ceil(CUTS_PER_EPISODE) {
        let seed = first_seed() + number;
        let cuts = CUTS_PER_EPISODE.min(cuts - number * CUTS_PER_EPISODE);
        episode("power_cut", seed, cuts, || {
            cut_episode(seed, cuts, SHARDS[usize::from(number % 2 == 1)]);
        });
    }
}

fn cut_episode(seed: u64, cuts: u64, shards: u16) {
    let root = tempfile::tempdir().unwrap();
    let Some(mut volume) = Volume::make(root.path(), VOLUME_MIB, "power cuts") else {
        return;
    };
    let receiver = Receiver::start(seed, Mood::Flaky);
    let mut server =
        Server::prepare_sharded(volume.path(), receiver.address, SMALL_SEGMENTS, shards);
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
    println!("seed {seed}, {shards} shards: {cuts} power cuts, {account}");
}

/// Ends the machine: its processor first, then its disk. In the other order the server would live on for a
/// moment, in which ext4 reports success of a sync that was under way when it was shut down and whose
/// data it then drops (seen about once in ten cuts on Linux 6.18).
pub(crate) fn cut_power(server: &mut Server, volume: &mut Volume) {
    server.freeze();
    volume.cut();
    server.kill();
    volume.mount_again();
}

#[test]
fn a_store_that_answers_without_syncing_is_found_out_by_a_power_cut() {
    for seed in first_seed()..first_seed() + CONTROL_CUTS {
        episode("found_out", seed, 1, || {
            assert!(
                lost_without_sync(seed) != Some(0),
                "nothing was lost although nothing was synced"
            );
        });
    }
}

/// How many acknowledged events one power cut loses of a server whose segments' syncs do nothing.
fn lost_without_sync(seed: u64) -> Option<usize> {
    let root = tempfile::tempdir().unwrap();
    let shim = Shim::build(root.path(), "the control of power cuts")?;
    let mut volume = Volume::make(root.path(), VOLUME_MIB, "the control of power cuts")?;
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
    let lost = missing(&server, &plan.history);
    println!("seed {seed}: {lost} acknowledged events lost without syncs");
    Some(lost)
}

/// Acknowledged events that the server does not know.
fn missing(server: &Server, history: &History) -> usize {
    history
        .acknowledged()
        .into_iter()
        .filter(|event| !server.knows(*event))
        .count()
}
