//! A receiver of webhooks that answers as the test says and keeps what it was sent.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// A running receiver; it ends with the test.
pub(crate) struct Receiver {
    /// Host and port.
    pub(crate) authority: String,
    /// The status it answers with.
    pub(crate) status: Arc<AtomicU16>,
    /// What it answers with.
    words: Arc<Mutex<Words>>,
    received: Arc<Mutex<Vec<Received>>>,
    held: Arc<AtomicBool>,
}

/// What it answers with.
#[derive(Debug, Default)]
struct Words {
    /// Further lines of the head.
    head: String,
    body: String,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// Names, in lower case, and values of the headers.
    pub(crate) headers: BTreeMap<String, String>,
    /// Body.
    pub(crate) body: Vec<u8>,
    /// When it had come.
    pub(crate) at: Instant,
}

impl Receiver {
    /// Starts on a free port, answering with `status`.
    pub(crate) fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let status = Arc::new(AtomicU16::new(status));
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let held = Arc::<AtomicBool>::default();
        let words = Arc::<Mutex<Words>>::default();
        let (answer, kept, gate) = (
            Arc::clone(&status),
            Arc::clone(&received),
            Arc::clone(&held),
        );
        let said = Arc::clone(&words);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (answer, kept) = (Arc::clone(&answer), Arc::clone(&kept));
                let (gate, said) = (Arc::clone(&gate), Arc::clone(&said));
                std::thread::spawn(move || serve(stream, (&answer, &said), &kept, &gate));
            }
        });
        Self {
            authority,
            status,
            words,
            received,
            held,
        }
    }

    /// Answers with another status from now on.
    pub(crate) fn answer(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// Takes requests and keeps their answers back, until it no longer does.
    pub(crate) fn hold(&self, answers: bool) {
        self.held.store(answers, Ordering::Relaxed);
    }

    /// Answers with this body from now on.
    pub(crate) fn say(&self, words: &str) {
        words.clone_into(&mut self.words.lock().unwrap().body);
    }

    /// Says from now on where what it took can be found.
    pub(crate) fn locate(&self, location: &str) {
        self.words.lock().unwrap().head = format!("location: {location}\r\n");
    }

    /// Says this of its quotas from now on, in lines of the head.
    pub(crate) fn limit(&self, lines: &str) {
        lines.clone_into(&mut self.words.lock().unwrap().head);
    }

    /// What came so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

fn serve(
    stream: TcpStream,
    (answer, said): (&AtomicU16, &Mutex<Words>),
    kept: &Mutex<Vec<Received>>,
    held: &AtomicBool,
) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(received) = read(&mut reader) {
        kept.lock().unwrap().push(received);
        while held.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = answer.load(Ordering::Relaxed);
        let text = {
            let Words { head, body } = &*said.lock().unwrap();
            let body = if status == 204 { "" } else { body };
            let length = body.len();
            format!("HTTP/1.1 {status} Said\r\n{head}content-length: {length}\r\n\r\n{body}")
        };
        if writer.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers
        .get("content-length")
        .map_or(Ok(0), |text| text.parse());
    let mut body = vec![0; length.ok()?];
    reader.read_exact(&mut body).ok()?;
    Some(Received {
        headers,
        body,
        at: Instant::now(),
    })
}
