//! What accepting an event allocates, counted over the whole process: front, ingest, store and writer.
//! `docs/benchmarks.md` says what each allocation is for; one more is a decision, not an accident.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, and says what it counted"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wayhold::api;
use wayhold::app::{App, Ports};
use wayhold::clock::{SystemClock, SystemEntropy};
use wayhold::config::{self, Environment, ListenAddr, Loaded, Overrides};
use wayhold::http::{Events, Front, Listener, Server};
use wayhold_store::{RunState, Store};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Events sent before counting begins: buffers grow to their size, statements are prepared.
const WARM_UP: usize = 300;

/// Events counted; what the store's threads do beside them several times a second disappears in as many.
const COUNTED: usize = 3_000;

/// Most allocations for one event in a request of its own.
const SINGLE_MAX: f64 = 31.0;

/// Most allocations for one event among a hundred in a stream of lines.
const LINE_MAX: f64 = 7.0;

/// Lines in one stream.
const LINES: usize = 100;

/// Longest wait for an answer; far above what any takes.
const PATIENCE: Duration = Duration::from_secs(60);

const FILE: &str = r#"
[destinations.sink]
kind = "null"

[[routes]]
when = 'type.startsWith("com.example.")'
to = ["sink"]
"#;

#[test]
fn accepting_allocates_what_is_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (server, app, address) = runtime.block_on(start(folder.path()));
    let profiler = dhat::Profiler::builder()
        .testing()
        .trim_backtraces(Some(1))
        .build();
    let mut client = Client::connect(address);

    let single = client.count(COUNTED, WARM_UP, 1);
    let line = client.count(COUNTED, WARM_UP, LINES);
    println!("allocations per event: {single:.1} alone, {line:.1} in lines of {LINES}");
    assert!(single <= SINGLE_MAX, "{single} allocations for an event");
    assert!(line <= LINE_MAX, "{line} allocations for a line");

    drop(profiler);
    runtime.block_on(async {
        server.stop(PATIENCE).await;
        app.stop(PATIENCE).await;
    });
}

/// A server with one destination, which is paused.
async fn start(folder: &Path) -> (Server, Arc<App>, SocketAddr) {
    let file = folder.join("wayhold.toml");
    std::fs::write(&file, FILE).unwrap();
    let overrides = Overrides {
        data: Some(folder.join("data")),
        listen: vec![ListenAddr::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))],
        ..Overrides::default()
    };
    let loaded = config::load(Some(&file), &overrides, &Environment::default()).unwrap();
    let app = tokio::task::spawn_blocking(move || open(loaded));
    let app = app.await.unwrap();
    let events = Events::new(
        app.accept.clone(),
        app.auth.clone(),
        Arc::clone(&app.metrics),
    );
    let front = Front::new(events, api::router::api(&app));
    let mut listeners = Vec::new();
    for address in &app.in_force().config.listen {
        listeners.push(Listener::bind(address).await.unwrap());
    }
    let server = Server::start(listeners, Arc::new(front), app.limits()).unwrap();
    let Some(ListenAddr::Tcp(address)) = server.addresses().first().cloned() else {
        panic!("it listens on a port");
    };
    (server, app, address)
}

fn open(loaded: Loaded) -> Arc<App> {
    let config = &loaded.config;
    let clock: Arc<dyn wayhold_model::Clock> = Arc::new(SystemClock);
    let opened = Store::open(&config.data, config.store.clone(), Arc::clone(&clock)).unwrap();
    let catalog = opened.0.catalog();
    for record in catalog.sync_destinations(&["sink".to_owned()]).unwrap() {
        catalog
            .set_run_state(record.id, RunState::Paused, "test", None)
            .unwrap();
    }
    let ports = Ports {
        clock,
        entropy: Arc::new(SystemEntropy),
    };
    App::start(loaded, opened, ports).unwrap()
}

/// Sends requests and reads answers without allocating: what is counted is the server's.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: u64,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream,
            request: Vec::with_capacity(1 << 20),
            answer: vec![0; 1 << 20],
            sent: 0,
        }
    }

    /// Allocations per event over `events` events, `batch` in a request, after a warm-up.
    fn count(&mut self, events: usize, warm_up: usize, batch: usize) -> f64 {
        for _ in 0..warm_up / batch {
            self.send(batch);
        }
        let before = dhat::HeapStats::get().total_blocks;
        for _ in 0..events / batch {
            self.send(batch);
        }
        let blocks = dhat::HeapStats::get().total_blocks - before;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let per_event = blocks as f64 / events as f64;
        per_event
    }

    fn send(&mut self, batch: usize) {
        self.write_request(batch);
        self.stream.write_all(&self.request).unwrap();
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.answer[filled..]).unwrap();
            assert!(read > 0, "the server closed the connection");
            filled += read;
            // Every answer ends with the list of receipts, and none is larger than the buffer.
            if self.answer[..filled].ends_with(b"]}") {
                break;
            }
        }
        assert!(self.answer.starts_with(b"HTTP/1.1 202"));
    }

    fn write_request(&mut self, batch: usize) {
        let out = &mut self.request;
        out.clear();
        if batch == 1 {
            self.sent += 1;
            write!(
                out,
                "POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 ce-specversion: 1.0\r\nce-id: single-{}\r\nce-source: /allocations\r\n\
                 ce-type: com.example.sent\r\nContent-Length: {}\r\n\r\n{DATA}",
                self.sent,
                DATA.len()
            )
            .unwrap();
            return;
        }
        // Every line is as long as every other, so that the length is known before.
        let length = batch * line_bytes();
        write!(
            out,
            "POST /v1/events HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/x-ndjson\r\nContent-Length: {length}\r\n\r\n"
        )
        .unwrap();
        for _ in 0..batch {
            self.sent += 1;
            writeln!(
                out,
                "{LINE_START}{:010}{LINE_MIDDLE}{DATA}{LINE_END}",
                self.sent
            )
            .unwrap();
        }
    }
}

const DATA: &str =
    r#"{"order":"A-1042","lines":[{"sku":"4711","count":2},{"sku":"4712","count":1}]}"#;
const LINE_START: &str = r#"{"specversion":"1.0","id":"line-"#;
const LINE_MIDDLE: &str = r#"","source":"/allocations","type":"com.example.sent","datacontenttype":"application/json","data":"#;
const LINE_END: &str = "}";

fn line_bytes() -> usize {
    LINE_START.len() + 10 + LINE_MIDDLE.len() + DATA.len() + LINE_END.len() + 1
}
