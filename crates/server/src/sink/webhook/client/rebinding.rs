//! Names that change their mind, or mean several things at once: no connection goes to an address that
//! was not checked for it.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use wayhold_model::{FailureClass, OutcomeKind};

use super::Names;
use crate::clock::SystemClock;
use crate::config::Secret;
use crate::sink::BoxFuture;
use crate::sink::webhook::WebhookSink;
use crate::sink::webhook::auth::config::{
    AuthConfig, ClientAuthentication, Credential, OAuth2Config,
};
use crate::sink::webhook::config::WebhookConfig;
use crate::sink::webhook::hostile::{Receiver, attempt_at, config, read_request};

/// How often a name is resolved: each time may be the one that is not checked.
const ATTEMPTS: usize = 200;

const ALLOWED: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

const LONG: Duration = Duration::from_secs(10);

/// Answers with each of these in turn, over and over.
struct Turns(Mutex<VecDeque<Vec<IpAddr>>>);

impl Turns {
    fn of<const N: usize>(answers: [&[IpAddr]; N]) -> Arc<Self> {
        let answers = answers.map(<[IpAddr]>::to_vec);
        Arc::new(Self(Mutex::new(answers.into())))
    }
}

impl Names for Turns {
    fn look_up(&self, _name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let mut turns = self.0.lock().unwrap();
        turns.rotate_left(1);
        let answer = turns.back().cloned().unwrap_or_default();
        Box::pin(std::future::ready(Ok(answer)))
    }
}

/// A receiver at 127.0.0.1 that closes after each answer, and whoever listens at the same port of
/// 127.0.0.2, which no destination here may reach.
struct Neighbours {
    allowed: Receiver,
    reached_inside: Arc<AtomicUsize>,
}

impl Neighbours {
    async fn start() -> Self {
        Self::answering(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await
    }

    async fn answering(answer: &'static [u8]) -> Self {
        let allowed = Receiver::repeating(answer, b"").await;
        let inside = SocketAddr::new(INSIDE, allowed.address.port());
        let listener = TcpListener::bind(inside).await.unwrap();
        let reached_inside = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reached_inside);
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self {
            allowed,
            reached_inside,
        }
    }

    /// A sink whose URL has a name that `names` resolves, allowed to reach these networks.
    fn sink(&self, networks: &[&str], names: Arc<Turns>) -> WebhookSink {
        let port = self.allowed.address.port();
        let config = WebhookConfig {
            url: format!("http://shop.example:{port}/hook").parse().unwrap(),
            allow_networks: networks.iter().map(|net| net.parse().unwrap()).collect(),
            ..config(port)
        };
        WebhookSink::start_with(&config, 8, Arc::new(SystemClock), names).unwrap()
    }
}

#[tokio::test]
async fn a_name_that_changes_its_mind_never_leads_inside() {
    let neighbours = Neighbours::start().await;
    let names = Turns::of([&[ALLOWED], &[INSIDE]]);
    let sink = neighbours.sink(&["127.0.0.1/32"], names);
    for _ in 0..ATTEMPTS / 2 {
        let outcome = attempt_at(&sink, LONG).await;
        assert_eq!(outcome.kind(), OutcomeKind::Delivered, "{outcome:?}");
        let outcome = attempt_at(&sink, LONG).await;
        assert_eq!(outcome.kind(), OutcomeKind::NotExecuted, "{outcome:?}");
        assert!(outcome.failure().unwrap().reason.contains("127.0.0.2"));
    }
    assert_eq!(neighbours.reached_inside.load(Ordering::SeqCst), 0);
    let connections = neighbours.allowed.connections.load(Ordering::SeqCst);
    assert_eq!(connections, ATTEMPTS / 2);
}

#[tokio::test]
async fn one_address_that_may_not_be_reached_spoils_a_name() {
    let neighbours = Neighbours::start().await;
    let sink_of = |networks, names| neighbours.sink(networks, names);
    let mapped = "::ffff:127.0.0.2".parse().unwrap();
    let metadata = "169.254.169.254".parse().unwrap();
    let any = "0.0.0.0".parse().unwrap();
    for (networks, answer) in [
        (&["127.0.0.1/32"][..], vec![ALLOWED, INSIDE]),
        (&["127.0.0.1/32"], vec![INSIDE, ALLOWED]),
        (&["127.0.0.1/32"], vec![mapped]),
        (&["127.0.0.1/32"], vec![any, ALLOWED]),
        (&["127.0.0.1/32", "169.254.0.0/16"], vec![metadata]),
        (&["0.0.0.0/0"], vec![ALLOWED, metadata]),
    ] {
        let sink = sink_of(networks, Turns::of([&answer]));
        let outcome = attempt_at(&sink, LONG).await;
        assert_eq!(outcome.kind(), OutcomeKind::NotExecuted, "{outcome:?}");
        let failure = outcome.failure().unwrap();
        assert_eq!(failure.class, FailureClass::BlockedAddress, "{answer:?}");
        assert!(failure.reason.contains("allow_networks"), "{failure:?}");
    }
    assert_eq!(neighbours.reached_inside.load(Ordering::SeqCst), 0);
    let connections = neighbours.allowed.connections.load(Ordering::SeqCst);
    assert_eq!(connections, 0);
}

#[tokio::test]
async fn connections_that_are_too_old_are_made_anew_to_what_the_name_means_by_then() {
    let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
    for (age, expected) in [
        (Duration::ZERO, 10..=10),
        (Duration::from_secs(3600), 1..=9),
    ] {
        let receiver = Receiver::start(move |mut connection| async move {
            while read_request(&mut connection).await.is_some() {
                if connection.write_all(answer).await.is_err() {
                    return;
                }
            }
        })
        .await;
        let mut config = config(receiver.address.port());
        config.client.connection_age = age;
        let sink = WebhookSink::start(&config, 8, Arc::new(SystemClock)).unwrap();
        for _ in 0..10 {
            let outcome = attempt_at(&sink, LONG).await;
            assert_eq!(outcome.kind(), OutcomeKind::Delivered, "{outcome:?}");
        }
        let made = receiver.connections.load(Ordering::SeqCst);
        assert!(expected.contains(&made), "{age:?}: {made}");
    }
}

#[tokio::test]
async fn nor_does_the_name_of_an_authorization_server() {
    let receiver =
        Receiver::repeating(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", b"").await;
    // Each token has ended when it comes, so that each attempt asks for one.
    let server = Neighbours::answering(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 57\r\n\r\n\
          {\"access_token\":\"t\",\"token_type\":\"Bearer\",\"expires_in\":0}",
    )
    .await;
    let port = server.allowed.address.port();
    let oauth2 = OAuth2Config {
        token_url: format!("http://tokens.example:{port}/token")
            .parse()
            .unwrap(),
        client_id: "wayhold".to_owned(),
        client_secret: Secret::new("hunter2"),
        scope: None,
        parameters: Vec::new(),
        authentication: ClientAuthentication::Basic,
    };
    let config = WebhookConfig {
        auth: AuthConfig {
            credential: Credential::OAuth2(oauth2),
            identity: None,
        },
        allow_networks: vec!["127.0.0.1/32".parse().unwrap()],
        ..config(receiver.address.port())
    };
    let names = Turns::of([&[ALLOWED], &[INSIDE]]);
    let sink = WebhookSink::start_with(&config, 8, Arc::new(SystemClock), names).unwrap();
    for _ in 0..ATTEMPTS / 2 {
        let outcome = attempt_at(&sink, LONG).await;
        assert_eq!(outcome.kind(), OutcomeKind::Delivered, "{outcome:?}");
        let outcome = attempt_at(&sink, LONG).await;
        assert_eq!(outcome.kind(), OutcomeKind::NotExecuted, "{outcome:?}");
        let failure = outcome.failure().unwrap();
        assert_eq!(failure.class, FailureClass::BlockedAddress, "{failure:?}");
    }
    assert_eq!(server.reached_inside.load(Ordering::SeqCst), 0);
    let asked = server.allowed.connections.load(Ordering::SeqCst);
    assert_eq!(asked, ATTEMPTS / 2);
}
