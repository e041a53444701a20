//! Syncs that fail for real under load. The server's volume is an image full of holes on a store of its own.
//! Either that store is full, so that each block which the volume uses for the first time fails at its sync
//! while its journal can still be written; or it takes no write, so that everything fails with EIO until the
//! filesystem gives its journal up and is read-only until it is mounted again.
//!
//! The server has to refuse, and to accept by itself within seconds once the disk is well; where the filesystem
//! is read-only it has to refuse until that is mounted again and it is started. Some cycles kill it or cut
//! its power, in the middle or afterwards. The kernel forgets what it failed to write, so whatever was
//! acknowledged from the page cache alone is missing in the end.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{NEEDS, NOTICES_WITHIN, RESUMES_WITHIN};
use crate::black_box::client::Client;
use crate::black_box::ending::invalid;
use crate::black_box::episode::Series;
use crate::black_box::history::{Account, Bounds, judge_run};
use crate::black_box::load::{Load, PRODUCERS, Plan};
use crate::black_box::native::{Action, SEGMENT_WAL, Shim};
use crate::black_box::operator::Operator;
use crate::black_box::receiver::{Mood, Receiver};
use crate::black_box::server::{SMALL_SEGMENTS, Server, shards_of};
use crate::black_box::thin::ThinVolume;
use crate::dice::Dice;
use crate::power_cut::cut_power;
use crate::{Budget, Verdict};

/// Failing disks between two judgements.
const CYCLES_PER_EPISODE: u64 = 3;

/// Failing disks of a short run.
const CYCLES: u64 = 10;

/// Those of a control.
const CONTROL_CYCLES: u64 = 3;

/// Events that must be acknowledged before each fault.
const STORED_BEFORE: usize = 50;

/// Longest time that a disk goes on failing after that was noticed, in milliseconds.
const FAILS_MAX: u64 = 600;

/// How long it fails where nobody waits for anything.
const FAILS_FOR: Duration = Duration::from_millis(500);

/// How the disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The store below is full.
    Full,
    /// The store below takes no write.
    Refusing,
}

/// What ends the server besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Nothing,
    KilledMeanwhile,
    KilledAfterwards,
    CutAfterwards,
}

/// What an episode met.
#[derive(Debug, Default)]
struct Met {
    full: u64,
    refusing: u64,
    read_only: u64,
    unclean_stops: u64,
    slowest: Duration,
}

/// A server on a thin volume, and everything around it. What uses the volume is dropped before it.
struct Trial {
    server: Server,
    receiver: Receiver,
    plan: Arc<Plan>,
    disk: ThinVolume,
    /// What happens when; apart from the producers' so that a seed repeats it.
    dice: Dice,
    met: Met,
    root: TempDir,
}

/// Runs cycles until the budget is spent; with `control`, of a store whose segments' syncs do nothing.
pub fn run(budget: &Budget) -> Verdict {
    if budget.control {
        return control(budget);
    }
    let series = Series {
        kind: "io-errors --disk failing",
        cases: "failing disks",
        count: CYCLES,
        per_episode: CYCLES_PER_EPISODE,
    };
    series.run(budget, episode)
}

fn episode(seed: u64, cycles: u64) -> String {
    let mut trial = Trial::new(seed);
    let account = trial.under_load(cycles, |trial| {
        for _ in 0..cycles {
            trial.cycle();
        }
    });
    let Met {
        full,
        refusing,
        read_only,
        unclean_stops,
        slowest,
    } = trial.met;
    format!(
        "{} shards, {full} full stores and {refusing} that took no writes, {read_only} read-only, {unclean_stops} \
         unclean stops, resumed within {} ms, {account}",
        shards_of(seed),
        slowest.as_millis(),
    )
}

/// The store below is full for a moment, and the power fails soon after: the shortest run that finds a server which
/// goes on after a failed sync as if nothing had happened. `prepare` may make it such a one.
pub fn one_full_store(seed: u64, prepare: impl FnOnce(&mut Server)) {
    let mut trial = Trial::new(seed);
    prepare(&mut trial.server);
    // Nothing is delivered meanwhile, so that everything must come from the disk.
    trial.receiver.feel(Mood::Away);
    trial.under_load(1, |trial| {
        trial.await_stored();
        trial.disk.fill_store();
        std::thread::sleep(FAILS_FOR);
        trial.disk.heal();
        trial.await_stored();
    });
}

/// A store whose segments' syncs do nothing, on a disk that cannot write what the kernel writes later. That it is
/// noticed is told as a broken promise, since one is; that it is not, as a run that says nothing.
fn control(budget: &Budget) -> Verdict {
    let series = Series {
        kind: "io-errors --disk failing --control",
        cases: "failing disks without syncs",
        count: CONTROL_CYCLES,
        per_episode: 1,
    };
    let (tried, noticed) = (Cell::new(0), Cell::new(0));
    let ended = series.run(budget, |seed, _| {
        let lost = lost_without_sync(seed);
        tried.set(tried.get() + 1);
        noticed.set(noticed.get() + u64::from(lost > 0));
        format!("{lost} acknowledged events lost without syncs")
    });
    let found = format!("{} of {} were noticed", noticed.get(), tried.get());
    match ended {
        Verdict::Held if noticed == tried => Verdict::Broken(format!(
            "as planted: syncs that do nothing lose events on a failing disk, {found}"
        )),
        Verdict::Held => Verdict::Invalid(format!("the control is not sensitive: {found}")),
        other => other,
    }
}

/// How many acknowledged events are missing after the kernel could not write them and nobody asked.
fn lost_without_sync(seed: u64) -> usize {
    let mut trial = Trial::new(seed);
    let Some(shim) = Shim::build(trial.root.path(), "the control of failing disks") else {
        invalid(NEEDS);
    };
    trial.receiver.feel(Mood::Away);
    trial.server.set_environment(shim.environment());
    trial.server.start();
    shim.rule(Action::Swallow, 1, SEGMENT_WAL);
    let plan = Arc::clone(&trial.plan);
    let load = Load::start(&plan, PRODUCERS);
    trial.await_stored();
    trial.disk.fill_store();
    std::thread::sleep(FAILS_FOR);
    trial.server.freeze();
    trial.disk.volume.write_back();
    trial.disk.heal();
    trial.server.kill();
    load.stop();
    shim.clear();
    trial.disk.volume.mount_again();
    trial.server.start();
    let acknowledged = plan.history.acknowledged().into_iter();
    acknowledged
        .filter(|event| !trial.server.knows(*event))
        .count()
}

impl Trial {
    fn new(seed: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        let Some(disk) = ThinVolume::make(root.path(), "failing disks") else {
            invalid(NEEDS);
        };
        let receiver = Receiver::start(seed, Mood::Picky);
        let folder = disk.volume.path();
        let shards = shards_of(seed);
        let server = Server::prepare_sharded(folder, receiver.address, SMALL_SEGMENTS, shards);
        receiver.follow(&server);
        Self {
            plan: Plan::new(server.address, seed),
            server,
            receiver,
            disk,
            dice: Dice::new(seed),
            met: Met::default(),
            root,
        }
    }

    /// Starts it and lets things happen under load, then cuts its power and judges.
    fn under_load(&mut self, cycles: u64, faults: impl FnOnce(&mut Self)) -> Account {
        let plan = Arc::clone(&self.plan);
        let load = Load::start(&plan, PRODUCERS);
        let operator = Operator::start(&plan, &Arc::default());
        self.server.start();
        faults(self);
        // What the page cache holds and the disk does not is gone then, and the catalogue takes changes.
        self.cut();
        operator.stop(&plan);
        load.stop();
        self.receiver.feel(Mood::Well);
        self.server.redrive_all(&["archive", "hook"]);
        let bounds = Bounds {
            stored_min: STORED_BEFORE * usize::try_from(cycles).unwrap(),
            unclean_stops: self.met.unclean_stops,
        };
        judge_run(&mut self.server, &plan.history, &self.receiver, bounds)
    }

    /// Accepts, fails, and is well again.
    fn cycle(&mut self) {
        let way = match self.dice.below(2) {
            0 => Way::Full,
            _ => Way::Refusing,
        };
        let end = match self.dice.below(6) {
            0 => End::KilledMeanwhile,
            1 => End::KilledAfterwards,
            2 => End::CutAfterwards,
            _ => End::Nothing,
        };
        let fails_for = Duration::from_millis(self.dice.below(FAILS_MAX));
        self.await_stored();
        match way {
            Way::Full => {
                self.met.full += 1;
                self.disk.fill_store();
            }
            Way::Refusing => {
                self.met.refusing += 1;
                self.disk.refuse_writes();
            }
        }
        if !self.plan.await_answer(503, "unavailable", NOTICES_WITHIN) {
            self.server.fail("never refuses although its syncs fail");
        }
        std::thread::sleep(fails_for);
        if end == End::KilledMeanwhile {
            self.server.kill();
            self.met.unclean_stops += 1;
        }
        self.disk.heal();
        self.recover(end == End::KilledMeanwhile);
        match end {
            End::Nothing | End::KilledMeanwhile => {}
            End::KilledAfterwards => {
                self.await_stored();
                self.server.kill();
                self.met.unclean_stops += 1;
                self.server.start();
            }
            End::CutAfterwards => {
                self.await_stored();
                self.cut();
            }
        }
    }

    /// The disk is well: accepts by itself, or after a restart where there is no other way.
    fn recover(&mut self, was_killed: bool) {
        let healed = Instant::now();
        if !self.disk.volume.takes_writes() {
            self.met.read_only += 1;
            if !was_killed {
                self.expect_refusal();
                self.server.kill();
                self.met.unclean_stops += 1;
            }
            self.disk.volume.mount_again();
            return self.server.start();
        }
        if was_killed {
            return self.server.start();
        }
        if !self.plan.await_answer(202, "", RESUMES_WITHIN) {
            self.server
                .fail("does not accept although its disk is well again");
        }
        self.met.slowest = self.met.slowest.max(healed.elapsed());
    }

    /// On a filesystem that takes no writes the server runs, accepts nothing and says so.
    fn expect_refusal(&mut self) {
        if let Some(status) = self.server.ended() {
            self.server.fail(&format!("ended by itself: {status}"));
        }
        let answer = Client::new(self.server.address).get("/readyz").unwrap();
        if answer.status != 503 {
            let said = answer.json();
            self.server
                .fail(&format!("is ready on a disk that takes no writes: {said}"));
        }
    }

    fn cut(&mut self) {
        cut_power(&mut self.server, &mut self.disk.volume);
        self.met.unclean_stops += 1;
        self.server.start();
    }

    fn await_stored(&self) {
        let wanted = self.plan.history.stored() + STORED_BEFORE;
        let begun = Instant::now();
        while self.plan.history.stored() < wanted {
            if begun.elapsed() > NOTICES_WITHIN {
                self.server.fail("accepts too little");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
