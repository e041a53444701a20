//! The judgement over a run, as a pure function of what was written down outside of the system: what clients
//! were told, what one destination received, what its operator asked, and what the server counts.
//!
//! Held by histories that are broken on purpose (`tests`): every rule in several ways, and healthy ones that
//! look suspicious.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::history::{Arrival, Event, Told};

/// What must hold, numbered as in docs/reliability.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// 1: what was acknowledged arrived, or lies in the dead letters, or was discarded by its operator.
    NothingLost,
    /// 2: nothing arrives that was refused or never sent.
    NothingInvented,
    /// 3: first appearances of a key come in the order of acceptance.
    Order,
    /// 4: bodies are identical, byte for byte.
    Intact,
    /// 5: a destination receives only what is routed to it.
    OnlyItsOwn,
    /// 6: repeats of what was confirmed stay within the bound of unclean stops.
    Repeats,
    /// 7: an event that is sent again gets its first receipt.
    OneReceipt,
    /// 8: the server's counts are the history's own, and add up.
    Accounts,
    /// 10: no attempt comes before the time that the destination asked for.
    NotTooEarly,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub rule: Rule,
    pub what: String,
}

/// What the server counts of a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    pub accepted: u64,
    pub delivered: u64,
    pub pending: u64,
    pub dead: u64,
    pub expired: u64,
    pub discarded: u64,
}

/// Everything that is known of one destination once faults have stopped and everything is drained.
#[derive(Clone, Debug, Default)]
pub struct Evidence<'a> {
    /// By event, what its clients were told; whatever was left open has been asked since.
    pub told: BTreeMap<u64, Told>,
    /// Answers that contradict each other, as they were noticed.
    pub contradictions: &'a [String],
    /// Everything that the destination received, in order.
    pub arrivals: &'a [Arrival],
    /// Which events are routed to it; `None`: all.
    pub routed: Option<fn(Event) -> bool>,
    /// Events that lie in its dead letters.
    pub dead: BTreeSet<u64>,
    /// Events whose discard was asked for, and those where it was confirmed.
    pub discards_asked: BTreeSet<u64>,
    pub discards_confirmed: BTreeSet<u64>,
    pub books: Books,
    /// Most repeats that unclean stops explain.
    pub repeats_max: u64,
}

/// What was found, and how often the destination was sent what it had confirmed.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    pub findings: Vec<Finding>,
    pub repeats: u64,
}

/// How much earlier than asked for a clock's grain may let an attempt come, in milliseconds.
const GRAIN: u64 = 2;

/// Holds everything about one destination against the rules.
pub fn judge(evidence: &Evidence<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let confirmed = judge_arrivals(evidence, &mut judgement);
    judge_absences(evidence, &confirmed, &mut judgement);
    judge_books(evidence, &confirmed, &mut judgement);
    for what in evidence.contradictions {
        judgement.note(Rule::OneReceipt, what.clone());
    }
    if judgement.repeats > evidence.repeats_max {
        let (found, most) = (judgement.repeats, evidence.repeats_max);
        judgement.note(Rule::Repeats, format!("{found} repeats, at most {most}"));
    }
    judgement
}

impl Judgement {
    fn note(&mut self, rule: Rule, what: String) {
        self.findings.push(Finding { rule, what });
    }
}

impl Evidence<'_> {
    fn is_routed(&self, number: u64) -> bool {
        self.routed.is_none_or(|routed| routed(Event(number)))
    }

    /// Stored events that this destination is owed.
    fn owed(&self) -> impl Iterator<Item = u64> {
        let stored = self
            .told
            .iter()
            .filter(|(_, told)| matches!(told, Told::Stored(_)));
        stored
            .map(|(number, _)| *number)
            .filter(|number| self.is_routed(*number))
    }
}

/// Goes through what arrived, in order; by event, whether the destination confirmed it.
fn judge_arrivals(evidence: &Evidence<'_>, judgement: &mut Judgement) -> HashMap<u64, bool> {
    let mut confirmed: HashMap<u64, bool> = HashMap::new();
    let mut furthest: HashMap<u64, u64> = HashMap::new();
    // By event, in which run of the server and until when the destination asked to be left alone.
    let mut asked: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut blocked = Blocked::default();
    for arrival in evidence.arrivals {
        let number = arrival.number;
        let mut wrong = |rule, what: &str| judgement.note(rule, format!("event {number} {what}"));
        if !arrival.intact {
            wrong(Rule::Intact, "arrived with another body");
        }
        if !evidence.is_routed(number) {
            wrong(Rule::OnlyItsOwn, "arrived where it is not routed to");
            continue;
        }
        let sequence = match evidence.told.get(&number) {
            Some(Told::Stored(sequence)) => *sequence,
            Some(_) => {
                wrong(Rule::NothingInvented, "arrived and is not stored");
                continue;
            }
            None => {
                wrong(Rule::NothingInvented, "arrived and was never sent");
                continue;
            }
        };
        if let Some((run, until)) = asked.remove(&number)
            && run == arrival.run
            && arrival.at + GRAIN < until
        {
            wrong(Rule::NotTooEarly, "was sent again before it was time");
        }
        if let Some(until) = arrival.not_before {
            asked.insert(number, (arrival.run, until));
        }
        if let Some(ahead) = blocked.pass(arrival, sequence) {
            let what =
                format!("({sequence}) was sent while event {ahead} of its key is tried again");
            wrong(Rule::Order, &what);
        }
        if let Some(before) = confirmed.get_mut(&number) {
            judgement.repeats += u64::from(*before);
            *before |= arrival.confirmed;
            continue;
        }
        confirmed.insert(number, arrival.confirmed);
        if let Some(key) = Event(number).key() {
            let furthest = furthest.entry(key).or_default();
            if sequence < *furthest {
                let what = format!("({sequence}) arrived after {furthest} of its key");
                wrong(Rule::Order, &what);
            }
            *furthest = sequence.max(*furthest);
        }
    }
    confirmed
}

/// Keys of which an event failed and is tried again: no later one may be sent meanwhile.
#[derive(Default)]
struct Blocked {
    /// By key, number and place of the earliest.
    by_key: HashMap<u64, (u64, u64)>,
    /// Events that were refused for good and come again only when somebody redrives them; they block nobody.
    refused: BTreeSet<u64>,
}

impl Blocked {
    /// Notes an arrival; the event that should have been tried before it, where there is one.
    fn pass(&mut self, arrival: &Arrival, sequence: u64) -> Option<u64> {
        let number = arrival.number;
        let key = Event(number).key()?;
        let ahead = self.by_key.get(&key).copied();
        let passed = ahead.filter(|(other, place)| *other != number && *place < sequence);
        if !arrival.confirmed && !arrival.is_tried_again {
            self.refused.insert(number);
        }
        let is_ahead = ahead.is_none_or(|(other, place)| other == number || sequence < place);
        if arrival.is_tried_again && !self.refused.contains(&number) {
            if is_ahead {
                self.by_key.insert(key, (number, sequence));
            }
        } else if ahead.is_some_and(|(other, _)| other == number) {
            self.by_key.remove(&key);
        }
        passed.map(|(other, _)| other)
    }
}

/// Every acknowledged event has an end: one of three.
fn judge_absences(
    evidence: &Evidence<'_>,
    confirmed: &HashMap<u64, bool>,
    judgement: &mut Judgement,
) {
    let has_ended = |number: &u64| {
        confirmed.get(number) == Some(&true)
            || evidence.dead.contains(number)
            || evidence.discards_asked.contains(number)
    };
    let lost: Vec<u64> = evidence
        .owed()
        .filter(|number| !has_ended(number))
        .collect();
    if !lost.is_empty() {
        let some: Vec<_> = lost.iter().take(20).collect();
        judgement.note(
            Rule::NothingLost,
            format!("{} lost, among them {some:?}", lost.len()),
        );
    }
    for number in &evidence.dead {
        if !matches!(evidence.told.get(number), Some(Told::Stored(_))) {
            judgement.note(
                Rule::NothingInvented,
                format!("event {number} is a dead letter and is not stored"),
            );
        }
    }
}

/// The server's counts against the history's.
fn judge_books(evidence: &Evidence<'_>, confirmed: &HashMap<u64, bool>, judgement: &mut Judgement) {
    let Books {
        accepted,
        delivered,
        pending,
        dead,
        expired,
        discarded,
    } = evidence.books;
    let owed: BTreeSet<u64> = evidence.owed().collect();
    let stored = owed.len() as u64;
    let mut wrong = |what: String| judgement.note(Rule::Accounts, what);
    if accepted != stored {
        wrong(format!("{accepted} accepted, history {stored}"));
    }
    if pending != 0 {
        wrong(format!("{pending} pending although it is drained"));
    }
    if accepted != delivered + pending + dead + expired + discarded {
        wrong(format!("the counts do not add up: {:?}", evidence.books));
    }
    let letters = evidence.dead.len() as u64;
    if dead != letters {
        wrong(format!("{dead} dead, {letters} are listed"));
    }
    let asked = evidence.discards_asked.len() as u64;
    let sure = evidence.discards_confirmed.len() as u64;
    if !(sure..=asked).contains(&discarded) {
        wrong(format!("{discarded} discarded, history {sure} to {asked}"));
    }
    // Whatever the destination confirmed may be counted otherwise only where its answer was cut off, and an
    // event that ended otherwise may have arrived nevertheless.
    let arrived = owed.iter().filter(|one| confirmed.get(one) == Some(&true));
    let arrived = arrived.count() as u64;
    if delivered > arrived {
        wrong(format!("{delivered} delivered, {arrived} were confirmed"));
    }
}

#[cfg(test)]
mod tests;
