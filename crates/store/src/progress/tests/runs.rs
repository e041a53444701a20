//! Random runs against a simple model, with kills, restarts, failed writes and full disks among them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rusqlite::ffi;

use super::*;
use crate::delivery::SetAside;
use crate::progress::letter::LetterPlace;

/// What happens to a shard, in random order.
#[derive(Clone, Debug)]
enum Step {
    Deliver(u8, u8),
    Expire(u8, u8),
    GiveUp(u8, u8),
    SetAside(u8, u8),
    DiscardPending(u8, u8),
    Revive(u8),
    Fail(u8, u8),
    Start(u8, u8),
    Redrive(u8),
    Discard(u8),
    EndRedrive(u8, u8),
    RaiseFloor(u8),
    Durable,
    Reopen,
    Kill,
    FailedWrite,
    FullDisk,
}

fn step() -> impl Strategy<Value = Step> {
    let lane = 0..2_u8;
    let place = 0..EVENTS;
    prop_oneof![
        8 => (lane.clone(), place.clone()).prop_map(|(l, s)| Step::Deliver(l, s)),
        1 => (lane.clone(), place.clone()).prop_map(|(l, s)| Step::Expire(l, s)),
        4 => (lane.clone(), place.clone()).prop_map(|(l, s)| Step::GiveUp(l, s)),
        4 => (lane.clone(), place.clone()).prop_map(|(l, s)| Step::SetAside(l, s)),
        1 => (lane.clone(), place.clone()).prop_map(|(l, s)| Step::DiscardPending(l, s)),
        3 => any::<u8>().prop_map(Step::Revive),
        4 => (lane.clone(), place.clone()).prop_map(|(l, s)| Step::Fail(l, s)),
        2 => (lane.clone(), place).prop_map(|(l, s)| Step::Start(l, s)),
        3 => any::<u8>().prop_map(Step::Redrive),
        2 => any::<u8>().prop_map(Step::Discard),
        3 => (any::<u8>(), 0..3_u8).prop_map(|(n, r)| Step::EndRedrive(n, r)),
        2 => lane.prop_map(Step::RaiseFloor),
        2 => Just(Step::Durable),
        1 => Just(Step::Reopen),
        2 => Just(Step::Kill),
        1 => Just(Step::FailedWrite),
        1 => Just(Step::FullDisk),
    ]
}

/// Events of each lane in a random run.
const EVENTS: u8 = 24;

/// What one delivery has become, by the rules alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pending {
        attempts: u32,
    },
    Delivered,
    Expired,
    Dead(u64),
    /// Dead, and held where it lies.
    Aside(u64),
    Redriving(u64),
    /// Being sent again from where it lies.
    RedrivingAside(u64),
    Discarded,
}

impl Fate {
    /// The number of a letter that lies dead.
    fn dead(self) -> Option<u64> {
        match self {
            Self::Dead(id) | Self::Aside(id) => Some(id),
            _ => None,
        }
    }

    /// The number of a letter that is being sent again.
    fn redriving(self) -> Option<u64> {
        match self {
            Self::Redriving(id) | Self::RedrivingAside(id) => Some(id),
            _ => None,
        }
    }

    /// The number of a letter that lies dead and refers to its event.
    fn aside(self) -> Option<u64> {
        match self {
            Self::Aside(id) => Some(id),
            _ => None,
        }
    }

    /// Whether the event must stay where it was stored.
    fn is_held(self) -> bool {
        matches!(
            self,
            Self::Pending { .. } | Self::Aside(_) | Self::RedrivingAside(_)
        )
    }
}

struct Model {
    base: u64,
    fates: BTreeMap<(u8, u8), Fate>,
    /// The same at the last moment that was known to be on disk.
    durable: BTreeMap<(u8, u8), Fate>,
}

impl Model {
    fn new(base: u64) -> Self {
        let places = (0..2).flat_map(|lane| (0..EVENTS).map(move |place| (lane, place)));
        let fates: BTreeMap<_, _> = places
            .map(|at| (at, Fate::Pending { attempts: 0 }))
            .collect();
        Self {
            base,
            durable: fates.clone(),
            fates,
        }
    }

    /// Sequences that straddle a chunk's border, at the end of what is possible as well.
    fn sequence(&self, place: u8) -> Sequence {
        Sequence(self.base + u64::from(place))
    }

    fn place_of(&self, (lane, place): (u8, u8)) -> LetterPlace {
        let is_aside = |fate: &&Fate| matches!(fate, Fate::Aside(_) | Fate::RedrivingAside(_));
        let fate = self.fates.get(&(lane, place)).filter(is_aside);
        LetterPlace {
            lane: LaneId(u32::from(lane)),
            referred: fate.map(|_| self.sequence(place)),
        }
    }

    fn resolve(&mut self, lane: u8, place: u8, fate: Fate) {
        if let Some(now @ Fate::Pending { .. }) = self.fates.get_mut(&(lane, place)) {
            *now = fate;
        }
    }

    fn nth(&self, n: u8, wanted: impl Fn(Fate) -> Option<u64>) -> Option<((u8, u8), u64)> {
        let all: Vec<_> = self
            .fates
            .iter()
            .filter_map(|(at, fate)| wanted(*fate).map(|id| (*at, id)))
            .collect();
        all.get(usize::from(n).checked_rem(all.len())?).copied()
    }

    fn check(&self, shard: &Shard) {
        for lane in 0..2 {
            let id = LaneId(u32::from(lane));
            let count = |wanted: fn(&Fate) -> bool| {
                let of_lane = self.fates.iter().filter(|((l, _), _)| *l == lane);
                of_lane.filter(|(_, fate)| wanted(fate)).count() as u64
            };
            let totals = shard.progress.totals(id);
            assert_eq!(totals.delivered, count(|f| *f == Fate::Delivered));
            assert_eq!(totals.expired, count(|f| *f == Fate::Expired));
            assert_eq!(totals.discarded, count(|f| *f == Fate::Discarded));
            assert_eq!(totals.dead, count(|f| f.dead().is_some()));
            assert_eq!(totals.redriving, count(|f| f.redriving().is_some()));
        }
        for ((lane, place), fate) in &self.fates {
            let id = LaneId(u32::from(*lane));
            let sequence = self.sequence(*place);
            let is_held = shard.progress.view(id, |view| view.is_held(sequence));
            assert_eq!(is_held, fate.is_held(), "{fate:?}");
            let attempts = shard
                .progress
                .retry_of(id, sequence)
                .map_or(0, |r| r.attempts);
            match fate {
                Fate::Pending { attempts: expected } => {
                    assert!(!shard.progress.is_resolved(id, sequence));
                    assert_eq!(attempts, *expected);
                }
                _ => {
                    assert!(shard.progress.is_resolved(id, sequence));
                    assert_eq!(attempts, 0);
                }
            }
        }
    }

    /// What a kill leaves: nothing that was on disk is undone, and the accounting holds.
    fn check_killed(&self, killed: &Shard) {
        let letters = killed.progress.read_letters(|connection| {
            connection
                .prepare("SELECT lane, redriving, referred, sequence FROM dead_letters")?
                .query_map([], |row| {
                    let referred = row.get::<_, bool>(2)?;
                    let sequence = Sequence(row.get::<_, i64>(3)?.cast_unsigned());
                    Ok((
                        (row.get::<_, u32>(0)?, row.get::<_, bool>(1)?),
                        referred.then_some(sequence),
                    ))
                })?
                .collect::<rusqlite::Result<Vec<_>>>()
        });
        let letters = letters.unwrap();
        for lane in 0..2_u8 {
            let id = LaneId(u32::from(lane));
            let all: Vec<_> = (0..EVENTS).map(|place| self.sequence(place)).collect();
            let pending = killed.progress.count_unresolved(id, &all);
            let totals = killed.progress.totals(id);
            assert_eq!(
                u64::from(EVENTS),
                pending
                    + totals.redriving
                    + totals.delivered
                    + totals.dead
                    + totals.expired
                    + totals.discarded
            );
            let held =
                |redriving| letters.iter().filter(|l| l.0 == (id.0, redriving)).count() as u64;
            assert_eq!((totals.dead, totals.redriving), (held(false), held(true)));
            // What a letter refers to is held, and nothing else that is resolved.
            for sequence in &all {
                let referred = letters
                    .iter()
                    .any(|l| l.0.0 == id.0 && l.1 == Some(*sequence));
                let resolved = killed.progress.is_resolved(id, *sequence);
                let is_held = killed.progress.view(id, |view| view.is_held(*sequence));
                assert_eq!(is_held, referred || !resolved);
                assert!(!referred || resolved, "never both a letter and pending");
            }
        }
        for ((lane, place), fate) in &self.durable {
            let id = LaneId(u32::from(*lane));
            // A letter that refers to its event may have become pending again.
            if !fate.is_held() {
                assert!(killed.progress.is_resolved(id, self.sequence(*place)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_run_is_what_the_rules_say_and_any_kill_leaves_it_accounted_for(
        base in prop_oneof![Just(0), Just(4_090), Just(i64::MAX as u64 - 10), Just(u64::MAX - 30)],
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut shard = Shard::new();
        let mut model = Model::new(base);
        for step in steps {
            shard = apply(shard, &mut model, step);
            model.check(&shard);
        }
    }
}

fn apply(shard: Shard, model: &mut Model, step: Step) -> Shard {
    let progress = &shard.progress;
    let lane_id = |lane: u8| LaneId(u32::from(lane));
    match step {
        Step::Deliver(lane, place) => {
            progress.deliver(lane_id(lane), [model.sequence(place)]);
            model.resolve(lane, place, Fate::Delivered);
        }
        Step::Expire(lane, place) => {
            let event = event(model.sequence(place).0);
            progress.settle(lane_id(lane), DESTINATION, &event, Resolution::Expired);
            model.resolve(lane, place, Fate::Expired);
        }
        Step::GiveUp(lane, place) => {
            let event = event(model.sequence(place).0);
            let letter = progress.change(|memory| {
                memory.dead_letter(lane_id(lane), DESTINATION, &event, attempt(1))
            });
            if let Some(letter) = letter {
                model.resolve(lane, place, Fate::Dead(letter));
            }
        }
        Step::SetAside(lane, place) => {
            let (id, sequence, at) = (lane_id(lane), model.sequence(place), Timestamp::EPOCH);
            let letter = progress.change(|memory| {
                memory.set_aside(id, DESTINATION, sequence, SetAside::BacklogLimit, at)
            });
            if let Some(letter) = letter {
                model.resolve(lane, place, Fate::Aside(letter));
            }
        }
        Step::DiscardPending(lane, place) => {
            let (id, sequence) = (lane_id(lane), model.sequence(place));
            progress.change(|memory| memory.discard_pending(id, sequence));
            model.resolve(lane, place, Fate::Discarded);
        }
        Step::Fail(lane, place) | Step::Start(lane, place) => {
            let (id, sequence) = (lane_id(lane), model.sequence(place));
            if let Some(Fate::Pending { attempts }) = model.fates.get_mut(&(lane, place)) {
                *attempts += 1;
                match step {
                    Step::Fail(..) => {
                        progress.record_failure(id, sequence, attempt(*attempts), Timestamp::EPOCH);
                    }
                    _ => progress.record_start(id, sequence, *attempts),
                }
            } else {
                progress.record_failure(id, sequence, attempt(9), Timestamp::EPOCH);
            }
        }
        Step::RaiseFloor(lane) => {
            let is_held = |place: &u8| {
                model
                    .fates
                    .get(&(lane, *place))
                    .is_some_and(|f| f.is_held())
            };
            let floor = model.sequence((0..EVENTS).find(is_held).unwrap_or(EVENTS));
            progress.raise_floor(lane_id(lane), floor);
        }
        Step::Redrive(_) | Step::Discard(_) | Step::Revive(_) | Step::EndRedrive(..) => {
            act(progress, model, &step);
        }
        Step::Durable => {
            progress.durable_soon().unwrap();
            model.durable = model.fates.clone();
        }
        Step::Reopen => {
            model.durable = model.fates.clone();
            return shard.reopen();
        }
        Step::Kill => model.check_killed(&shard.killed()),
        Step::FailedWrite => progress.inject(failure(ffi::SQLITE_IOERR_WRITE)),
        Step::FullDisk => progress.inject(failure(ffi::SQLITE_FULL)),
    }
    shard
}

/// What operators make of letters, and how redrives end.
fn act(progress: &Progress, model: &mut Model, step: &Step) {
    let lane_id = |lane: u8| LaneId(u32::from(lane));
    match *step {
        Step::Redrive(n) => {
            let dead = model.nth(n, Fate::dead);
            if let Some((at, letter)) = dead {
                let place = model.place_of(at);
                assert!(progress.change(|m| m.redrive(letter, place, None)));
                assert!(!progress.change(|m| m.redrive(letter, place, None)));
                let sequence = model.sequence(at.1);
                assert!(!progress.change(|m| m.revive(letter, place.lane, sequence)));
                let fate = match place.referred {
                    Some(_) => Fate::RedrivingAside(letter),
                    None => Fate::Redriving(letter),
                };
                model.fates.insert(at, fate);
            }
        }
        Step::Discard(n) => {
            let dead = model.nth(n, Fate::dead);
            if let Some((at, letter)) = dead {
                let place = model.place_of(at);
                assert!(progress.change(|m| m.discard(letter, place)));
                model.fates.insert(at, Fate::Discarded);
            }
        }
        Step::Revive(n) => {
            if let Some((at, letter)) = model.nth(n, Fate::aside) {
                let (id, sequence) = (lane_id(at.0), model.sequence(at.1));
                assert!(progress.change(|m| m.revive(letter, id, sequence)));
                assert!(!progress.change(|m| m.revive(letter, id, sequence)));
                model.fates.insert(at, Fate::Pending { attempts: 0 });
            }
        }
        Step::EndRedrive(n, how) => {
            let under_way = model.nth(n, Fate::redriving);
            if let Some((at, letter)) = under_way {
                let (resolution, fate) = match how {
                    0 => (Resolution::Delivered, Fate::Delivered),
                    1 => (Resolution::Expired, Fate::Expired),
                    _ => match model.place_of(at).referred {
                        Some(_) => (dead(2), Fate::Aside(letter)),
                        None => (dead(2), Fate::Dead(letter)),
                    },
                };
                progress.settle_letter(letter, resolution.clone());
                progress.settle_letter(letter, resolution);
                model.fates.insert(at, fate);
            }
        }
        _ => unreachable!("the others are no operator's"),
    }
}
