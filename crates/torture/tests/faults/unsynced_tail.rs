//! A tail that was written and not synced when the process was killed: it is read back from the page
//! cache, and a power cut can still take it. So it is neither delivered nor answered as a duplicate
//! before it is synced again, whenever the next start is killed.

use std::time::Duration;

use wayhold_torture::black_box::client::{Client, Silence};
use wayhold_torture::black_box::history::{Bounds, Event, Told, judge_run, place};
use wayhold_torture::black_box::load::Plan;
use wayhold_torture::black_box::native::{Action, SEGMENT_WAL, Shim};
use wayhold_torture::black_box::receiver::{Mood, Receiver};
use wayhold_torture::black_box::server::SMALL_SEGMENTS;
use wayhold_torture::black_box::server::Server;
use wayhold_torture::black_box::volume::Volume;
use wayhold_torture::power_cut::cut_power;

/// Syncs of segments' WALs that a start makes at most before it serves: those of the new segment, of the
/// prepared one, and of the copied tail.
const SYNCS_OF_A_START: u64 = 12;

/// Sends one event and has the process killed when it is written and about to be synced.
fn leave_a_tail(server: &mut Server, shim: &Shim, plan: &Plan, active: &str) -> Event {
    shim.rule(Action::KillBefore, 1, active);
    let event = plan.event();
    let answer = plan.send(&mut Client::new(server.address), &[event]);
    assert_eq!(answer.unwrap_err(), Silence::Unknown);
    server.await_end();
    event
}

#[test]
fn an_unsynced_tail_is_synced_before_it_is_delivered_or_answered_as_a_duplicate() {
    let root = tempfile::tempdir().unwrap();
    let Some(shim) = Shim::build(root.path(), "the unsynced tail") else {
        return;
    };
    let folder = root.path().join("server");
    std::fs::create_dir(&folder).unwrap();
    let receiver = Receiver::start(1, Mood::Well);
    let mut server = Server::prepare(&folder, receiver.address, SMALL_SEGMENTS);
    server.set_environment(shim.environment());
    receiver.watch(shim.log_path());
    let plan = Plan::new(server.address, 1);
    server.start();
    // How often a segment is synced until it stands ready, when there is no tail.
    let ready = shim.synced(shim.log_bytes());
    let usual = count(&ready, "/1.db-wal");
    let tail = leave_a_tail(&mut server, &shim, &plan, "*/s0/1.db-wal");

    shim.clear();
    let before = shim.log_bytes();
    server.start();
    let again = plan.send(&mut Client::new(server.address), &[tail]);
    let answered = shim.log_bytes();
    let receipt = again.unwrap().json();
    assert_eq!(receipt["receipts"][0]["duplicate"], true, "{receipt}");
    server.drain();
    let arrived = receiver.arrivals()[0].watched;
    for (what, at) in [("answered", answered), ("delivered", arrived)] {
        let syncs = shim.synced(at).split_off(shim.synced(before).len());
        // The first new segment is the one that takes the tail.
        let first = syncs.iter().find(|path| {
            path.ends_with(".db-wal") && path.contains("/s0/") && !path.contains("state")
        });
        let synced = first.map_or(0, |path| {
            syncs.iter().filter(|other| *other == path).count()
        });
        assert!(synced > usual, "{what} after {synced} syncs: {syncs:?}");
    }
}

#[test]
fn an_unsynced_tail_is_shown_to_nobody_whenever_the_next_start_is_killed() {
    let root = tempfile::tempdir().unwrap();
    let Some(shim) = Shim::build(root.path(), "the unsynced tail and a power cut") else {
        return;
    };
    let Some(mut volume) = Volume::make(root.path(), 96, "the unsynced tail and a power cut")
    else {
        return;
    };
    let receiver = Receiver::start(1, Mood::Well);
    let mut server = Server::prepare(volume.path(), receiver.address, SMALL_SEGMENTS);
    server.set_environment(shim.environment());
    let plan = Plan::new(server.address, 1);
    let mut lost = 0;
    for nth in 1..=SYNCS_OF_A_START {
        shim.clear();
        server.start();
        plan.send(&mut Client::new(server.address), &[plan.event()])
            .unwrap();
        server.drain();
        let tail = leave_a_tail(&mut server, &shim, &plan, SEGMENT_WAL);
        shim.rule(Action::KillBefore, nth, SEGMENT_WAL);
        server.spawn();
        let killed = server.ready_or_ended().is_err();
        // Time for what it would show, or for the kill if that comes later.
        std::thread::sleep(Duration::from_millis(100));
        let shown = receiver.arrivals().iter().any(|it| it.number == tail.0);
        cut_power(&mut server, &mut volume);
        shim.clear();
        server.start();
        let kept = server.knows(tail);
        assert!(kept || !shown, "{tail:?} was delivered and then lost");
        assert!(kept || killed, "{tail:?} was served and then lost");
        lost += u32::from(!kept);
        server.kill();
    }
    assert!(lost > 0, "no power cut took an unsynced tail");
    shim.clear();
    server.start();
    let bounds = Bounds {
        stored_min: usize::try_from(SYNCS_OF_A_START).unwrap(),
        unclean_stops: 3 * SYNCS_OF_A_START,
    };
    let account = judge_run(&mut server, &plan.history, &receiver, bounds);
    println!("{lost} of {SYNCS_OF_A_START} tails lost unseen, {account}");
    assert_eq!(plan.history.told(Event(1)), Told::Stored(place(1, 0, 1)));
}

fn count(syncs: &[String], end: &str) -> usize {
    syncs.iter().filter(|path| path.ends_with(end)).count()
}
