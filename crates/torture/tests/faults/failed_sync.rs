//! Syncs that fail or are slow: of a segment, of progress, of the catalogue.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use wayhold_torture::black_box::client::Client;
use wayhold_torture::black_box::history::{Bounds, judge_run};
use wayhold_torture::black_box::load::{Load, PRODUCERS, Plan};
use wayhold_torture::black_box::native::{Action, SEGMENT_WAL, Shim};
use wayhold_torture::black_box::receiver::{Mood, Receiver};
use wayhold_torture::black_box::server::SMALL_SEGMENTS;
use wayhold_torture::black_box::server::Server;
use wayhold_torture::black_box::volume::{Volume, drop_caches};
use wayhold_torture::power_cut::cut_power;

/// Segments that do not end by themselves during a test.
const LARGE_SEGMENTS: &str = r#"
segment_bytes = "16 MiB"
reserve_bytes = "1 MiB"
min_free = "34 MiB"
"#;

/// Waits until so many more events are acknowledged.
fn await_stored(plan: &Plan, more: usize) {
    let wanted = plan.history.stored() + more;
    for _ in 0..6000 {
        if plan.history.stored() >= wanted {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} of {wanted} events stored", plan.history.stored());
}

#[test]
fn a_thousand_events_after_a_failed_sync_survive_a_power_cut() {
    for with_reader in [false, true] {
        let test = "a failed sync and a power cut";
        let root = tempfile::tempdir().unwrap();
        let Some(shim) = Shim::build(root.path(), test) else {
            return;
        };
        let Some(mut volume) = Volume::make(root.path(), 192, test) else {
            return;
        };
        let receiver = Receiver::start(1, Mood::Away);
        let mut server = Server::prepare(volume.path(), receiver.address, LARGE_SEGMENTS);
        server.set_environment(shim.environment());
        server.start();
        let plan = Plan::new(server.address, 1);
        let load = Load::start(&plan, PRODUCERS);
        await_stored(&plan, 200);
        let reader = with_reader.then(|| open_reader(&server));
        shim.rule(Action::FailOnce, 1, SEGMENT_WAL);
        await_stored(&plan, 1000);
        load.stop();
        assert!(server.log().contains("1.db failed"), "no sync failed");
        assert!(server.is_ready(), "it accepts again");
        // Which has answered for all that it holds: nothing of the failed group is in it.
        for event in plan.history.open() {
            assert!(!server.knows(event), "{event:?} was answered with 503");
        }
        shim.clear();
        drop_caches();
        server.freeze();
        drop(reader);
        cut_power(&mut server, &mut volume);
        server.start();
        receiver.feel(Mood::Well);
        let bounds = Bounds {
            stored_min: 1200,
            unclean_stops: 1,
        };
        let account = judge_run(&mut server, &plan.history, &receiver, bounds);
        println!("reader {with_reader}: {account}");
    }
}

/// A read transaction on the segment that is about to fail.
fn open_reader(server: &Server) -> Connection {
    let path = server.data().join("g1/s0/1.db");
    let reader = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let rows: i64 = reader
        .query_row("SELECT count(*) FROM events", [], |row| row.get(0))
        .unwrap();
    assert!(rows > 0);
    reader
}

/// A server behind the shim on an ordinary folder.
fn behind_the_shim(root: &std::path::Path, mood: Mood) -> Option<(Shim, Receiver, Server)> {
    let shim = Shim::build(root, "failing and slow syncs")?;
    let folder = root.join("server");
    std::fs::create_dir(&folder).unwrap();
    let receiver = Receiver::start(1, mood);
    let mut server = Server::prepare(&folder, receiver.address, SMALL_SEGMENTS);
    server.set_environment(shim.environment());
    server.start();
    Some((shim, receiver, server))
}

#[test]
fn progress_that_cannot_be_synced_moves_to_a_new_file_and_nothing_is_lost() {
    let root = tempfile::tempdir().unwrap();
    let Some((shim, receiver, mut server)) = behind_the_shim(root.path(), Mood::Well) else {
        return;
    };
    let plan = Plan::new(server.address, 1);
    let load = Load::start(&plan, PRODUCERS);
    await_stored(&plan, 200);
    for action in [Action::FailOnce, Action::Fail] {
        shim.rule(action, 1, "*/state-*.db-wal");
        await_stored(&plan, 200);
        shim.clear();
        await_stored(&plan, 200);
    }
    server.kill();
    server.start();
    await_stored(&plan, 200);
    load.stop();
    let log = server.log();
    assert!(log.contains("progress moves to a new file"), "{log}");
    let bounds = Bounds {
        stored_min: 1000,
        unclean_stops: 1,
    };
    judge_run(&mut server, &plan.history, &receiver, bounds);
}

#[test]
fn a_change_that_the_catalogue_cannot_sync_is_refused_until_the_next_start() {
    let root = tempfile::tempdir().unwrap();
    let Some((shim, receiver, mut server)) = behind_the_shim(root.path(), Mood::Well) else {
        return;
    };
    let plan = Plan::new(server.address, 1);
    let mut client = Client::new(server.address);
    let json = "Content-Type: application/json\r\n";
    let mut act = |what: &str| {
        let target = format!("/v1/destinations/hook/{what}");
        client.post(&target, json, b"{}").unwrap().status
    };
    shim.rule(Action::FailOnce, 1, "*/catalog.db-wal");
    assert!(
        act("pause") >= 500,
        "a change that is not durable is no success"
    );
    let mut producer = Client::new(server.address);
    for _ in 0..100 {
        let answer = plan.send(&mut producer, &[plan.event()]).unwrap();
        assert_eq!(answer.status, 202, "events have nothing to do with it");
    }
    shim.clear();
    assert_eq!(
        act("pause"),
        503,
        "the file is not written again in this run"
    );
    server.kill();
    server.start();
    let mut client = Client::new(server.address);
    let paused = client.post("/v1/destinations/hook/pause", json, b"{}");
    assert_eq!(paused.unwrap().status, 200);
    server.kill();
    server.start();
    let state = server.get("/v1/destinations/hook")["state"].clone();
    assert_eq!(state, "paused", "what was answered is durable");
    let mut client = Client::new(server.address);
    let resumed = client.post("/v1/destinations/hook/resume", json, b"{}");
    assert_eq!(resumed.unwrap().status, 200);
    let bounds = Bounds {
        stored_min: 100,
        unclean_stops: 2,
    };
    judge_run(&mut server, &plan.history, &receiver, bounds);
}

#[test]
fn slow_syncs_and_clients_that_leave_lose_nothing_and_leave_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    let Some((shim, receiver, mut server)) = behind_the_shim(root.path(), Mood::Well) else {
        return;
    };
    shim.rule(Action::Delay(50), 1, "*");
    let plan = Plan::new(server.address, 1);
    let load = Load::start(&plan, PRODUCERS);
    let leaving: Vec<_> = (0..100)
        .map(|_| {
            let plan = Arc::clone(&plan);
            std::thread::spawn(move || plan.send_and_leave(plan.event()))
        })
        .collect();
    for one in leaving {
        one.join().unwrap();
    }
    await_stored(&plan, 200);
    load.stop();
    let bounds = Bounds {
        stored_min: 200,
        unclean_stops: 0,
    };
    judge_run(&mut server, &plan.history, &receiver, bounds);
    let status = server.status();
    assert_eq!(status["store"]["queued_bytes"], 0, "{status}");
    shim.clear();
    let (status, _) = server.terminate();
    assert!(status.success(), "{status}");
}
