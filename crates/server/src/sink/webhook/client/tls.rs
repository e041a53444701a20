//! Deliveries over TLS, to receivers whose certificates come from an authority of their own
//! (`certificates/make.py`).

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use wayhold_model::{FailureClass, Outcome, OutcomeKind};

use crate::clock::SystemClock;
use crate::config::Secret;
use crate::sink::webhook::WebhookSink;
use crate::sink::webhook::hostile::{attempt_at, config};

const LONG: Duration = Duration::from_secs(10);

/// The authority that signed the receivers' certificates, and one that did not.
const AUTHORITY: &str = include_str!("certificates/authority.pem");
const OTHER: &str = include_str!("certificates/other.pem");

/// Certificates and keys of receivers: a good one at 127.0.0.1, one by another name, and one that ended.
const GOOD: [&str; 2] = [
    include_str!("certificates/good.pem"),
    include_str!("certificates/good.key"),
];
const WRONG_NAME: [&str; 2] = [
    include_str!("certificates/wrong-name.pem"),
    include_str!("certificates/wrong-name.key"),
];
const EXPIRED: [&str; 2] = [
    include_str!("certificates/expired.pem"),
    include_str!("certificates/expired.key"),
];

/// Answers requests over TLS, and counts them.
struct Receiver {
    port: u16,
    requests: Arc<AtomicUsize>,
}

impl Receiver {
    /// A receiver with this certificate that offers these protocols.
    async fn start(certificate: [&str; 2], protocols: &[&[u8]]) -> Self {
        Self::start_asking(None, certificate, protocols).await
    }

    /// The same, which wants to see a certificate of that authority.
    async fn start_asking(
        clients: Option<&str>,
        [certificate, key]: [&str; 2],
        protocols: &[&[u8]],
    ) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let verifier = clients.map(|authority| {
            let mut roots = RootCertStore::empty();
            roots.add(der(authority)).unwrap();
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .unwrap()
        });
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(
                verifier.unwrap_or_else(WebPkiClientVerifier::no_client_auth),
            )
            .with_single_cert(vec![der(certificate)], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let count = Arc::clone(&count);
                match stream.get_ref().1.alpn_protocol() {
                    Some(b"h2") => tokio::spawn(answer_http2(stream, count)),
                    _ => tokio::spawn(answer_one(stream, count)),
                };
            }
        });
        Self { port, requests }
    }

    /// What becomes of an attempt by a destination that trusts this authority.
    async fn attempt(&self, trusted: Option<&str>) -> Outcome {
        self.attempt_as(None, trusted).await
    }

    /// The same of one that shows this certificate.
    async fn attempt_as(&self, identity: Option<[&str; 2]>, trusted: Option<&str>) -> Outcome {
        let mut config = config(self.port);
        config.auth.identity = identity.map(|pem| Secret::new(&pem.concat()));
        config.url.set_scheme("https").unwrap();
        config.client.ca = trusted
            .iter()
            .map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
            .collect();
        let sink = WebhookSink::start(&config, 8, Arc::new(SystemClock)).unwrap();
        attempt_at(&sink, LONG).await
    }
}

/// Answers one request of HTTP/1.1.
async fn answer_one(mut stream: TlsStream<TcpStream>, count: Arc<AtomicUsize>) {
    // A small request comes in one piece.
    if stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {
        count.fetch_add(1, Ordering::SeqCst);
        let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        stream.shutdown().await.ok();
    }
}

/// Answers every request of a connection of HTTP/2.
async fn answer_http2(stream: TlsStream<TcpStream>, count: Arc<AtomicUsize>) {
    let answer = service_fn(move |request: hyper::Request<Incoming>| {
        assert_eq!(request.version(), Version::HTTP_2);
        count.fetch_add(1, Ordering::SeqCst);
        let mut answer = hyper::Response::new(String::new());
        *answer.status_mut() = StatusCode::NO_CONTENT;
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let serving = http2::Builder::new(TokioExecutor::new());
    serving
        .serve_connection(TokioIo::new(stream), answer)
        .await
        .ok();
}

#[tokio::test]
async fn a_receiver_is_spoken_to_in_http_2_where_it_offers_it() {
    for protocols in [&[&b"h2"[..], b"http/1.1"][..], &[b"http/1.1"], &[]] {
        let receiver = Receiver::start(GOOD, protocols).await;
        assert_eq!(receiver.attempt(Some(AUTHORITY)).await, Outcome::Delivered);
        assert_eq!(receiver.requests.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn no_event_is_sent_to_a_receiver_whose_certificate_does_not_hold() {
    for (name, certificate, trusted) in [
        ("an authority that this machine does not know", GOOD, None),
        (
            "an authority that is not the configured one",
            GOOD,
            Some(OTHER),
        ),
        ("another name", WRONG_NAME, Some(AUTHORITY)),
        ("a certificate that ended", EXPIRED, Some(AUTHORITY)),
    ] {
        let receiver = Receiver::start(certificate, &[]).await;
        let outcome = receiver.attempt(trusted).await;
        assert_eq!(
            outcome.kind(),
            OutcomeKind::NotExecuted,
            "{name}: {outcome:?}"
        );
        let class = outcome.failure().unwrap().class;
        assert_eq!(class, FailureClass::Certificate, "{name}: {outcome:?}");
        assert_eq!(receiver.requests.load(Ordering::SeqCst), 0, "{name}");
    }
}

#[tokio::test]
async fn a_receiver_that_asks_for_a_certificate_is_shown_it_and_takes_nothing_without() {
    for (name, identity, takes) in [
        ("its authority's", Some(GOOD), true),
        ("one that ended", Some(EXPIRED), false),
        ("none", None, false),
    ] {
        for protocols in [&[&b"h2"[..]][..], &[]] {
            let receiver = Receiver::start_asking(Some(AUTHORITY), GOOD, protocols).await;
            let outcome = receiver.attempt_as(identity, Some(AUTHORITY)).await;
            let delivered = outcome == Outcome::Delivered;
            assert_eq!(delivered, takes, "{name}: {outcome:?}");
            let requests = receiver.requests.load(Ordering::SeqCst);
            assert_eq!(requests, usize::from(takes), "{name}");
        }
    }
}
