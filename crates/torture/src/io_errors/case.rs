//! One script with one fault.

use std::fmt;

use crate::dice::Dice;
use crate::disk::{Fate, Fault, Model, Operation, Plan, Recorded};
use crate::workload::{
    Actor, Expected, HandClock, History, Judge, Patience, Script, Then, empty_disk,
};
use crate::workplace::{folder, runtime};

/// In how many ways a call may fail.
pub(super) const MODES: u64 = 8;

/// At most so many calls lie between the first fault and the power failure that follows it.
const SOON: u64 = 60;

/// One script with one fault.
pub(super) struct Case {
    script: Script,
    call: u64,
    plan: Plan,
    round: u64,
}

/// What a case met.
pub(super) enum Met {
    /// This call failed.
    Fault(Operation),
    /// The script has no such call.
    Nothing,
}

impl Case {
    /// The case in which this call fails, in the way that this round has for it.
    pub(super) fn new(seed: u64, call: u64, round: u64, planted: bool) -> Self {
        let mode = (call + round) % MODES;
        let plan = Plan {
            at: Some(call),
            fault: Some(match mode / 2 {
                0 => Fault::Io,
                1 => Fault::NoSpace,
                2 => Fault::Short,
                _ => Fault::Forgets,
            }),
            for_good: mode % 2 == 1,
            lying: planted,
            ..Plan::default()
        };
        Self {
            script: Script::new(seed),
            call,
            plan,
            round,
        }
    }

    /// Plays and judges it.
    pub(super) fn run(&self) -> Result<Met, String> {
        let folder = folder()?;
        let root = folder.path().join("disk");
        let before = empty_disk();
        let made = before.write_to(&root);
        made.map_err(|error| error.to_string())?;
        let disk = Recorded::new(&root, before);
        disk.recorder.set_plan(self.plan.clone());
        let runtime = runtime()?;
        let opened = Actor::open(&self.script, &disk, Patience::Short);
        let (clock, history) = match opened {
            Ok(actor) => {
                let clock = actor.clock();
                let (history, result) = runtime.block_on(actor.play());
                result.map_err(|what| self.told(&disk, &what))?;
                (clock, history)
            }
            // It says that it cannot; nothing was acknowledged.
            Err(_) => (HandClock::new(), History::default()),
        };
        disk.recorder.set_plan(Plan::default());
        let Some((operation, _, failed)) = disk.recorder.failed() else {
            return Ok(Met::Nothing);
        };
        let recording = disk.recorder.recording();
        let judged = |expected: &Expected| {
            let judge = Judge {
                script: &self.script,
                expected,
                clock: &clock,
                then: Then::Backups,
                after_faults: true,
            };
            runtime.block_on(judge.judge(&root)).map(|_seen| ())
        };
        let all = history.all();
        judged(&all).map_err(|what| self.told(&disk, &format!("started again: {what}")))?;
        let calls = recording.calls.len();
        let mut dice = Dice::new(self.call);
        let soon = failed + usize::try_from(dice.below(SOON)).unwrap_or(0);
        for (point, fate) in [
            (calls, Fate::Lost),
            (soon.min(calls), Fate::Lost),
            (soon.min(calls), Fate::Some(self.call)),
        ] {
            let mut model = Model::new(&recording);
            for call in recording.calls.iter().take(point) {
                model.apply(call);
            }
            let written = model.after(fate).write_to(&root);
            written.map_err(|error| error.to_string())?;
            judged(&history.until(point)).map_err(|what| {
                let when = format!("power failed before call {point} of {calls}, {fate}: {what}");
                self.told(&disk, &when)
            })?;
        }
        Ok(Met::Fault(operation))
    }

    fn told(&self, disk: &Recorded, what: &str) -> String {
        format!("{what}\nfirst fault: {:?}", disk.recorder.failed())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}\n{:?}\nreplay: scripts/torture io-errors --seed {} --call {} --round {}",
            self.plan, self.script.steps, self.script.seed, self.call, self.round
        )
    }
}
