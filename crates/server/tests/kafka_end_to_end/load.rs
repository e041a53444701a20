//! Producers at a steady rate, each on a connection of its own, that keep a history outside of the
//! server: what they asked for and what became of it. A key belongs to one producer, which sends its
//! events one after the other and repeats each until it is acknowledged, save for a few whose answer was
//! cut off: those it leaves open, as a producer does that crashes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::support::{PATIENCE, wait_until};

/// Producers, and so most requests under way.
const PRODUCERS: u32 = 16;

/// Keys of each producer: few enough that every key has events under way in every outage.
const KEYS: u32 = 20;

/// One in so many events whose answer was cut off is not sent again.
const LEFT_OPEN: u64 = 4;

/// Wait before an event is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// An event: the n-th of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    /// Its ordering key.
    pub(crate) key: u32,
    /// Its number within the key, from 1.
    pub(crate) number: u32,
}

impl Event {
    /// The event of this id.
    pub(crate) fn from_id(id: &str) -> Option<Self> {
        let (key, number) = id.strip_prefix('k')?.split_once('-')?;
        Some(Self {
            key: key.parse().ok()?,
            number: number.parse().ok()?,
        })
    }

    fn id(self) -> String {
        format!("k{}-{}", self.key, self.number)
    }

    /// Its data.
    pub(crate) fn data(self) -> String {
        let Self { key, number } = self;
        let filler = format!("{:032x}", u64::from(key) << 32 | u64::from(number)).repeat(8);
        format!(r#"{{"key":{key}, "number":{number}, "filler":"{filler}"}}"#)
    }
}

/// What a producer asked for and what became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intent {
    /// The event.
    pub(crate) event: Event,
    /// When it was acknowledged, from the beginning of the load; `None`: nobody knows whether it is
    /// stored.
    pub(crate) acknowledged: Option<Duration>,
}

/// A load under way.
pub(crate) struct Load {
    begun: Instant,
    shared: Arc<Shared>,
    producers: Vec<JoinHandle<Vec<Intent>>>,
}

struct Shared {
    authority: String,
    stopping: AtomicBool,
    under_way: AtomicUsize,
    sent_again: AtomicUsize,
}

impl Load {
    /// Begins to send so many events a second.
    pub(crate) fn start(authority: &str, per_second: u32, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            authority: authority.to_owned(),
            stopping: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            sent_again: AtomicUsize::new(0),
        });
        let begun = Instant::now();
        let gap = Duration::from_secs(1) * PRODUCERS / per_second;
        let start = |place: u32| {
            let producer = Producer {
                first_key: place * KEYS,
                begun,
                random: Random(seed ^ u64::from(place + 1)),
                shared: Arc::clone(&shared),
                connection: None,
            };
            let first = begun + gap * place / PRODUCERS;
            std::thread::spawn(move || producer.run(first, gap))
        };
        Self {
            begun,
            producers: (0..PRODUCERS).map(start).collect(),
            shared,
        }
    }

    /// When it began.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// Waits until a request is under way.
    pub(crate) fn wait_for_request(&self) {
        wait_until("a request is under way", || {
            self.shared.under_way.load(Ordering::Relaxed) > 0
        });
    }

    /// How often an event was sent again.
    pub(crate) fn sent_again(&self) -> usize {
        self.shared.sent_again.load(Ordering::Relaxed)
    }

    /// Ends it; the history.
    pub(crate) fn stop(self) -> Vec<Intent> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let ended = self.producers.into_iter().map(|one| one.join().unwrap());
        ended.flatten().collect()
    }
}

struct Producer {
    first_key: u32,
    begun: Instant,
    random: Random,
    shared: Arc<Shared>,
    connection: Option<BufReader<TcpStream>>,
}

impl Producer {
    fn run(mut self, first: Instant, gap: Duration) -> Vec<Intent> {
        let mut history = Vec::new();
        let mut numbers = [0; KEYS as usize];
        let mut due = first;
        while !self.shared.stopping.load(Ordering::Relaxed) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due += gap;
            let place = usize::try_from(self.random.next() % u64::from(KEYS)).unwrap();
            numbers[place] += 1;
            let event = Event {
                key: self.first_key + u32::try_from(place).unwrap(),
                number: numbers[place],
            };
            let acknowledged = self.send(event).then(|| self.begun.elapsed());
            history.push(Intent {
                event,
                acknowledged,
            });
        }
        history
    }

    /// Sends an event until it is acknowledged; `false` when it is left open.
    fn send(&mut self, event: Event) -> bool {
        let given_up = Instant::now() + PATIENCE;
        loop {
            match self.post(event) {
                Post::Answered(202) => return true,
                Post::Answered(429 | 503) | Post::NotSent => {}
                Post::Answered(status) => panic!("{event:?} was refused: {status}"),
                Post::CutOff if self.random.next().is_multiple_of(LEFT_OPEN) => return false,
                Post::CutOff => {}
            }
            assert!(Instant::now() < given_up, "{event:?} cannot be sent");
            self.shared.sent_again.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(AGAIN_AFTER);
        }
    }

    fn post(&mut self, event: Event) -> Post {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => match TcpStream::connect(&self.shared.authority) {
                Ok(stream) => BufReader::new(stream),
                Err(_) => return Post::NotSent,
            },
        };
        self.shared.under_way.fetch_add(1, Ordering::Relaxed);
        let answered = exchange(&mut connection, &self.request(event));
        self.shared.under_way.fetch_sub(1, Ordering::Relaxed);
        match answered {
            Ok(status) => {
                self.connection = Some(connection);
                Post::Answered(status)
            }
            Err(_) => Post::CutOff,
        }
    }

    fn request(&self, event: Event) -> String {
        let data = event.data();
        format!(
            "POST /v1/events HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             ce-specversion: 1.0\r\nce-id: {}\r\nce-source: /outage\r\nce-type: com.example.load\r\n\
             ce-partitionkey: k{}\r\ncontent-length: {}\r\n\r\n{data}",
            self.shared.authority,
            event.id(),
            event.key,
            data.len()
        )
    }
}

/// What came of one request.
enum Post {
    Answered(u16),
    /// Nobody listened.
    NotSent,
    /// No whole answer came: it may be stored or not.
    CutOff,
}

fn exchange(connection: &mut BufReader<TcpStream>, request: &str) -> std::io::Result<u16> {
    let stream = connection.get_mut();
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    stream.write_all(request.as_bytes())?;
    let cut_off = || std::io::Error::other("the answer was cut off");
    let (mut status, mut length, mut line) = (None, 0, String::new());
    loop {
        line.clear();
        if connection.read_line(&mut line)? == 0 {
            return Err(cut_off());
        }
        let text = line.trim_end().to_ascii_lowercase();
        if text.is_empty() {
            break;
        }
        if status.is_none() {
            status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        } else if let Some(value) = text.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(|_| cut_off())?;
        }
    }
    connection.read_exact(&mut vec![0; length])?;
    status.ok_or_else(cut_off)
}

/// Random numbers that a seed repeats (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The next one.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
