//! Power failures of one episode: which are tried, and what is found after each.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::episode::Episode;
use super::sometimes::Sometimes;
use crate::dice::Dice;
use crate::disk::{Fate, Image, Model, Recorded, Recording};
use crate::workload::{Expected, Judge, Then, data_below};
use crate::workplace::{folder, runtime};

/// Of one point in so many the opening is recorded too.
const RECOVERIES: u64 = 12;

/// So many power failures are tried in a recorded opening.
const IN_RECOVERY: usize = 6;

/// Of one point in so many the store is opened twice, and of as many others the backups are restored.
const MORE: u64 = 4;

/// The power failures of an episode that are tried.
pub(super) struct Points<'a> {
    pub(super) episode: &'a Episode,
    /// At most so many, chosen by the seed.
    pub(super) most: u64,
    /// Only this one, under this fate or all of them.
    pub(super) only: Option<(usize, Option<Fate>)>,
}

/// A promise broke.
pub(super) struct Broken {
    pub(super) what: String,
    pub(super) point: usize,
    pub(super) fate: Fate,
    /// Where the disk is kept as it was found.
    pub(super) kept: PathBuf,
}

type Point = (usize, Fate);

impl Points<'_> {
    /// Tries them, on all processors.
    pub(super) fn run(&self) -> Result<Sometimes, Broken> {
        let points = self.chosen();
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        // Neighbours belong together: a model is only ever taken forward.
        let share = points.len().div_ceil(workers).max(1);
        let first_broken = Mutex::new(None);
        let met = std::thread::scope(|scope| {
            let running: Vec<_> = points
                .chunks(share)
                .map(|points| scope.spawn(|| self.try_all(points, &first_broken)))
                .collect();
            let mut met = Sometimes::default();
            for worker in running {
                if let Ok(one) = worker.join() {
                    met.add(&one);
                }
            }
            met
        });
        match first_broken.into_inner() {
            Ok(Some(broken)) => Err(broken),
            _ => Ok(met),
        }
    }

    /// Points by call, each under every fate; where they are too many, some.
    fn chosen(&self) -> Vec<Point> {
        let episode = self.episode;
        let mut dice = Dice::new(episode.script.seed);
        let all = (1..=episode.calls()).flat_map(|point| {
            let seed = point as u64;
            let fates = [Fate::Lost, Fate::Kept, Fate::Some(seed), Fate::Torn(seed)];
            fates.map(|fate| (point, fate))
        });
        if let Some((point, fate)) = self.only {
            return match fate {
                Some(fate) => vec![(point, fate)],
                None => all.filter(|(at, _)| *at == point).collect(),
            };
        }
        let mut left = 4 * episode.calls() as u64;
        let mut wanted = self.most;
        let chosen = all.filter(|_| {
            let takes = dice.below(left) < wanted;
            left -= 1;
            wanted -= u64::from(takes);
            takes
        });
        chosen.collect()
    }

    fn try_all(&self, points: &[Point], first_broken: &Mutex<Option<Broken>>) -> Sometimes {
        let mut met = Sometimes::default();
        let mut model = Model::new(&self.episode.recording);
        let mut calls = self.episode.recording.calls.iter().enumerate().peekable();
        for (point, fate) in points {
            while let Some((_, call)) = calls.next_if(|(number, _)| number < point) {
                model.apply(call);
            }
            let tried = self.try_one(&model, *point, *fate, &mut met);
            let Ok(mut first) = first_broken.lock() else {
                break;
            };
            if let Err((what, kept)) = tried {
                first.get_or_insert(Broken {
                    what,
                    point: *point,
                    fate: *fate,
                    kept,
                });
            }
            if first.is_some() {
                break;
            }
        }
        met
    }

    fn try_one(
        &self,
        model: &Model,
        point: usize,
        fate: Fate,
        met: &mut Sometimes,
    ) -> Result<(), (String, PathBuf)> {
        // Where everything is synced fate has nothing to decide.
        if !model.has_unsynced() && fate != Fate::Kept && self.only.is_none() {
            return Ok(());
        }
        let expected = self.episode.history.until(point);
        let image = model.after(fate);
        met.look_at(model, fate);
        let chosen = point as u64;
        self.judge(&image, &expected, chosen, met)?;
        let mut dice = Dice::new(chosen ^ 0x5eed);
        if dice.one_in(RECOVERIES) || self.only.is_some() {
            self.in_recovery(&image, &expected, &mut dice, met)?;
        }
        Ok(())
    }

    fn judge(
        &self,
        image: &Image,
        expected: &Expected,
        chosen: u64,
        met: &mut Sometimes,
    ) -> Result<(), (String, PathBuf)> {
        let unkept = |what| (what, PathBuf::new());
        let folder = folder().map_err(unkept)?;
        let root = folder.path().join("disk");
        image
            .write_to(&root)
            .map_err(|error| unkept(error.to_string()))?;
        let judge = Judge {
            script: &self.episode.script,
            expected,
            clock: &self.episode.clock,
            then: match chosen % MORE {
                0 => Then::SecondStart,
                1 => Then::Backups,
                _ => Then::Nothing,
            },
            after_faults: false,
        };
        let runtime = runtime().map_err(unkept)?;
        match runtime.block_on(judge.judge(&root)) {
            Ok(seen) => {
                met.points += 1;
                met.saw(&seen);
                Ok(())
            }
            Err(what) => Err((what, keep(image, folder.keep()))),
        }
    }

    /// The power fails again while the store opens.
    fn in_recovery(
        &self,
        image: &Image,
        expected: &Expected,
        dice: &mut Dice,
        met: &mut Sometimes,
    ) -> Result<(), (String, PathBuf)> {
        let recording = self
            .recovery(image)
            .map_err(|what| (what, PathBuf::new()))?;
        for _ in 0..IN_RECOVERY {
            let calls = recording.calls.len() as u64;
            let point = usize::try_from(dice.below(calls + 1)).unwrap_or(0);
            let fate = match dice.below(4) {
                0 => Fate::Lost,
                1 => Fate::Kept,
                2 => Fate::Torn(dice.next()),
                _ => Fate::Some(dice.next()),
            };
            let mut model = Model::new(&recording);
            for call in recording.calls.iter().take(point) {
                model.apply(call);
            }
            let judged = self.judge(&model.after(fate), expected, dice.next(), met);
            judged.map_err(|(what, kept)| {
                (format!("{what}, after a second power failure before call {point} of the opening, {fate}"), kept)
            })?;
            met.in_recovery += 1;
        }
        Ok(())
    }

    fn recovery(&self, image: &Image) -> Result<Recording, String> {
        let folder = folder()?;
        let root = folder.path().join("disk");
        image.write_to(&root).map_err(|error| error.to_string())?;
        let disk = Recorded::new(&root, image.clone());
        let mut options = self.episode.script.options();
        options.vfs = Some(disk.vfs());
        let clock = std::sync::Arc::new(self.episode.clock.clone());
        let opened = wayhold_store::Store::open_on(&data_below(&root), options, clock, disk.disk());
        let (store, _) = opened.map_err(|error| format!("it does not open: {error}"))?;
        store.stop();
        Ok(disk.recorder.recording())
    }
}

/// Puts the disk back as it was found, beside what became of it.
fn keep(image: &Image, folder: PathBuf) -> PathBuf {
    let found = folder.join("found");
    match image.write_to(&found) {
        Ok(()) => found,
        Err(_) => Path::new(&folder).to_owned(),
    }
}
