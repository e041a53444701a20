//! Tests of the webhook sink: the contract against a small receiver, and receivers that misbehave in
//! every way the sink promises to survive.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use wayhold_model::{Outcome, OutcomeKind};

use super::WebhookSink;
use super::auth::config::AuthConfig;
use super::client::config::ClientConfig;
use super::config::{WebhookConfig, WebhookMode};
use crate::clock::SystemClock;
use crate::sink::contract::{
    Lane, Received, Rig, a_dead_destination_gives_not_executed, event, exercise,
};
use crate::sink::{BoxFuture, Sink};

/// Stands for the credential in a webhook's URL.
const TOKEN: &str = "tOkEn-in-the-path";

pub(super) fn config(port: u16) -> WebhookConfig {
    let url = format!("http://127.0.0.1:{port}/{TOKEN}?key={TOKEN}");
    WebhookConfig {
        url: url.parse().unwrap(),
        mode: WebhookMode::Binary,
        headers: HeaderMap::new(),
        signing_keys: Vec::new(),
        client: ClientConfig::default(),
        auth: AuthConfig::default(),
        allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
    }
}

fn sink_of(config: &WebhookConfig) -> WebhookSink {
    WebhookSink::start(config, 128, Arc::new(SystemClock)).unwrap()
}

/// A request as a receiver sees it.
pub(super) struct Request {
    head: Vec<String>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find_map(|line| {
            let (n, value) = line.split_once(": ")?;
            n.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    fn received(&self) -> Received {
        let text = |name: &str| {
            let value = self.header(name).unwrap_or_default();
            percent_decode_str(value)
                .decode_utf8()
                .unwrap()
                .into_owned()
        };
        Received {
            id: text("ce-id"),
            subject: text("ce-subject"),
            note: text("ce-note"),
            data: self.body.clone(),
        }
    }
}

pub(super) async fn read_request(connection: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let mut request = Request {
        head,
        body: Vec::new(),
    };
    let length = request
        .header("content-length")
        .unwrap_or("0")
        .parse()
        .unwrap();
    request.body.resize(length, 0);
    connection.read_exact(&mut request.body).await.ok()?;
    Some(request)
}

/// A receiver on its own port that treats each connection with `treat`, and counts them.
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    pub(super) connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Receiver {
    pub(super) async fn start<F, T>(treat: T) -> Self
    where
        T: Fn(BufReader<TcpStream>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(treat(BufReader::new(stream)));
            }
        });
        Self {
            address,
            connections,
            task,
        }
    }

    /// A receiver that writes these bytes after each request, over and over.
    pub(super) async fn repeating(first: &'static [u8], then: &'static [u8]) -> Self {
        Self::start(move |mut connection| async move {
            if read_request(&mut connection).await.is_none() {
                return;
            }
            let mut wrote = connection.write_all(first).await;
            while wrote.is_ok() && !then.is_empty() {
                wrote = connection.write_all(then).await;
            }
        })
        .await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One attempt at a receiver; its outcome.
pub(super) async fn attempt_at(sink: &WebhookSink, wait: Duration) -> Outcome {
    let mut lane = Lane::new(1);
    lane.attempt_timeout = wait;
    lane.submit(sink, [event("1", None, b"{}")]);
    let (outcome, _) = lane.next().await;
    if let Some(failure) = outcome.failure() {
        assert!(!failure.reason.contains(TOKEN), "{}", failure.reason);
    }
    outcome
}

/// Long enough for an answer on loopback, short enough for a test that waits for it to pass.
const SHORT: Duration = Duration::from_millis(400);

/// Longer than anything takes that should end by itself.
const LONG: Duration = Duration::from_secs(10);

struct WebhookRig {
    sink: WebhookSink,
    received: Arc<Mutex<Vec<Received>>>,
    _receiver: Receiver,
}

impl WebhookRig {
    async fn start() -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&received);
        let receiver = Receiver::start(move |mut connection| {
            let log = Arc::clone(&log);
            async move {
                while let Some(request) = read_request(&mut connection).await {
                    log.lock().unwrap().push(request.received());
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    if connection.write_all(answer).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await;
        Self {
            sink: sink_of(&config(receiver.address.port())),
            received,
            _receiver: receiver,
        }
    }
}

impl Rig for WebhookRig {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn received(&self, _at_least: usize) -> BoxFuture<'_, Option<Vec<Received>>> {
        let received = self.received.lock().unwrap().clone();
        Box::pin(std::future::ready(Some(received)))
    }
}

#[tokio::test]
async fn it_keeps_the_contract_and_its_connections() {
    let rig = WebhookRig::start().await;
    assert!(rig.sink.probe().await.is_ok());
    exercise(&rig).await;
    let connections = rig._receiver.connections.load(Ordering::SeqCst);
    assert!(
        connections <= 300,
        "{connections} connections for more than 10,000 attempts"
    );
}

#[tokio::test]
async fn nobody_listening_is_a_dead_destination() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let sink = sink_of(&config(port));
    assert!(!sink.probe().await.unwrap_err().reason.contains(TOKEN));
    a_dead_destination_gives_not_executed(&sink).await;
}

#[tokio::test]
async fn an_answer_that_never_comes_whole_is_unknown_and_bounded() {
    for (name, first, then) in [
        ("cut after the request", &b""[..], &b""[..]),
        ("cut within the head", b"HTTP/1.1 200 OK\r\nContent-Le", b""),
        (
            "something that is not HTTP",
            b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
            b"",
        ),
        (
            "interim answers for ever",
            b"",
            b"HTTP/1.1 100 Continue\r\n\r\n",
        ),
        (
            "a head without end",
            b"HTTP/1.1 200 OK\r\n",
            b"X-Long: aaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
        ),
        (
            "one header without end",
            b"HTTP/1.1 200 OK\r\nX-Long: ",
            b"aaaaaaaaaaaaaaaaaaaaaaaa",
        ),
        (
            "a length that is no number",
            b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            b"",
        ),
        (
            "two lengths",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            b"",
        ),
    ] {
        let receiver = Receiver::repeating(first, then).await;
        let sink = sink_of(&config(receiver.address.port()));
        let outcome = attempt_at(&sink, SHORT).await;
        assert_eq!(outcome.kind(), OutcomeKind::Unknown, "{name}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_receiver_that_drips_or_keeps_silent_costs_one_timeout() {
    for drips in [true, false] {
        let receiver = Receiver::start(move |mut connection| async move {
            read_request(&mut connection).await;
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
                .iter()
                .cycle()
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
                if drips && connection.write_all(&[*byte]).await.is_err() {
                    return;
                }
            }
        })
        .await;
        let outcome = attempt_at(&sink_of(&config(receiver.address.port())), SHORT).await;
        assert_eq!(outcome.kind(), OutcomeKind::Unknown, "{outcome:?}");
    }
}

#[tokio::test]
async fn a_body_without_end_is_not_read_and_the_status_counts() {
    let head = b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = b"a\r\n0123456789\r\n";
    let receiver = Receiver::repeating(head, chunk).await;
    let sink = sink_of(&config(receiver.address.port()));
    assert_eq!(
        attempt_at(&sink, Duration::from_secs(10)).await,
        Outcome::Delivered
    );
    // The connection was given up, not kept: the next attempt makes its own.
    assert_eq!(
        attempt_at(&sink, Duration::from_secs(10)).await,
        Outcome::Delivered
    );
    assert_eq!(receiver.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_body_that_is_wrong_does_not_change_the_status_and_its_connection_is_given_up() {
    for (name, answer) in [
        (
            "chunks that are none",
            &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nab\r\n"[..],
        ),
        (
            "a chunk of more bytes than there are",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nab",
        ),
        (
            "a body that is cut off",
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab",
        ),
        (
            "HTTP/1.0 that ends with its connection",
            b"HTTP/1.0 200 OK\r\n\r\nab",
        ),
        (
            "compressed data that is none, which nobody unpacks",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\nab",
        ),
    ] {
        let receiver = Receiver::repeating(answer, b"").await;
        let sink = sink_of(&config(receiver.address.port()));
        for connections in 1..=2 {
            let outcome = attempt_at(&sink, LONG).await;
            assert_eq!(outcome, Outcome::Delivered, "{name}");
            let made = receiver.connections.load(Ordering::SeqCst);
            assert_eq!(made, connections, "{name}");
        }
    }
}

#[tokio::test]
async fn a_connection_that_is_reset_after_the_request_leaves_it_unknown() {
    let receiver = Receiver::start(|mut connection| async move {
        read_request(&mut connection).await;
        connection.get_ref().set_zero_linger().unwrap();
    })
    .await;
    let outcome = attempt_at(&sink_of(&config(receiver.address.port())), LONG).await;
    assert_eq!(outcome.kind(), OutcomeKind::Unknown, "{outcome:?}");
    assert_eq!(receiver.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_redirect_to_itself_is_one_request() {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let receiver = Receiver::start(move |mut connection| {
        let count = Arc::clone(&count);
        async move {
            while read_request(&mut connection).await.is_some() {
                count.fetch_add(1, Ordering::SeqCst);
                let answer = b"HTTP/1.1 307 Here\r\nLocation: /\r\nContent-Length: 0\r\n\r\n";
                if connection.write_all(answer).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    let outcome = attempt_at(&sink_of(&config(receiver.address.port())), LONG).await;
    assert_eq!(outcome.kind(), OutcomeKind::Refused, "{outcome:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_head_of_an_answer_has_a_time_of_its_own() {
    let receiver = Receiver::start(|mut connection| async move {
        read_request(&mut connection).await;
        connection.read_u8().await.ok();
    })
    .await;
    let mut config = config(receiver.address.port());
    config.client.header_timeout = Some(Duration::from_millis(50));
    // The attempt itself would wait for an hour.
    let outcome = attempt_at(&sink_of(&config), Duration::from_secs(3600)).await;
    assert_eq!(outcome.kind(), OutcomeKind::Unknown, "{outcome:?}");
    assert!(outcome.failure().unwrap().reason.contains("50ms"));
}

#[tokio::test]
async fn a_body_that_stalls_after_the_status_does_not_change_it() {
    for (status, expected) in [
        ("200 OK", OutcomeKind::Delivered),
        ("404 No", OutcomeKind::Refused),
    ] {
        let receiver = Receiver::start(move |mut connection| async move {
            read_request(&mut connection).await;
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 100\r\n\r\nnot all");
            connection.write_all(answer.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
        })
        .await;
        let outcome = attempt_at(&sink_of(&config(receiver.address.port())), SHORT).await;
        assert_eq!(outcome.kind(), expected);
    }
}

#[tokio::test]
async fn a_redirect_is_refused_and_never_followed() {
    let inside = Receiver::repeating(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"").await;
    for code in [301, 302, 303, 307, 308] {
        let target = inside.address;
        let receiver = Receiver::start(move |mut connection| async move {
            read_request(&mut connection).await;
            let answer = format!(
                "HTTP/1.1 {code} Elsewhere\r\nLocation: http://{target}/\r\nContent-Length: 0\r\n\r\n"
            );
            connection.write_all(answer.as_bytes()).await.unwrap();
        })
        .await;
        let outcome = attempt_at(&sink_of(&config(receiver.address.port())), SHORT).await;
        assert_eq!(outcome.kind(), OutcomeKind::Refused, "{outcome:?}");
    }
    assert_eq!(inside.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_receivers_wish_to_wait_is_passed_on() {
    let answer = b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
    let receiver = Receiver::repeating(answer, b"").await;
    let outcome = attempt_at(&sink_of(&config(receiver.address.port())), SHORT).await;
    assert_eq!(outcome.kind(), OutcomeKind::NotExecuted);
    let failure = outcome.failure().unwrap();
    assert_eq!(
        (failure.status, failure.retry_after),
        (Some(429), Some(Duration::from_secs(7)))
    );
}

#[tokio::test]
async fn nothing_inside_is_reached_by_name_or_by_address_unless_allowed() {
    let receiver = Receiver::repeating(b"HTTP/1.1 200 OK\r\n\r\n", b"").await;
    let port = receiver.address.port();
    for host in ["127.0.0.1", "localhost", "0x7f.1", "[::ffff:127.0.0.1]"] {
        for scheme in ["http", "https"] {
            let mut config = config(port);
            config.url = format!("{scheme}://{host}:{port}/{TOKEN}").parse().unwrap();
            config.allow_networks = vec!["10.0.0.0/8".parse().unwrap()];
            let sink = sink_of(&config);
            let outcome = attempt_at(&sink, Duration::from_secs(10)).await;
            assert_eq!(
                outcome.kind(),
                OutcomeKind::NotExecuted,
                "{host}: {outcome:?}"
            );
            let reason = &outcome.failure().unwrap().reason;
            assert!(reason.contains("allow_networks"), "{host}: {reason}");
            assert!(
                sink.probe()
                    .await
                    .unwrap_err()
                    .reason
                    .contains("allow_networks")
            );
        }
    }
    assert_eq!(receiver.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_failed_tls_handshake_is_not_executed() {
    let receiver = Receiver::start(|mut connection| async move {
        drop(connection.write_all(b"this is not TLS at all\r\n").await);
    })
    .await;
    let mut config = config(receiver.address.port());
    config.url.set_scheme("https").unwrap();
    let outcome = attempt_at(&sink_of(&config), Duration::from_secs(10)).await;
    assert_eq!(outcome.kind(), OutcomeKind::NotExecuted, "{outcome:?}");
}

#[tokio::test]
async fn configured_headers_are_sent_and_no_attribute_can_add_one() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let receiver = Receiver::start(move |mut connection| {
        let log = Arc::clone(&log);
        async move {
            let request = read_request(&mut connection).await.unwrap();
            log.lock().unwrap().extend(request.head);
            drop(
                connection
                    .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                    .await,
            );
        }
    })
    .await;
    let mut config = config(receiver.address.port());
    config
        .headers
        .insert("authorization", HeaderValue::from_static("Bearer abc"));
    assert_eq!(
        attempt_at(&sink_of(&config), SHORT).await,
        Outcome::Delivered
    );
    let mut names: Vec<_> = seen.lock().unwrap().iter().skip(1).cloned().collect();
    names.retain(|line| !line.starts_with("host") && !line.starts_with("user-agent"));
    names.sort();
    assert_eq!(
        names,
        [
            "accept: */*",
            "authorization: Bearer abc",
            "ce-id: 1",
            "ce-source: /contract",
            "ce-specversion: 1.0",
            "ce-type: contract.tested",
            "content-length: 2",
            "content-type: application/json",
            // Of "/contract" and "1".
            "webhook-id: evt_XRTGJAS3NCVSXIBIQHUXDCR5CQOF5OQ6",
        ]
    );
}

#[tokio::test]
async fn stopping_cuts_off_what_does_not_end_in_time() {
    let receiver = Receiver::start(|mut connection| async move {
        read_request(&mut connection).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
    })
    .await;
    let sink = sink_of(&config(receiver.address.port()));
    let mut lane = Lane::new(4);
    lane.attempt_timeout = Duration::from_secs(600);
    lane.submit(&sink, (0..4).map(|n| event(&n.to_string(), None, b"1")));
    sink.stop(Duration::from_millis(100)).await;
    for (outcome, _) in lane.finish_all().await {
        assert_eq!(outcome.kind(), OutcomeKind::Unknown);
    }
}
