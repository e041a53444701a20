//! SIGTERM under load: within 10 s, with exit code 0, and everything that was acknowledged is there.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use wayhold_torture::black_box::history::{Bounds, judge_run};
use wayhold_torture::black_box::load::{Load, PRODUCERS, Plan};
use wayhold_torture::black_box::receiver::{Mood, Receiver};
use wayhold_torture::black_box::seed::{episode, first_seed, rounds};
use wayhold_torture::black_box::server::SMALL_SEGMENTS;
use wayhold_torture::black_box::server::Server;

/// What the server promises (docs/operating.md).
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// Stops that a change waits for.
const STOPS: u64 = 3;

#[test]
fn a_server_that_is_asked_to_stop_under_load_does_so_in_time_and_loses_nothing() {
    let (seed, stops) = (first_seed(), rounds(STOPS));
    episode("stop", seed, stops, || stop_episode(seed, stops));
}

fn stop_episode(seed: u64, stops: u64) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("server");
    std::fs::create_dir(&folder).unwrap();
    let receiver = Receiver::start(seed, Mood::Well);
    let mut server = Server::prepare(&folder, receiver.address, SMALL_SEGMENTS);
    let plan = Plan::new(server.address, seed);
    let load = Load::start(&plan, PRODUCERS);
    let mut slowest = Duration::ZERO;
    for _ in 0..stops {
        server.start();
        // One client that only holds its connection, and one in the middle of a request.
        let idle = TcpStream::connect(server.address).unwrap();
        let mut halfway = TcpStream::connect(server.address).unwrap();
        halfway
            .write_all(b"POST /v1/events?type=never HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            .unwrap();
        std::thread::sleep(Duration::from_millis(100 + plan.seed.below(400)));
        let (status, took) = server.terminate();
        drop((idle, halfway));
        assert!(status.success(), "stopped with {status}");
        assert!(took < STOPS_WITHIN, "stopped only after {took:?}");
        slowest = slowest.max(took);
    }
    server.start();
    load.stop();
    let bounds = Bounds {
        stored_min: 200 * usize::try_from(stops).unwrap(),
        unclean_stops: 0,
    };
    let account = judge_run(&mut server, &plan.history, &receiver, bounds);
    println!("seed {seed}: {stops} stops, the slowest in {slowest:?}, {account}");
}
