//! A disk that fills up: accepting stops before it is full, delivering goes on at zero free bytes, and
//! accepting begins again by itself.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use wayhold_torture::black_box::client::Client;
use wayhold_torture::black_box::history::{Bounds, judge_run};
use wayhold_torture::black_box::load::{Load, PRODUCERS, Plan};
use wayhold_torture::black_box::receiver::{Mood, Receiver};
use wayhold_torture::black_box::server::SMALL_SEGMENTS;
use wayhold_torture::black_box::server::Server;
use wayhold_torture::black_box::volume::Volume;

/// Longest wait for the server to notice how full the disk is.
const TRIES: u32 = 3000;

/// Accepting resumes within this time once there is room, without a restart: that is promised.
const RESUMES_WITHIN: Duration = Duration::from_secs(5);

#[test]
fn a_full_disk_is_announced_drained_and_left_behind() {
    fill_and_free(1);
}

#[test]
fn a_full_disk_is_left_behind_by_several_shards_as_well() {
    fill_and_free(3);
}

fn fill_and_free(shards: u16) {
    let root = tempfile::tempdir().unwrap();
    let Some(volume) = Volume::make(root.path(), 48, "a full disk") else {
        return;
    };
    let receiver = Receiver::start(1, Mood::Away);
    let mut server =
        Server::prepare_sharded(volume.path(), receiver.address, SMALL_SEGMENTS, shards);
    server.start();
    let plan = Plan::new(server.address, 1);
    let load = Load::start(&plan, PRODUCERS);
    await_answer(&plan, 503, "no-space");
    load.stop();
    let free = free_bytes(volume.path());
    assert!(free > 0, "it noticed only when the disk was full");

    // The file destination lies on the same disk, and nobody can write to a full one.
    while server.get("/v1/destinations/archive")["pending"] != 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Somebody else takes the rest; the reserve is given up for progress, and somebody takes that too.
    let mut ballast = std::fs::File::create(volume.path().join("ballast")).unwrap();
    fill(&mut ballast);
    receiver.feel(Mood::Well);
    fill(&mut ballast);
    assert!(free_bytes(volume.path()) < 64 * 1024);
    server.drain();

    drop(ballast);
    std::fs::remove_file(volume.path().join("ballast")).unwrap();
    let freed = Instant::now();
    await_answer(&plan, 202, "");
    let took = freed.elapsed();
    assert!(took < RESUMES_WITHIN, "{took:?}");
    let bounds = Bounds {
        stored_min: 1000,
        unclean_stops: 0,
    };
    let account = judge_run(&mut server, &plan.history, &receiver, bounds);
    println!(
        "{free} bytes were free when it stopped accepting with {shards} shards, it resumed in {took:?}, {account}"
    );
}

/// Sends single events until one is answered like this.
fn await_answer(plan: &Plan, status: u16, problem: &str) {
    let mut client = Client::new(plan.address);
    for _ in 0..TRIES {
        let answer = plan.send(&mut client, &[plan.event()]).unwrap();
        if answer.status == status && answer.problem() == problem {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no answer {status} {problem}");
}

fn free_bytes(path: &Path) -> u64 {
    let space = rustix::fs::statvfs(path).unwrap();
    space.f_bavail * space.f_frsize
}

/// Writes until nothing goes any more.
fn fill(file: &mut std::fs::File) {
    for chunk in [1 << 20, 1 << 12, 1] {
        while file
            .write_all(&vec![7; chunk])
            .and_then(|()| file.sync_all())
            .is_ok()
        {}
    }
}
