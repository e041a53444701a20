//! A seed expands into a script, which is printed where something broke.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wayhold_model::{DestinationId, DestinationSet, Event, EventParts};
use wayhold_store::{NewEvent, Options};

use super::commands::LIFE;
use super::{DESTINATIONS, SOURCE};
use crate::dice::Dice;

/// How long resolved segments are kept, where they are.
pub(super) const RETENTION: Duration = Duration::from_secs(3600);

/// What names of progress files begin with.
const PROGRESS: &str = "state-";

/// What names of the files of commands begin with.
const COMMANDS: &str = "commands.db";

/// What names of logs end with.
const LOG: &str = ".db-wal";

/// What is done to a store, step by step.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) shards: u16,
    /// Bytes of a page of a segment.
    page_size: u32,
    /// Whether resolved segments are kept until time goes forward.
    retains: bool,
    /// Events, in the order in which they are sent.
    pub(crate) events: Vec<Sent>,
    pub(crate) steps: Vec<Step>,
    /// How far each command is led.
    commands: Vec<usize>,
}

/// One event that the script sends.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    key: Option<u64>,
    /// Destinations by index.
    pub(crate) to: Vec<usize>,
    /// Those of them that are over their limit: their deliveries become dead letters at once.
    pub(crate) over: Vec<usize>,
    bytes: usize,
}

/// One step; events by index in the script.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// These requests at the same time.
    Accept(Vec<Vec<usize>>),
    /// Some of what was accepted, again.
    Repeat(Vec<usize>),
    /// The next deliveries of a destination end.
    Deliver {
        destination: usize,
        count: usize,
        ending: Ending,
        durable: bool,
    },
    /// The oldest dead letters are sent again; then they are delivered, or die again, or stay under way.
    Redrive {
        count: usize,
        ending: Option<Ending>,
    },
    /// The oldest dead letter is discarded.
    Discard,
    /// A destination is paused, or runs again.
    Pause(usize),
    /// Another number of shards, while these requests are sent.
    Reshard {
        shards: u16,
        beside: Vec<Vec<usize>>,
    },
    /// A backup, while these requests are sent.
    BackUp { beside: Vec<Vec<usize>> },
    /// These commands are led so far, at the same time.
    Lead(Vec<(usize, usize)>),
    /// Time passes.
    Forward(Duration),
    /// What runs in the background gets some time.
    Rest,
    /// Everything is delivered, and what nobody needs any more is removed.
    Clean,
    /// A clean stop and a new start.
    Restart,
    /// The next sync of such a file fails.
    FailSync(&'static str),
}

/// How a delivery ends, or an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Delivered,
    Dead,
    Expired,
    /// Stays pending, with an attempt more.
    Failed,
}

impl Script {
    /// The script of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut script = Self {
            seed,
            shards: if seed.is_multiple_of(2) { 3 } else { 1 },
            page_size: if dice.one_in(2) { 1024 } else { 4096 },
            retains: dice.one_in(3),
            events: Vec::new(),
            steps: Vec::new(),
            commands: Vec::new(),
        };
        script.accept(&mut dice);
        for _ in 0..12 + dice.below(6) {
            match dice.below(21) {
                0..=4 => script.accept(&mut dice),
                5..=9 => script.deliver(&mut dice),
                10 => {
                    let ending = [Some(Ending::Delivered), Some(Ending::Dead), None];
                    script.steps.push(Step::Redrive {
                        count: 1 + script.below(&mut dice, 2),
                        ending: ending.get(script.below(&mut dice, 3)).copied().flatten(),
                    });
                }
                11 => script.steps.push(match dice.below(3) {
                    0 => Step::Pause(script.below(&mut dice, DESTINATIONS)),
                    _ => Step::Discard,
                }),
                12 => script.repeat(&mut dice),
                13 => {
                    let by = Duration::from_secs(60 * dice.below(200));
                    script.steps.extend([Step::Forward(by), Step::Rest]);
                }
                14 => script.steps.push(match dice.below(3) {
                    0 => Step::Restart,
                    1 => Step::Clean,
                    _ => Step::Rest,
                }),
                15 => {
                    let files = [PROGRESS, LOG, ".idx", COMMANDS];
                    let file = files.get(script.below(&mut dice, 4)).copied();
                    script.steps.push(Step::FailSync(file.unwrap_or(PROGRESS)));
                    script.lead(&mut dice);
                    script.accept(&mut dice);
                    script.deliver(&mut dice);
                }
                // What an operator changes about the whole store; it goes on meanwhile.
                16 => {
                    let (shards, beside) = (1 + dice.below(3), script.requests(&mut dice));
                    script.steps.push(Step::Reshard {
                        shards: u16::try_from(shards).unwrap_or(1),
                        beside,
                    });
                }
                17 => {
                    let beside = script.requests(&mut dice);
                    script.steps.push(Step::BackUp { beside });
                }
                _ => script.lead(&mut dice),
            }
        }
        script.steps.push(match dice.one_in(2) {
            true => Step::Clean,
            false => Step::Rest,
        });
        script
    }

    /// Whether a sync of progress may fail in it.
    pub(super) fn fails_progress(&self) -> bool {
        let mut steps = self.steps.iter();
        // A log is any database's, so that it may be progress's.
        steps.any(|step| matches!(step, Step::FailSync(path) if [PROGRESS, LOG].contains(path)))
    }

    fn below(&self, dice: &mut Dice, bound: usize) -> usize {
        usize::try_from(dice.below(bound as u64)).unwrap_or(0)
    }

    fn accept(&mut self, dice: &mut Dice) {
        let requests = self.requests(dice);
        self.steps.push(Step::Accept(requests));
    }

    fn requests(&mut self, dice: &mut Dice) -> Vec<Vec<usize>> {
        let requests = (0..1 + dice.below(3)).map(|_| {
            let events = 1 + if dice.one_in(2) { 0 } else { dice.below(6) };
            (0..events).map(|_| self.send(dice)).collect()
        });
        requests.collect()
    }

    fn send(&mut self, dice: &mut Dice) -> usize {
        let to: Vec<_> = (0..DESTINATIONS).filter(|_| dice.one_in(2)).collect();
        self.events.push(Sent {
            key: (!dice.one_in(6)).then(|| dice.below(5)),
            over: to.iter().copied().filter(|_| dice.one_in(10)).collect(),
            to,
            bytes: match dice.below(8) {
                0 => 0,
                1 => self.below(dice, 5000),
                _ => self.below(dice, 300),
            },
        });
        self.events.len() - 1
    }

    fn lead(&mut self, dice: &mut Dice) {
        let mut led = Vec::new();
        for _ in 0..1 + dice.below(3) {
            let command = self.below(dice, self.commands.len() + 1);
            if command == self.commands.len() {
                self.commands.push(0);
            }
            let is_led = led.iter().any(|(one, _)| *one == command);
            let further = 1 + self.below(dice, 3);
            if let Some(at) = self.commands.get_mut(command).filter(|_| !is_led) {
                *at = (*at + further).min(LIFE.len());
                led.push((command, *at));
            }
        }
        self.steps.push(Step::Lead(led));
    }

    fn repeat(&mut self, dice: &mut Dice) {
        let events = self.events.len();
        let some = (0..events).filter(|_| dice.one_in(3)).collect();
        self.steps.push(Step::Repeat(some));
    }

    fn deliver(&mut self, dice: &mut Dice) {
        let ending = match dice.below(8) {
            0 | 1 => Ending::Dead,
            2 => Ending::Failed,
            3 => Ending::Expired,
            _ => Ending::Delivered,
        };
        self.steps.push(Step::Deliver {
            destination: self.below(dice, DESTINATIONS),
            count: match ending {
                Ending::Delivered => 1 + self.below(dice, 24),
                Ending::Dead | Ending::Expired | Ending::Failed => 1 + self.below(dice, 4),
            },
            ending,
            durable: dice.one_in(2),
        });
    }

    /// Limits that a few events reach.
    pub(crate) fn options(&self) -> Options {
        Options {
            shards: self.shards,
            segment_rows: 8,
            segment_bytes: 128 * 1024,
            group_bytes: 4 * 1024,
            queue_bytes: 64 * 1024,
            tail_bytes: 4 * 1024,
            window_ids: 1_000,
            min_free: Some(0),
            reserve_bytes: 4096,
            checkpoint_after: Duration::ZERO,
            compaction_gain: 1,
            compaction_every: Duration::from_millis(5),
            removal_step: 8 * 1024,
            mark_sync: Duration::from_millis(20),
            page_size: self.page_size,
            commands_log_pages: 0,
            commands_log_groups: 1,
            retention: match self.retains {
                true => RETENTION,
                false => Duration::ZERO,
            },
            ..Options::default()
        }
    }

    /// The id of an event.
    pub(super) fn id(event: usize) -> String {
        format!("e{event}")
    }

    /// Which event has this id.
    pub(super) fn of_id(id: &str) -> Option<usize> {
        id.strip_prefix('e')?.parse().ok()
    }

    /// The ordering key of an event, where it has one.
    pub(super) fn key(&self, event: usize) -> Option<u64> {
        self.events.get(event)?.key
    }

    /// Deliveries of these events that are over a limit.
    pub(super) fn over(&self, events: &[usize]) -> Vec<(usize, usize)> {
        let sent = events
            .iter()
            .filter_map(|event| Some((*event, self.events.get(*event)?)));
        let over = sent.flat_map(|(event, sent)| sent.over.iter().map(move |to| (event, *to)));
        over.collect()
    }

    /// An event as it is sent; `None` where the script has no such event.
    pub(super) fn event(&self, event: usize, destinations: &[DestinationId]) -> Option<NewEvent> {
        let sent = self.events.get(event)?;
        let to = sent.to.iter().filter_map(|to| destinations.get(*to));
        let key = sent.key.map(|key| format!("k{key}")).unwrap_or_default();
        let mut dice = Dice::new(event as u64);
        let data: Vec<u8> = (0..sent.bytes)
            .map(|_| dice.next().to_le_bytes()[0])
            .collect();
        let to = DestinationSet::new(to.copied());
        let mut new = new_event(&Self::id(event), &key, data, to)?;
        if !sent.over.is_empty() {
            let over = sent.over.iter().filter_map(|over| destinations.get(*over));
            new.set_aside = Some(Arc::new(DestinationSet::new(over.copied())));
        }
        Some(new)
    }
}

/// An event of that content.
pub(super) fn new_event(
    id: &str,
    key: &str,
    data: Vec<u8>,
    destinations: DestinationSet,
) -> Option<NewEvent> {
    let parts = EventParts {
        id,
        source: SOURCE,
        kind: "com.example.torture",
        subject: id,
        key,
        content_type: "application/octet-stream",
        data: Bytes::from(data),
        ..EventParts::default()
    };
    Some(NewEvent {
        event: Arc::new(Event::new(&parts).ok()?),
        destinations: Arc::new(destinations),
        identified: true,
        set_aside: None,
    })
}
