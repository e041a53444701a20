//! A webhook receiver outside of the system: writes down what arrives, in order, before it answers.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use super::client::{header, read_message};
use super::history::{Arrival, Event};
use super::seed::Seed;

/// How the receiver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mood {
    /// Confirms everything.
    Well,
    /// Now and then answers 503, or breaks the connection after it took the event.
    Flaky,
    /// Answers 503 to everything.
    Away,
}

/// The receiver; it listens until the process ends.
#[derive(Clone)]
pub struct Receiver {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    mood: AtomicU8,
    seed: Seed,
    arrivals: Mutex<Vec<Arrival>>,
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
                seed: Seed::new(seed),
                arrivals: Mutex::default(),
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

    pub fn arrivals(&self) -> Vec<Arrival> {
        self.shared.arrivals.lock().unwrap().clone()
    }

    /// Serves one connection until it breaks.
    fn serve(&self, mut stream: TcpStream) {
        drop(stream.set_nodelay(true));
        while let Ok((head, body)) = read_message(&mut stream) {
            let number = header(&head, "ce-id")
                .and_then(|id| id.parse().ok())
                .expect("events of these tests have numbers as ids");
            let place = self.note(number, &body);
            let mood = self.shared.mood.load(Ordering::Relaxed);
            let trouble = match mood {
                _ if mood == Mood::Away as u8 => 0,
                _ if mood == Mood::Flaky as u8 => self.shared.seed.below(64),
                _ => u64::MAX,
            };
            let answer: &[u8] = match trouble {
                0 => b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
                // The event was taken, and its sender will never know.
                1 => return,
                _ => b"HTTP/1.1 204 No Content\r\n\r\n",
            };
            if trouble > 1 {
                self.shared.arrivals.lock().unwrap()[place].confirmed = true;
            }
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    }

    fn note(&self, number: u64, body: &[u8]) -> usize {
        let watched = self.shared.watched.lock().unwrap().clone();
        let mut arrivals = self.shared.arrivals.lock().unwrap();
        arrivals.push(Arrival {
            number,
            intact: body == Event(number).body(),
            confirmed: false,
            watched: watched.map_or(0, |file| std::fs::metadata(file).map_or(0, |it| it.len())),
        });
        arrivals.len() - 1
    }
}
