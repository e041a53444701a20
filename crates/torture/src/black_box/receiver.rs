//! A webhook receiver outside of the system: writes down what arrives, in order, before it answers.

use std::collections::HashSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::client::{header, read_message};
use super::history::{Arrival, Event};
use super::seed::Seed;
use super::server::Server;

/// How the receiver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mood {
    /// Confirms everything.
    Well,
    /// Now and then answers 503, or breaks the connection after it took the event.
    Flaky,
    /// The same, and refuses some events for good.
    Picky,
    /// Answers 503 to everything.
    Away,
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug)]
enum Reaction {
    Confirm,
    Fail,
    AskForTime,
    Refuse,
    Break,
}

/// How long it asks to be left alone, in milliseconds.
const LEFT_ALONE: u64 = 1000;

/// A picky one refuses each event whose number this divides.
const REFUSED: u64 = 29;

/// The receiver; it listens until the process ends.
#[derive(Clone)]
pub struct Receiver {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    mood: AtomicU8,
    begun: Instant,
    /// Counts the runs of the server, where they are followed.
    runs: Mutex<Option<Arc<AtomicU64>>>,
    seed: Seed,
    arrivals: Mutex<Vec<Arrival>>,
    /// Numbers of the events that arrived, however often.
    met: Mutex<HashSet<u64>>,
    /// A file that grows; how much of it an arrival found is noted with it.
    watched: Mutex<Option<PathBuf>>,
}

impl Receiver {
    pub fn start(seed: u64, mood: Mood) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            shared: Arc::new(Shared {
                mood: AtomicU8::new(mood as u8),
                begun: Instant::now(),
                runs: Mutex::default(),
                seed: Seed::new(seed),
                arrivals: Mutex::default(),
                met: Mutex::default(),
                watched: Mutex::default(),
            }),
        };
        let serving = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let receiver = serving.clone();
                std::thread::spawn(move || receiver.serve(stream));
            }
        });
        receiver
    }

    pub fn feel(&self, mood: Mood) {
        self.shared.mood.store(mood as u8, Ordering::Relaxed);
    }

    /// Notes with each arrival how long this file was.
    pub fn watch(&self, file: PathBuf) {
        *self.shared.watched.lock().unwrap() = Some(file);
    }

    /// Asks now and then to be left alone for a second; the server must do so within each of its runs.
    pub fn follow(&self, server: &Server) {
        *self.shared.runs.lock().unwrap() = Some(server.runs());
    }

    pub fn arrivals(&self) -> Vec<Arrival> {
        self.shared.arrivals.lock().unwrap().clone()
    }

    /// How many events arrived at least once.
    pub fn met(&self) -> u64 {
        self.shared.met.lock().unwrap().len() as u64
    }

    /// Serves one connection until it breaks.
    fn serve(&self, mut stream: TcpStream) {
        drop(stream.set_nodelay(true));
        while let Ok((head, body)) = read_message(&mut stream) {
            let number = header(&head, "ce-id")
                .and_then(|id| id.parse().ok())
                .expect("events of these tests have numbers as ids");
            let place = self.note(number, &body);
            let reaction = self.reaction(number);
            self.shared.arrivals.lock().unwrap()[place].is_tried_again = matches!(
                reaction,
                Reaction::Fail | Reaction::AskForTime | Reaction::Break
            );
            let answer: &[u8] = match reaction {
                Reaction::Confirm => {
                    self.shared.arrivals.lock().unwrap()[place].confirmed = true;
                    b"HTTP/1.1 204 No Content\r\n\r\n"
                }
                Reaction::Fail => b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
                Reaction::AskForTime => {
                    let mut arrivals = self.shared.arrivals.lock().unwrap();
                    arrivals[place].not_before = Some(arrivals[place].at + LEFT_ALONE);
                    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
                }
                Reaction::Refuse => {
                    b"HTTP/1.1 422 Unprocessable Content\r\nContent-Length: 0\r\n\r\n"
                }
                // The event was taken, and its sender will never know.
                Reaction::Break => return,
            };
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    }

    fn reaction(&self, number: u64) -> Reaction {
        let mood = self.shared.mood.load(Ordering::Relaxed);
        if mood == Mood::Well as u8 {
            return Reaction::Confirm;
        }
        if mood == Mood::Away as u8 {
            return Reaction::Fail;
        }
        if mood == Mood::Picky as u8 && number.is_multiple_of(REFUSED) {
            return Reaction::Refuse;
        }
        match self.shared.seed.below(256) {
            0..4 => Reaction::Fail,
            4..8 => Reaction::Break,
            8 if self.shared.runs.lock().unwrap().is_some() => Reaction::AskForTime,
            _ => Reaction::Confirm,
        }
    }

    fn note(&self, number: u64, body: &[u8]) -> usize {
        let watched = self.shared.watched.lock().unwrap().clone();
        let runs = self.shared.runs.lock().unwrap().clone();
        let at = self.shared.begun.elapsed().as_millis();
        self.shared.met.lock().unwrap().insert(number);
        let mut arrivals = self.shared.arrivals.lock().unwrap();
        arrivals.push(Arrival {
            number,
            intact: body == Event(number).body(),
            confirmed: false,
            is_tried_again: false,
            watched: watched.map_or(0, |file| std::fs::metadata(file).map_or(0, |it| it.len())),
            run: runs.map_or(0, |runs| runs.load(Ordering::Relaxed)),
            at: u64::try_from(at).unwrap(),
            not_before: None,
        });
        arrivals.len() - 1
    }
}
