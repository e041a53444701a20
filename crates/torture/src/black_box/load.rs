//! Many producers at once, each with one request in flight. After an answer that leaves an event open
//! some send it again and some go on; what is acknowledged is now and then sent once more, and must get
//! the same receipt.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::client::{Answer, Client, Silence};
use super::ending::joined;
use super::history::{Event, History, Told};
use super::receiver::Receiver;
use super::seed::Seed;

/// Requests in flight.
pub const PRODUCERS: usize = 64;

/// How long a producer leaves a server alone that is away or says no.
const AWAY: Duration = Duration::from_millis(5);

/// Between two events of whoever waits for an answer.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Longest pause between two requests of one producer, in milliseconds.
const PAUSE_MAX: u64 = 20;

/// A producer sends seldom while more events than this have not reached the receiver: a run that waits long for
/// something rare must not gather more than can be drained while somebody waits for it, and what happens once
/// everything of some time is delivered must come about.
const BEHIND_MAX: u64 = 1_000;

/// Longest pause then, in milliseconds.
const SELDOM_MAX: u64 = 1_000;

/// Producers at work.
pub struct Load {
    stop: Arc<AtomicBool>,
    producers: Vec<JoinHandle<()>>,
}

/// What producers share.
pub struct Plan {
    pub address: SocketAddr,
    pub seed: Seed,
    pub history: History,
    next: AtomicU64,
    /// Repetitions that were recognised as such.
    pub duplicates: AtomicU64,
    /// Whether producers send again until they are told.
    pub is_patient: bool,
    /// Whom producers do not run ahead of.
    receiver: OnceLock<Receiver>,
}

impl Plan {
    pub fn new(address: SocketAddr, seed: u64) -> Arc<Self> {
        Arc::new(Self::with_patience(address, seed, false))
    }

    /// The same with producers that send again until they are told what became of it.
    pub fn patient(address: SocketAddr, seed: u64) -> Arc<Self> {
        Arc::new(Self::with_patience(address, seed, true))
    }

    fn with_patience(address: SocketAddr, seed: u64, is_patient: bool) -> Self {
        Self {
            address,
            seed: Seed::new(seed),
            history: History::default(),
            next: AtomicU64::new(1),
            duplicates: AtomicU64::new(0),
            is_patient,
            receiver: OnceLock::new(),
        }
    }

    /// From now on producers do not run far ahead of what arrives there.
    pub fn keep_pace_with(&self, receiver: &Receiver) {
        self.receiver.get_or_init(|| receiver.clone());
    }

    /// How many events did not arrive yet; 0 where nobody is kept pace with.
    fn behind(&self) -> u64 {
        let met = self.receiver.get().map(Receiver::met);
        met.map_or(0, |met| {
            self.next.load(Ordering::Relaxed).saturating_sub(met)
        })
    }

    /// The next event that nobody has sent.
    pub fn event(&self) -> Event {
        Event(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends these events as one request, and keeps the history.
    pub fn send(&self, client: &mut Client, events: &[Event]) -> Result<Answer, Silence> {
        for event in events {
            self.history.intend(*event);
        }
        let (headers, body) = match events {
            [event] => single(*event),
            _ => batch(events),
        };
        let answer = client.post("/v1/events", &headers, &body)?;
        let known: Vec<_> = events.iter().map(|it| self.history.told(*it)).collect();
        if self.history.answered(events, &answer) != Told::Unknown && answer.status == 202 {
            self.check_duplicates(&known, &answer);
        }
        Ok(answer)
    }

    /// Sends single events, one after the other, until one is answered like this; `false` where none is in time.
    pub fn await_answer(&self, status: u16, problem: &str, patience: Duration) -> bool {
        let mut client = Client::new(self.address);
        let begun = Instant::now();
        while begun.elapsed() < patience {
            let answer = self.send(&mut client, &[self.event()]);
            if answer.is_ok_and(|it| it.status == status && it.problem() == problem) {
                return true;
            }
            std::thread::sleep(ASK_EVERY);
        }
        false
    }

    /// Sends an event and does not wait for what becomes of it.
    pub fn send_and_leave(&self, event: Event) {
        self.history.intend(event);
        let (headers, body) = single(event);
        Client::new(self.address).post_and_leave("/v1/events", &headers, &body);
    }

    fn check_duplicates(&self, known: &[Told], answer: &Answer) {
        let receipts = answer.json();
        for (index, known) in known.iter().enumerate() {
            let receipt = &receipts["receipts"][index];
            let duplicate = receipt["duplicate"] == true;
            self.duplicates
                .fetch_add(u64::from(duplicate), Ordering::Relaxed);
            if matches!(known, Told::Stored(_)) && !duplicate {
                self.history
                    .contradict(format!("stored twice: {receipt}, {known:?} before"));
            }
        }
    }
}

impl Load {
    pub fn start(plan: &Arc<Plan>, producers: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let producers = (0..producers).map(|_| {
            let (plan, stop) = (Arc::clone(plan), Arc::clone(&stop));
            std::thread::spawn(move || produce(&plan, &stop))
        });
        Self {
            producers: producers.collect(),
            stop,
        }
    }

    /// Ends the producers once they have their answers.
    pub fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for producer in self.producers.drain(..) {
            joined(producer);
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn produce(plan: &Plan, stop: &AtomicBool) {
    let mut client = Client::new(plan.address);
    while !stop.load(Ordering::Relaxed) {
        let count = match plan.seed.below(16) {
            0 => 2 + plan.seed.below(8),
            _ => 1,
        };
        let events: Vec<_> = (0..count).map(|_| plan.event()).collect();
        while !stop.load(Ordering::Relaxed) {
            let again = match plan.send(&mut client, &events) {
                Err(Silence::NotSent) => true,
                Err(Silence::Unknown) => plan.is_patient || !plan.seed.one_in(3),
                Ok(answer) if answer.status == 202 => plan.seed.one_in(16),
                Ok(_) => plan.is_patient || !plan.seed.one_in(3),
            };
            if !again {
                break;
            }
            std::thread::sleep(AWAY);
        }
        let most = match plan.behind() {
            ..=BEHIND_MAX => PAUSE_MAX,
            _ => SELDOM_MAX,
        };
        std::thread::sleep(Duration::from_millis(plan.seed.below(most)));
    }
}

fn single(event: Event) -> (String, Vec<u8>) {
    let mut headers = format!(
        "Content-Type: application/json\r\nce-specversion: 1.0\r\nce-id: {}\r\n\
         ce-source: /faults\r\nce-type: {}\r\n",
        event.0,
        event.kind()
    );
    if let Some(key) = event.key() {
        write!(headers, "ce-partitionkey: k{key}\r\n").unwrap();
    }
    (headers, event.body())
}

fn batch(events: &[Event]) -> (String, Vec<u8>) {
    let events: Vec<_> = events
        .iter()
        .map(|event| {
            let key = event
                .key()
                .map_or_else(String::new, |key| format!(r#""partitionkey":"k{key}","#));
            format!(
                r#"{{"specversion":"1.0","id":"{}","source":"/faults","type":"{}",{key}"datacontenttype":"application/json","data":{}}}"#,
                event.0,
                event.kind(),
                String::from_utf8(event.body()).unwrap(),
            )
        })
        .collect();
    let headers = "Content-Type: application/cloudevents-batch+json\r\n".to_owned();
    (headers, format!("[{}]", events.join(",")).into_bytes())
}
