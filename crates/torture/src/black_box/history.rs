//! What the clients were told and what the destinations received, kept outside of the system, and how a run
//! is brought before the judge (`judge`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::client::{Answer, Client};
use super::ending::{broken, invalid};
use super::judge::{Books, Evidence, Finding, judge};
use super::receiver::Receiver;
use super::server::Server;

/// Ordering keys in use.
const KEYS: u64 = 24;

/// One event in this many goes to the file alone.
const FOR_ARCHIVE_ALONE: u64 = 31;

/// One event in this many has no key.
const KEYLESS: u64 = 8;

/// In every body, so that it is noticed where no body belongs.
pub const BODY_CANARY: &str = "canary-b1e0";

/// An event by its number, from which everything else follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub u64);

impl Event {
    pub fn key(self) -> Option<u64> {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (!mixed.is_multiple_of(KEYLESS)).then_some(mixed / KEYLESS % KEYS)
    }

    /// Whether a route brings it to the webhook.
    pub fn is_for_hook(self) -> bool {
        !self.0.is_multiple_of(FOR_ARCHIVE_ALONE)
    }

    /// Its type, which the routes look at.
    pub fn kind(self) -> &'static str {
        match self.is_for_hook() {
            true => "fault.test",
            false => "fault.archived",
        }
    }

    /// JSON, up to 2 KiB, that differs from every other event's.
    pub fn body(self) -> Vec<u8> {
        let number = self.0;
        let length = usize::try_from(number.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 53).unwrap();
        let pad = char::from(b'a' + u8::try_from(number % 26).unwrap());
        let pad = pad.to_string().repeat(length);
        format!("{{ \"number\": {number}, \"{BODY_CANARY}\":\"{pad}\"}}").into_bytes()
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
#[expect(
    clippy::struct_excessive_bools,
    reason = "three independent facts of one arrival"
)]
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub number: u64,
    pub intact: bool,
    /// The destination said yes to it, so there is no reason to send it again.
    pub confirmed: bool,
    /// The destination failed in a way after which it is tried again, and blocks its key until then.
    pub is_tried_again: bool,
    /// Bytes of the watched file when it arrived.
    pub watched: u64,
    /// Which run of the server sent it.
    pub run: u64,
    /// When it arrived, in milliseconds of the destination's clock.
    pub at: u64,
    /// Until when the destination asked not to be sent it again.
    pub not_before: Option<u64>,
}

/// Everything that clients were told.
#[derive(Default)]
pub struct History {
    told: Mutex<BTreeMap<u64, Told>>,
    contradictions: Mutex<Vec<String>>,
    /// Events that were sent again after an attempt that left it open whether they are stored.
    left_open: Mutex<BTreeSet<u64>>,
    /// Events whose discard was asked for, and whether that was confirmed.
    discards: Mutex<BTreeMap<u64, bool>>,
}

impl History {
    /// Written before the request is sent.
    pub fn intend(&self, event: Event) {
        let mut told = self.told.lock().unwrap();
        match told.get(&event.0) {
            // Sent again, an event that was acknowledged stays so.
            Some(Told::Stored(_)) => {}
            Some(Told::Unknown) => {
                self.left_open.lock().unwrap().insert(event.0);
            }
            Some(Told::Refused) | None => {
                told.insert(event.0, Told::Unknown);
            }
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
                202 => broken(&format!("{event:?} has no receipt: {answer:?}")),
                // A write that failed may be found whole after a power cut: sending again decides.
                503 if answer.problem() == "unavailable" => Told::Unknown,
                429 | 503 => Told::Refused,
                _ => broken(&format!("{event:?}: unexpected answer {answer:?}")),
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
            // Nor of an attempt before it that was left open.
            (_, Told::Refused) if self.left_open.lock().unwrap().contains(&event.0) => {}
            _ => {
                told.insert(event.0, now);
            }
        }
    }

    /// Written before its discard is asked for, and again once that is confirmed.
    pub fn discard(&self, event: Event, confirmed: bool) {
        *self.discards.lock().unwrap().entry(event.0).or_default() |= confirmed;
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
                let answer = client.get(&target).unwrap_or_else(|silence| {
                    server.fail(&format!(
                        "does not say where event {number} is: {silence:?}"
                    ))
                });
                *told = match answer.status {
                    200 => Told::Stored(sequence(&answer.json()["position"])),
                    404 => Told::Refused,
                    _ => server.fail(&format!("answers {target} with {answer:?}")),
                };
            }
        }
    }
}

/// A place in the order of acceptance within a key, which lies in one shard of a generation.
pub fn place(generation: u64, shard: u64, sequence: u64) -> u64 {
    generation << 56 | shard << 44 | sequence
}

/// The place that a position as answered names.
fn sequence(position: &Value) -> u64 {
    let parse = |text: &str| {
        let (generation, rest) = text.strip_prefix('g')?.split_once(".s")?;
        let (shard, sequence) = rest.split_once('.')?;
        let [generation, shard, sequence] =
            [generation, shard, sequence].map(|part| part.parse::<u64>().ok());
        Some(place(generation?, shard?, sequence?))
    };
    let found = position.as_str().and_then(parse);
    found.unwrap_or_else(|| broken(&format!("expected a position: {position}")))
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
    let discards = history.discards.lock().unwrap();
    let contradictions = history.contradictions.lock().unwrap();
    let asked = discards.keys().copied().collect();
    let confirmed = discards.iter().filter(|(_, confirmed)| **confirmed);
    let confirmed = confirmed.map(|(number, _)| *number).collect();
    let at_hook = receiver.arrivals();
    let at_archive = archived(&server.archive());
    let evidence = |name: &str| Evidence {
        told: told.clone(),
        contradictions: &contradictions,
        dead: server.dead_letters(name).into_values().collect(),
        books: books(&status, name),
        ..Evidence::default()
    };
    let hook = Evidence {
        arrivals: &at_hook,
        routed: Some(Event::is_for_hook),
        discards_asked: asked,
        discards_confirmed: confirmed,
        repeats_max: HOOK_REPEATS_MAX * bounds.unclean_stops,
        ..evidence("hook")
    };
    let archive = Evidence {
        arrivals: &at_archive,
        repeats_max: ARCHIVE_REPEATS_MAX * bounds.unclean_stops,
        ..evidence("archive")
    };
    let mut report = String::new();
    let repeats = [("hook", hook), ("archive", archive)].map(|(name, evidence)| {
        let judgement = judge(&evidence);
        for Finding { rule, what } in &judgement.findings {
            writeln!(report, "{name}: {rule:?}: {what}").unwrap();
        }
        judgement.repeats
    });
    for what in server.faults() {
        writeln!(report, "{what}").unwrap();
    }
    if !report.is_empty() {
        server.fail(&format!(
            "broke a promise, {} events:\n{report}",
            told.len()
        ));
    }
    let is_stored = |told: &&Told| matches!(told, Told::Stored(_));
    let stored = told.values().filter(is_stored).count();
    let floor = bounds.stored_min;
    if stored < floor {
        invalid(&format!("only {stored} of {floor} events stored"));
    }
    let [hook_repeats, archive_repeats] = repeats;
    Account {
        stored,
        hook_repeats,
        archive_repeats,
    }
}

/// What the server counts of a destination.
fn books(status: &Value, name: &str) -> Books {
    let destinations = status["destinations"].as_array().unwrap();
    let found = destinations.iter().find(|one| one["name"] == name).unwrap();
    let count = |what: &str| found["accounting"][what].as_u64().unwrap();
    Books {
        accepted: count("accepted"),
        delivered: count("delivered"),
        pending: count("pending"),
        dead: count("dead_lettered"),
        expired: count("expired"),
        discarded: count("discarded"),
    }
}

/// What the file destination holds, in order, with the files that it renamed: full ones, and those that
/// it set aside after a failed write or sync, of which lines that nobody confirmed may be torn or gone.
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
        arrivals.extend(whole.lines().filter_map(readable).map(archived_line));
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    arrivals.extend(text.lines().filter_map(readable).map(archived_line));
    arrivals
}

/// What can be read of a line. Blocks that could not be written, and were never confirmed, are found as zeros; what
/// follows them is the line, or the rest of one that is gone.
fn readable(line: &str) -> Option<&str> {
    match line.rsplit_once('\0') {
        Some((_, rest)) => rest.starts_with("{\"specversion\"").then_some(rest),
        None => Some(line),
    }
}

fn archived_line(line: &str) -> Arrival {
    #[derive(Deserialize)]
    struct Line<'a> {
        id: String,
        #[serde(borrow)]
        data: &'a RawValue,
    }
    let line: Line<'_> = serde_json::from_str(line)
        .unwrap_or_else(|error| broken(&format!("expected one whole event: {error}: {line}")));
    let number = line.id.parse().unwrap();
    Arrival {
        number,
        intact: line.data.get().as_bytes() == Event(number).body(),
        confirmed: true,
        is_tried_again: false,
        watched: 0,
        run: 0,
        at: 0,
        not_before: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_of_lost_blocks_hide_no_line_behind_them() {
        let whole = r#"{"specversion":"1.0"}"#;
        assert_eq!(readable(whole), Some(whole));
        for lost in ["\0", "{\"specver\0\0"] {
            assert_eq!(readable(&format!("{lost}{whole}")), Some(whole));
            assert_eq!(readable(&format!("{lost}rest\"}}")), None);
        }
    }

    #[test]
    fn a_refusal_settles_its_own_attempt_and_none_that_was_left_open_before() {
        let history = History::default();
        let event = Event(1);
        let attempt = |answer| {
            history.intend(event);
            history.learn(event, answer);
            history.told(event)
        };
        assert_eq!(attempt(Told::Refused), Told::Refused);
        assert_eq!(attempt(Told::Unknown), Told::Unknown);
        assert_eq!(attempt(Told::Refused), Told::Unknown);
        assert_eq!(attempt(Told::Stored(7)), Told::Stored(7));
        assert_eq!(attempt(Told::Refused), Told::Stored(7));
    }
}
