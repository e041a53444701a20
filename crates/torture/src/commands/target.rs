//! A business system outside of the server: it counts what it executes, by key. `/keyed` knows a key again; `/asked`
//! executes whatever comes, and says under `/asked/ID` what it has.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::black_box::client::{header, read_message};
use crate::black_box::seed::Seed;

/// How long it keeps an answer back that the sender has given up by then.
const DAWDLES: Duration = Duration::from_millis(900);

/// When it asks for time: so long after the first request, for so long. A minute, scaled down.
const ASKS_FOR_TIME: (Duration, Duration) =
    (Duration::from_millis(1500), Duration::from_millis(1000));

/// The target; it listens until the process ends.
pub(super) struct Target {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    seed: Seed,
    begun: Instant,
    well: AtomicBool,
    failed: AtomicU64,
    dawdled: AtomicU64,
    asked_for_time: AtomicU64,
    /// How often each key was executed.
    executed: Mutex<BTreeMap<String, u64>>,
}

/// What becomes of one request.
enum Reaction {
    Execute,
    /// Nothing is executed.
    Fail,
    /// It is executed, and the answer comes too late.
    Dawdle,
    AskForTime,
}

impl Target {
    pub(super) fn start(seed: u64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            seed: Seed::new(seed ^ 0x7a26e7),
            begun: Instant::now(),
            well: AtomicBool::new(false),
            failed: AtomicU64::new(0),
            dawdled: AtomicU64::new(0),
            asked_for_time: AtomicU64::new(0),
            executed: Mutex::default(),
        });
        let served = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = Arc::clone(&served);
                std::thread::spawn(move || served.serve(stream));
            }
        });
        Self { address, shared }
    }

    /// From now on it executes what comes, but for a few.
    pub(super) fn recover(&self) {
        self.shared.well.store(true, Ordering::Relaxed);
    }

    /// How often each key was executed.
    pub(super) fn executed(&self) -> BTreeMap<String, u64> {
        self.shared.executed.lock().unwrap().clone()
    }

    /// Whether it spared the server what it was to go through.
    pub(super) fn is_too_kind(&self) -> bool {
        let shared = &self.shared;
        [&shared.failed, &shared.dawdled, &shared.asked_for_time]
            .iter()
            .any(|count| count.load(Ordering::Relaxed) == 0)
    }

    /// What it did beside executing.
    pub(super) fn account(&self) -> String {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let shared = &self.shared;
        format!(
            "{} failed, {} executed and not answered in time, {} asked to come later",
            count(&shared.failed),
            count(&shared.dawdled),
            count(&shared.asked_for_time)
        )
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) {
        while let Ok((head, _)) = read_message(&mut stream) {
            let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let key = header(&head, "idempotency-key")
                .unwrap_or_default()
                .to_owned();
            let answer = match target.strip_prefix("/asked/") {
                Some(id) => self.tell(id),
                None => self.take(&key, target.starts_with("/keyed")),
            };
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// Whether it has something.
    fn tell(&self, id: &str) -> String {
        match self.executed.lock().unwrap().contains_key(id) {
            true => answer("200 OK", "", &format!("{{\"id\":\"{id}\"}}")),
            false => answer("404 Not Found", "", ""),
        }
    }

    fn take(&self, key: &str, knows_keys: bool) -> String {
        let reaction = self.reaction();
        let executes = matches!(reaction, Reaction::Execute | Reaction::Dawdle);
        if executes {
            let mut executed = self.executed.lock().unwrap();
            let times = executed.entry(key.to_owned()).or_default();
            // One that knows keys does nothing the second time.
            *times = if knows_keys { 1 } else { *times + 1 };
        }
        match reaction {
            Reaction::Execute => answer("201 Created", "", &format!("{{\"id\":\"{key}\"}}")),
            Reaction::Fail => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                answer("500 Failed", "", "")
            }
            Reaction::Dawdle => {
                self.dawdled.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(DAWDLES);
                answer("201 Created", "", "{}")
            }
            Reaction::AskForTime => {
                self.asked_for_time.fetch_add(1, Ordering::Relaxed);
                answer("429 Later", "Retry-After: 1\r\n", "")
            }
        }
    }

    fn reaction(&self) -> Reaction {
        let (from, lasting) = ASKS_FOR_TIME;
        let since = self.begun.elapsed();
        // Not the time since its start alone: the first requests may come late on a busy machine.
        let asks = self.asked_for_time.load(Ordering::Relaxed);
        let is_time = since > from && (since < from + lasting || asks == 0);
        match self.seed.below(100) {
            _ if is_time && !self.well.load(Ordering::Relaxed) => Reaction::AskForTime,
            0..=19 => Reaction::Fail,
            20..=24 => Reaction::Dawdle,
            _ => Reaction::Execute,
        }
    }
}

fn answer(status: &str, head: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{head}Content-Length: {length}\r\n\r\n{body}")
}
