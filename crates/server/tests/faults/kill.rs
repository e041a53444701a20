//! `kill -9` at random moments, also while it starts, with requests in flight.

use std::time::Duration;

use super::history::{Bounds, judge_run};
use super::load::{Load, PRODUCERS, Plan};
use super::receiver::{Mood, Receiver};
use super::seed::{episode, first_seed, rounds};
use super::server::Server;

/// Kills between two judgements.
const KILLS_PER_EPISODE: u64 = 10;

/// Kills that a change waits for.
const KILLS: u64 = 20;

/// Shards of the servers, in turn.
pub(crate) const SHARDS: [u16; 2] = [1, 3];

/// Small segments of which a few are kept, so that a kill meets sealing, preparing, keeping and removing as
/// well.
pub(crate) const SMALL_SEGMENTS: &str = r#"
segment_bytes = "256 KiB"
reserve_bytes = "1 MiB"
min_free = "8 MiB"
tail_bytes = "256 KiB"

[retention]
bytes = "512 KiB"
"#;

#[test]
fn a_server_that_is_killed_again_and_again_loses_reorders_and_alters_nothing() {
    let kills = rounds(KILLS);
    for number in 0..kills.div_ceil(KILLS_PER_EPISODE) {
        let seed = first_seed() + number;
        let kills = KILLS_PER_EPISODE.min(kills - number * KILLS_PER_EPISODE);
        episode("kill", seed, kills, || {
            kill_episode(seed, kills, SHARDS[usize::from(number % 2 == 1)]);
        });
    }
}

fn kill_episode(seed: u64, kills: u64, shards: u16) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("server");
    std::fs::create_dir(&folder).unwrap();
    let receiver = Receiver::start(seed, Mood::Flaky);
    let mut server = Server::prepare_sharded(&folder, receiver.address, SMALL_SEGMENTS, shards);
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
    assert!(left_open > 0, "no request was in flight when it was killed");
    println!(
        "seed {seed}, {shards} shards: {kills} kills ({while_starting} while starting), {account}"
    );
    let (status, _) = server.terminate();
    assert!(status.success(), "{status}");
}
