//! One sync after the other: the process is killed before it, killed after it, or the sync fails, from the
//! first one of a start onwards, on data that grows from round to round.

use std::time::Duration;

use wayhold_torture::black_box::history::{Bounds, judge_run};
use wayhold_torture::black_box::load::{Load, Plan};
use wayhold_torture::black_box::native::{Action, Shim};
use wayhold_torture::black_box::receiver::{Mood, Receiver};
use wayhold_torture::black_box::seed::{episode, first_seed, rounds};
use wayhold_torture::black_box::server::SMALL_SEGMENTS;
use wayhold_torture::black_box::server::Server;

/// Syncs that are met, one round each, in a change; far enough to leave the start behind.
const ROUNDS: u64 = 24;

/// Syncs apart in short runs, so that a change meets the start as well as what follows.
const FURTHEST: u64 = 72;

#[test]
fn a_server_that_meets_a_fault_at_any_one_sync_loses_reorders_and_alters_nothing() {
    let (seed, rounds) = (first_seed(), rounds(ROUNDS));
    episode("call_by_call", seed, rounds, || run(seed, rounds));
}

fn run(seed: u64, rounds: u64) {
    let root = tempfile::tempdir().unwrap();
    let Some(shim) = Shim::build(root.path(), "faults sync by sync") else {
        return;
    };
    let folder = root.path().join("server");
    std::fs::create_dir(&folder).unwrap();
    let receiver = Receiver::start(seed, Mood::Well);
    let mut server = Server::prepare(&folder, receiver.address, SMALL_SEGMENTS);
    server.set_environment(shim.environment());
    let plan = Plan::new(server.address, seed);
    let load = Load::start(&plan, 16);
    let (mut killed, mut refused) = (0, 0);
    for round in 0..rounds {
        let action = [Action::KillBefore, Action::KillAfter, Action::FailOnce]
            [usize::try_from(round % 3).unwrap()];
        let nth = 1 + round * FURTHEST / rounds;
        shim.rule(action, nth, "*");
        server.spawn();
        match server.ready_or_ended() {
            // A failed sync may end a start, with words; a kill ends it without.
            Err(status) if status.code().is_some() => refused += 1,
            Err(_) => killed += 1,
            Ok(()) => {
                std::thread::sleep(Duration::from_millis(100));
                killed += u64::from(server.ended().is_some());
            }
        }
        server.kill();
    }
    shim.clear();
    server.start();
    load.stop();
    let bounds = Bounds {
        stored_min: usize::try_from(rounds * 5).unwrap(),
        unclean_stops: rounds,
    };
    let account = judge_run(&mut server, &plan.history, &receiver, bounds);
    println!(
        "seed {seed}: {rounds} rounds, {killed} killed, {refused} refused to start, {account}"
    );
    assert!(killed > 0, "the shim killed nothing");
}
