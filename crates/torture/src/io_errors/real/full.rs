//! Disks that are full for real. Accepting stops before the last byte is taken, or at it, when somebody else takes
//! everything at once; what was accepted is delivered at zero free bytes, also after a kill or a power cut;
//! accepting resumes by itself within seconds once there is room.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{NEEDS, NOTICES_WITHIN, RESUMES_WITHIN};
use crate::black_box::client::Client;
use crate::black_box::ending::invalid;
use crate::black_box::episode::Series;
use crate::black_box::history::{Bounds, judge_run};
use crate::black_box::load::{Load, PRODUCERS, Plan};
use crate::black_box::receiver::{Mood, Receiver};
use crate::black_box::server::{Server, shards_of};
use crate::black_box::volume::{Ballast, Volume, free_bytes};
use crate::dice::Dice;
use crate::power_cut::cut_power;
use crate::{Budget, Verdict};

/// Full disks between two judgements.
const CYCLES_PER_EPISODE: u64 = 4;

/// Full disks of a short run.
const CYCLES: u64 = 10;

/// Size of the volume: what an episode leaves in the file destination, and what must stay free, several times over.
const VOLUME_MIB: u64 = 96;

/// Small segments, and a reserve that bears a start on a full disk and what became of all deliveries after it.
const STORE: &str = r#"
segment_bytes = "256 KiB"
reserve_bytes = "4 MiB"
min_free = "8 MiB"
tail_bytes = "256 KiB"

[retention]
bytes = "512 KiB"
"#;

/// Room for events: bytes above those that `STORE` keeps free.
const MIN_FREE: u64 = 8 << 20;
const ROOM: u64 = 4 << 20;

/// With so few bytes free nobody begins a file.
const NOTHING: u64 = 64 << 10;

/// Longest time that what is pending takes.
const DRAINS_WITHIN: Duration = Duration::from_secs(60);

/// What an episode met.
#[derive(Debug, Default)]
struct Met {
    announced: u64,
    sudden: u64,
    unclean_stops: u64,
    slowest: Duration,
}

/// A server on a small volume, and everything around it. What uses the volume is dropped before it.
struct Trial {
    server: Server,
    receiver: Receiver,
    plan: Arc<Plan>,
    volume: Volume,
    /// What happens when; apart from the producers' so that a seed repeats it.
    dice: Dice,
    met: Met,
}

/// Runs cycles until the budget is spent.
pub fn run(budget: &Budget) -> Verdict {
    let series = Series {
        kind: "io-errors --disk full",
        cases: "full disks",
        count: CYCLES,
        per_episode: CYCLES_PER_EPISODE,
    };
    series.run(budget, episode)
}

fn episode(seed: u64, cycles: u64) -> String {
    let shards = shards_of(seed);
    let root = tempfile::tempdir().unwrap();
    let Some(volume) = Volume::make(root.path(), VOLUME_MIB, "full disks") else {
        invalid(NEEDS);
    };
    let receiver = Receiver::start(seed, Mood::Away);
    let mut server = Server::prepare_sharded(volume.path(), receiver.address, STORE, shards);
    server.start();
    let mut trial = Trial {
        plan: Plan::new(server.address, seed),
        server,
        receiver,
        volume,
        dice: Dice::new(seed),
        met: Met::default(),
    };
    for _ in 0..cycles {
        match trial.dice.below(3) {
            0 => trial.all_at_once(),
            _ => trial.announced(),
        }
    }
    let Trial {
        mut server,
        receiver,
        plan,
        met,
        ..
    } = trial;
    let bounds = Bounds {
        stored_min: 100 * usize::try_from(cycles).unwrap(),
        unclean_stops: met.unclean_stops,
    };
    let account = judge_run(&mut server, &plan.history, &receiver, bounds);
    format!(
        "{shards} shards, {} disks that filled up and {} that were full at once, {} unclean stops, resumed within \
         {} ms, {account}",
        met.announced,
        met.sudden,
        met.unclean_stops,
        met.slowest.as_millis(),
    )
}

impl Trial {
    /// It fills up under load with nothing delivered to the webhook, and accepting stops before it is full; then
    /// somebody takes the rest, the reserve too that is given up for progress. After an unclean stop that is left to
    /// the server, which records the first deliveries before it sends them.
    fn announced(&mut self) {
        self.met.announced += 1;
        self.receiver.feel(Mood::Away);
        let ballast = Ballast::new(self.volume.path());
        ballast.leave(MIN_FREE * 11 / 10 + ROOM);
        let load = Load::start(&self.plan, PRODUCERS);
        self.await_no_space();
        load.stop();
        let free = free_bytes(self.volume.path());
        if free <= MIN_FREE / 2 {
            let late = format!("stopped accepting only at {free} free bytes");
            self.server.fail(&late);
        }
        // The file destination lies on the same disk, and nobody can write to a full one.
        self.await_delivered("archive");
        ballast.take_all();
        self.end_now_and_then();
        self.receiver.feel(Mood::Well);
        if self.met.unclean_stops == 0 {
            ballast.take_all();
            let free = free_bytes(self.volume.path());
            assert!(free < NOTHING, "{free} bytes are free");
        }
        self.await_delivered("hook");
        self.make_room(ballast);
    }

    /// Somebody takes everything at once, under load. Events that failed meanwhile are only tried again once that is
    /// recorded, so this time the reserve is left to the server.
    fn all_at_once(&mut self) {
        self.met.sudden += 1;
        self.receiver.feel(Mood::Flaky);
        let load = Load::start(&self.plan, PRODUCERS);
        std::thread::sleep(Duration::from_millis(100 + self.dice.below(300)));
        let ballast = Ballast::new(self.volume.path());
        ballast.leave(0);
        self.await_no_space();
        self.end_now_and_then();
        self.receiver.feel(Mood::Well);
        load.stop();
        self.await_delivered("hook");
        self.make_room(ballast);
    }

    /// There is room again: accepts by itself.
    fn make_room(&mut self, ballast: Ballast) {
        drop(ballast);
        let freed = Instant::now();
        if !self.plan.await_answer(202, "", RESUMES_WITHIN) {
            self.server
                .fail("does not accept although its disk has room");
        }
        self.met.slowest = self.met.slowest.max(freed.elapsed());
        self.await_delivered("archive");
    }

    /// Sometimes it is killed or loses power on the full disk, and has to start on what its reserve gives up.
    fn end_now_and_then(&mut self) {
        match self.dice.below(4) {
            0 => self.server.kill(),
            1 => cut_power(&mut self.server, &mut self.volume),
            _ => return,
        }
        self.met.unclean_stops += 1;
        self.start_without_room();
    }

    fn start_without_room(&mut self) {
        self.server.spawn();
        let begun = Instant::now();
        while Client::new(self.server.address).get("/v1/status").is_err() {
            if let Some(status) = self.server.ended() {
                let what = format!("does not start on a full disk: {status}");
                self.server.fail(&what);
            }
            if begun.elapsed() > NOTICES_WITHIN {
                self.server.fail("does not start on a full disk");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn await_no_space(&self) {
        if !self.plan.await_answer(503, "no-space", NOTICES_WITHIN) {
            self.server
                .fail("never says that its disk has too little room");
        }
    }

    /// Nothing is pending at this destination.
    fn await_delivered(&self, name: &str) {
        let begun = Instant::now();
        let target = format!("/v1/destinations/{name}");
        while self.server.get(&target)["pending"] != 0 {
            if begun.elapsed() > DRAINS_WITHIN {
                self.server
                    .fail(&format!("does not drain {name} on a full disk"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
