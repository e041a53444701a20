//! What looks for planted faults: short runs of the harnesses, each of which throws what it finds (`black_box::ending`).

use std::time::{Duration, Instant};

use crate::black_box::client::Client;
use crate::black_box::ending::invalid;
use crate::black_box::native::{Action, SEGMENT_WAL, Shim};
use crate::black_box::receiver::Mood;
use crate::black_box::story::Story;
use crate::commands;
use crate::power_cut::cut_power;
use crate::reshard;

/// A harness, made short.
#[derive(Clone, Copy)]
pub(super) struct Check {
    pub(super) name: &'static str,
    /// Runs it with a seed and a planted fault.
    pub(super) run: fn(u64, &str),
}

/// Nothing but load, an operator, and a receiver that fails now and then.
pub(super) const WELL: Check = Check {
    name: "history",
    run: well,
};

/// Kills at random moments.
pub(super) const KILLS: Check = Check {
    name: "kill --at random",
    run: kills,
};

/// A kill between two steps.
pub(super) const POINT: Check = Check {
    name: "kill --at points",
    run: at_a_point,
};

/// Power cuts.
pub(super) const POWER_CUTS: Check = Check {
    name: "power-cut",
    run: power_cuts,
};

/// A sync that fails, and a power cut.
pub(super) const FAILED_SYNC: Check = Check {
    name: "a failed sync and a power cut",
    run: failed_sync,
};

/// A kill between a write and its sync, and a power cut.
pub(super) const TAIL: Check = Check {
    name: "an unsynced tail and a power cut",
    run: tail,
};

/// Changes of the number of shards, with kills.
pub(super) const CHANGES: Check = Check {
    name: "reshard",
    run: changes,
};

/// Commands, with a target that fails.
pub(super) const COMMANDS: Check = Check {
    name: "commands",
    run: commands::hunt,
};

/// Fewer acknowledged events show nothing.
pub(super) const STORED_MIN: usize = 50;

/// Kills and cuts of one run.
const FAULTS: u64 = 4;

/// Changes of one run.
const CHANGES_MADE: u64 = 8;

fn well(seed: u64, fault: &str) {
    let mut story = Story::new(seed).with_fault(fault);
    let stops = story.under_load(|story| {
        story.server.start();
        std::thread::sleep(Duration::from_millis(2500));
        let (status, _) = story.server.terminate();
        if !status.success() {
            story
                .server
                .fail(&format!("does not stop as it should: {status}"));
        }
        0
    });
    story.judge(STORED_MIN, stops);
}

fn kills(seed: u64, fault: &str) {
    let mut story = Story::new(seed).with_fault(fault);
    let stops = story.under_load(|story| {
        for _ in 0..FAULTS {
            story.server.start();
            let time = 200 + story.plan.seed.below(400);
            std::thread::sleep(Duration::from_millis(time));
            story.server.kill();
        }
        FAULTS
    });
    story.judge(STORED_MIN, stops);
    story.server.expect_no_alarm();
}

fn at_a_point(seed: u64, fault: &str) {
    let mut story = Story::new(seed).with_fault(fault);
    let stops = story.under_load(|story| {
        let hits = 20 + story.plan.seed.below(40);
        let at = format!("group.before-commit:{hits}");
        story
            .server
            .set_environment(vec![("WAYHOLD_FAILPOINT".to_owned(), at)]);
        story.server.start();
        story.server.await_end();
        1
    });
    story.judge(STORED_MIN, stops);
    story.server.expect_no_alarm();
}

fn power_cuts(seed: u64, fault: &str) {
    let mut story = Story::on_volume(seed).with_fault(fault);
    let stops = story.under_load(|story| {
        for _ in 0..FAULTS {
            story.server.start();
            let time = 200 + story.plan.seed.below(400);
            std::thread::sleep(Duration::from_millis(time));
            cut(story);
        }
        FAULTS
    });
    story.judge(STORED_MIN, stops);
}

fn failed_sync(seed: u64, fault: &str) {
    let mut story = Story::on_volume(seed).with_fault(fault);
    let shim = shim(&story);
    // Nothing is delivered meanwhile, so that everything must come from the disk.
    story.receiver.feel(Mood::Away);
    story.under_load(|story| {
        story.server.set_environment(shim.environment());
        story.server.start();
        await_stored(story, STORED_MIN);
        shim.rule(Action::FailOnce, 1, "*/s0/1.db-wal");
        await_stored(story, story.plan.history.stored() + 10);
        std::thread::sleep(Duration::from_millis(150));
        shim.clear();
        cut(story);
        1
    });
    story.judge(STORED_MIN, 1);
}

fn tail(seed: u64, fault: &str) {
    let mut story = Story::on_volume(seed).with_fault(fault);
    let shim = shim(&story);
    story.receiver.feel(Mood::Well);
    story.server.set_environment(shim.environment());
    story.server.start();
    let mut client = Client::new(story.server.address);
    for _ in 0..2 * STORED_MIN {
        let sent = story.plan.send(&mut client, &[story.plan.event()]);
        if let Err(silence) = sent {
            story.server.fail(&format!("does not answer: {silence:?}"));
        }
    }
    story.server.drain();
    // It ends between the write of an event and its sync: the next start finds it, and may not count on it.
    shim.rule(Action::KillBefore, 1, SEGMENT_WAL);
    let event = story.plan.event();
    if let Ok(answer) = story.plan.send(&mut client, &[event]) {
        let early = format!("answered an event before it was synced: {answer:?}");
        story.server.fail(&early);
    }
    story.server.await_end();
    shim.clear();
    story.server.start();
    let begun = Instant::now();
    let arrived = |story: &Story| {
        let arrivals = story.receiver.arrivals();
        arrivals.iter().any(|it| it.number == event.0)
    };
    while !arrived(&story) && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
    cut(&mut story);
    story.server.set_environment(Vec::new());
    story.server.start();
    story.judge(STORED_MIN, 2);
}

fn changes(seed: u64, fault: &str) {
    reshard::episode(seed, CHANGES_MADE, Some(fault));
}

fn shim(story: &Story) -> Shim {
    Shim::build(story.folder(), "faults of syncs")
        .unwrap_or_else(|| invalid("faults of syncs need a C compiler"))
}

fn cut(story: &mut Story) {
    let volume = story.volume.as_mut().unwrap();
    cut_power(&mut story.server, volume);
}

pub(super) fn await_stored(story: &Story, wanted: usize) {
    let begun = Instant::now();
    while story.plan.history.stored() < wanted && begun.elapsed() < Duration::from_secs(8) {
        std::thread::sleep(Duration::from_millis(5));
    }
}
