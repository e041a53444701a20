//! What the clients were told and what the destinations received, kept outside of the system, and the
//! judgement over both. The rules: what was acknowledged arrives; nothing arrives that was refused or
//! never sent; bodies are identical; first appearances of a key come in the order of acceptance; repeats
//! stay within the bound; and what the server counts is what the history counts.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::client::{Answer, Client};
use super::episode::invalid;
use super::receiver::Receiver;
use super::server::Server;

/// Ordering keys in use.
const KEYS: u64 = 24;

/// One event in this many has no key.
const KEYLESS: u64 = 8;

/// An event by its number, from which everything else follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub u64);

impl Event {
    pub fn key(self) -> Option<u64> {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (!mixed.is_multiple_of(KEYLESS)).then_some(mixed / KEYLESS % KEYS)
    }

    /// JSON, up to 2 KiB, that differs from every other event's.
    pub fn body(self) -> Vec<u8> {
        let number = self.0;
        let length = usize::try_from(number.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 53).unwrap();
        let pad = char::from(b'a' + u8::try_from(number % 26).unwrap());
        let pad = pad.to_string().repeat(length);
        format!("{{ \"number\": {number}, \"pad\":\"{pad}\"}}").into_bytes()
    }
}

/// What a client knows of an event it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Acknowledged, with its place in the order of acceptance.
    Stored(u64),
    /// Definitely not stored.
    Refused,
    /// No answer, or one that leaves it open.
    Unknown,
}

/// One arrival at a destination.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub number: u64,
    pub intact: bool,
    /// The destination said yes to it, so there is no reason to send it again.
    pub confirmed: bool,
    /// Bytes of the watched file when it arrived.
    pub watched: u64,
}

/// Everything that clients were told.
#[derive(Default)]
pub struct History {
    told: Mutex<BTreeMap<u64, Told>>,
    contradictions: Mutex<Vec<String>>,
}

impl History {
    /// Written before the request is sent.
    pub fn intend(&self, event: Event) {
        let mut told = self.told.lock().unwrap();
        // Sent again, an event that was acknowledged stays so.
        let now = told.entry(event.0).or_insert(Told::Unknown);
        if *now == Told::Refused {
            *now = Told::Unknown;
        }
    }

    /// Written after the answer; says what was learned.
    pub fn answered(&self, events: &[Event], answer: &Answer) -> Told {
        let receipts = answer.json();
        let mut last = Told::Unknown;
        for (index, event) in events.iter().enumerate() {
            let receipt = &receipts["receipts"][index];
            last = match answer.status {
                // Of a batch that one shard refused, the others' part is stored.
                202 | 503 if receipt["position"].is_string() => {
                    Told::Stored(sequence(&receipt["position"]))
                }
                202 => panic!("{event:?} has no receipt: {answer:?}"),
                // A write that failed may be found whole after a power cut: sending again decides.
                503 if answer.problem() == "unavailable" => Told::Unknown,
                429 | 503 => Told::Refused,
                _ => panic!("unexpected answer {answer:?}"),
            };
            if answer.status != 202 && answer.header("retry-after").is_none() {
                self.contradict(format!("{event:?}: {} without Retry-After", answer.status));
            }
            self.learn(*event, last);
        }
        last
    }

    fn learn(&self, event: Event, now: Told) {
        let mut told = self.told.lock().unwrap();
        let before = told[&event.0];
        match (before, now) {
            (Told::Stored(first), Told::Stored(second)) if first != second => {
                self.contradict(format!("{event:?} has two receipts, {first} and {second}"));
            }
            // A refused repetition says nothing of the event that is stored already.
            (Told::Stored(_), _) => {}
            _ => {
                told.insert(event.0, now);
            }
        }
    }

    pub fn contradict(&self, what: String) {
        self.contradictions.lock().unwrap().push(what);
    }

    pub fn told(&self, event: Event) -> Told {
        self.told.lock().unwrap()[&event.0]
    }

    /// How many events were acknowledged.
    pub fn stored(&self) -> usize {
        let told = self.told.lock().unwrap();
        let stored = |told: &&Told| matches!(told, Told::Stored(_));
        told.values().filter(stored).count()
    }

    /// Those events.
    pub fn acknowledged(&self) -> Vec<Event> {
        let told = self.told.lock().unwrap();
        let stored = told
            .iter()
            .filter(|(_, told)| matches!(told, Told::Stored(_)));
        stored.map(|(number, _)| Event(*number)).collect()
    }

    /// Events without a final answer.
    pub fn open(&self) -> Vec<Event> {
        let told = self.told.lock().unwrap();
        let open = told.iter().filter(|(_, told)| **told == Told::Unknown);
        open.map(|(number, _)| Event(*number)).collect()
    }

    /// How many have no final answer.
    pub fn unknown(&self) -> usize {
        let told = self.told.lock().unwrap();
        told.values().filter(|told| **told == Told::Unknown).count()
    }

    /// Asks the server of each event that was left open: it is stored or it is not, and that must agree
    /// with what arrived.
    pub fn resolve(&self, server: &Server) {
        let mut client = Client::new(server.address);
        for (number, told) in &mut *self.told.lock().unwrap() {
            if *told == Told::Unknown {
                let target = format!("/v1/events?source=/faults&id={number}");
                let answer = client.get(&target).expect("a look-up");
                *told = match answer.status {
                    200 => Told::Stored(sequence(&answer.json()["position"])),
                    404 => Told::Refused,
                    _ => panic!("unexpected answer {answer:?}"),
                };
            }
        }
    }
}

/// Shard and sequence of a position as answered, as one number: the order of acceptance within a key,
/// which lies in one shard.
fn sequence(position: &Value) -> u64 {
    let parse = |text: &str| {
        let (shard, sequence) = text.strip_prefix("g1.s")?.split_once('.')?;
        Some(shard.parse::<u64>().ok()? << 48 | sequence.parse::<u64>().ok()?)
    };
    let found = position.as_str().and_then(parse);
    found.unwrap_or_else(|| panic!("expected a position: {position}"))
}

/// What was found wrong at one destination, and how often it was sent what it had confirmed.
#[derive(Debug, Default)]
pub struct Judgement {
    pub lost: Vec<u64>,
    pub wrong: Vec<String>,
    pub repeats: u64,
}

/// Holds the arrivals at one destination against what clients were told.
pub fn judge(told: &BTreeMap<u64, Told>, arrivals: &[Arrival]) -> Judgement {
    let mut judgement = Judgement::default();
    let mut confirmed: HashMap<u64, bool> = HashMap::new();
    let mut furthest: HashMap<u64, u64> = HashMap::new();
    for arrival in arrivals {
        let number = arrival.number;
        let mut wrong = |what: &str| judgement.wrong.push(format!("event {number} {what}"));
        if !arrival.intact {
            wrong("arrived with another body");
        }
        let sequence = match told.get(&number) {
            Some(Told::Stored(sequence)) => *sequence,
            Some(_) => {
                wrong("arrived and is not stored");
                continue;
            }
            None => {
                wrong("arrived and was never sent");
                continue;
            }
        };
        if let Some(before) = confirmed.get_mut(&number) {
            judgement.repeats += u64::from(*before);
            *before |= arrival.confirmed;
            continue;
        }
        confirmed.insert(number, arrival.confirmed);
        if let Some(key) = Event(number).key() {
            let furthest = furthest.entry(key).or_default();
            if sequence < *furthest {
                wrong(&format!("({sequence}) arrived after {furthest} of its key"));
            }
            *furthest = sequence.max(*furthest);
        }
    }
    let arrived = |number: &u64| confirmed.get(number) == Some(&true);
    judgement.lost = told
        .iter()
        .filter(|(number, told)| matches!(told, Told::Stored(_)) && !arrived(number))
        .map(|(number, _)| *number)
        .collect();
    judgement
}

/// What a run must have reached, and may at most have cost.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Fewer acknowledged events make a run worthless.
    pub stored_min: usize,
    /// Unclean stops, each of which may repeat a window.
    pub unclean_stops: u64,
}

/// Most repeats after an unclean stop: what may be sent or settled without the settlement being synced
/// (docs/operating.md, `repeats_possible`).
pub const HOOK_REPEATS_MAX: u64 = 8 * 64;
pub const ARCHIVE_REPEATS_MAX: u64 = 16_384;

/// Numbers of a run that was found sound.
pub struct Account {
    stored: usize,
    hook_repeats: u64,
    archive_repeats: u64,
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            stored,
            hook_repeats,
            archive_repeats,
        } = self;
        write!(
            f,
            "{stored} events, {hook_repeats} repeats at the webhook, {archive_repeats} in the file"
        )
    }
}

/// Judges a run whose faults have stopped, with the server running: drains, settles what was left open,
/// and fails the test with everything that is wrong.
pub fn judge_run(
    server: &mut Server,
    history: &History,
    receiver: &Receiver,
    bounds: Bounds,
) -> Account {
    let status = server.drain();
    history.resolve(server);
    let told = history.told.lock().unwrap();
    let stored = told
        .values()
        .filter(|told| matches!(told, Told::Stored(_)))
        .count();
    let mut report = String::new();
    for what in &*history.contradictions.lock().unwrap() {
        writeln!(report, "{what}").unwrap();
    }
    let at_archive = archived(&server.archive());
    let mut repeats = Vec::new();
    for (name, arrivals, repeats_max) in [
        ("hook", &receiver.arrivals(), HOOK_REPEATS_MAX),
        ("archive", &at_archive, ARCHIVE_REPEATS_MAX),
    ] {
        let judgement = judge(&told, arrivals);
        if !judgement.lost.is_empty() {
            let (some, count) = (judgement.lost.iter().take(20), judgement.lost.len());
            let some: Vec<_> = some.collect();
            writeln!(report, "{name}: lost {count}, among them {some:?}").unwrap();
        }
        for what in &judgement.wrong {
            writeln!(report, "{name}: {what}").unwrap();
        }
        if judgement.repeats > repeats_max * bounds.unclean_stops {
            writeln!(report, "{name}: {} repeats", judgement.repeats).unwrap();
        }
        repeats.push(judgement.repeats);
        let destinations = status["destinations"].as_array().unwrap();
        let books = destinations.iter().find(|one| one["name"] == name).unwrap();
        for count in ["accepted", "delivered"] {
            if books["accounting"][count] != stored {
                let counted = &books["accounting"][count];
                writeln!(report, "{name}: {count} {counted}, history {stored}").unwrap();
            }
        }
    }
    if !report.is_empty() {
        server.fail(&format!(
            "broke a promise, {} events:\n{report}",
            told.len()
        ));
    }
    let floor = bounds.stored_min;
    if stored < floor {
        invalid(&format!("only {stored} of {floor} events stored"));
    }
    Account {
        stored,
        hook_repeats: repeats[0],
        archive_repeats: repeats[1],
    }
}

/// What the file destination holds, in order, with the files that it renamed: full ones, and those that
/// it set aside after a failed write or sync, of which the last line may be torn.
pub fn archived(path: &Path) -> Vec<Arrival> {
    let numbered = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    let renamed = (1..).map(numbered).take_while(|path| path.exists());
    let mut arrivals = Vec::new();
    for file in renamed {
        let text = std::fs::read_to_string(&file).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        arrivals.extend(whole.lines().map(archived_line));
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    arrivals.extend(text.lines().map(archived_line));
    arrivals
}

fn archived_line(line: &str) -> Arrival {
    #[derive(Deserialize)]
    struct Line<'a> {
        id: String,
        #[serde(borrow)]
        data: &'a RawValue,
    }
    let line: Line<'_> = serde_json::from_str(line)
        .unwrap_or_else(|error| panic!("expected one whole event: {error}: {line}"));
    let number = line.id.parse().unwrap();
    Arrival {
        number,
        intact: line.data.get().as_bytes() == Event(number).body(),
        confirmed: true,
        watched: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(number: u64) -> Arrival {
        Arrival {
            number,
            intact: true,
            confirmed: true,
            watched: 0,
        }
    }

    /// Two events of one key, accepted in this order, and one more of another key.
    fn three() -> (u64, u64, u64) {
        let keyed = |number: &u64| Event(*number).key().is_some();
        let first = (1..).find(keyed).unwrap();
        let key = Event(first).key();
        let second = (first + 1..).find(|n| Event(*n).key() == key).unwrap();
        let other = (1..).find(|n| keyed(n) && Event(*n).key() != key).unwrap();
        (first, second, other)
    }

    /// Lost, wrong and repeated, for what was told and what arrived.
    fn judged(told: &[(u64, Told)], arrivals: &[Arrival]) -> (usize, usize, u64) {
        let judgement = judge(&told.iter().copied().collect(), arrivals);
        (
            judgement.lost.len(),
            judgement.wrong.len(),
            judgement.repeats,
        )
    }

    #[test]
    fn a_broken_history_is_recognised_whatever_is_broken() {
        let (first, second, other) = three();
        let told = [
            (first, Told::Stored(10)),
            (second, Told::Stored(11)),
            (other, Told::Stored(12)),
        ];
        let [a, b, c] = [first, second, other].map(arrival);
        let unconfirmed = Arrival {
            confirmed: false,
            ..a
        };
        let altered = Arrival { intact: false, ..a };
        for (arrivals, expected) in [
            (vec![a, b, c], (0, 0, 0)),
            (vec![c, a, b], (0, 0, 0)),
            (vec![a, b], (1, 0, 0)),
            (vec![b, a, c], (0, 1, 0)),
            (vec![a, b, a, c], (0, 0, 1)),
            (vec![a, a, b, c, c], (0, 0, 2)),
            // A repetition after no answer is no repeat; without one the event did not arrive.
            (vec![unconfirmed, a, b, c], (0, 0, 0)),
            (vec![unconfirmed, b, c], (1, 0, 0)),
            (vec![altered, b, c], (0, 1, 0)),
            (vec![a, b, c, arrival(999)], (0, 1, 0)),
        ] {
            assert_eq!(judged(&told, &arrivals), expected, "{arrivals:?}");
        }
        assert_eq!(judged(&[(first, Told::Refused)], &[a]), (0, 1, 0));
        assert_eq!(judged(&[(first, Told::Refused)], &[]), (0, 0, 0));
    }
}
