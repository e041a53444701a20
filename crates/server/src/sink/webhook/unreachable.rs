//! Which class each way of not getting through has, against real sockets: whoever is woken must be told what to
//! mend.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use wayhold_model::{Clock, FailureClass, OutcomeKind};

use crate::clock::SystemClock;
use crate::config::{Environment, Overrides, SinkConfig, load};
use crate::sink::contract::{Lane, event};
use crate::sink::{Sink, build};

/// The webhook sink of this URL, which reaches loopback if `allowed`. Without that the configuration already
/// refuses these URLs, so it is taken away from what was read: then only the sink stands in the way.
fn sink_of(url: &str, allowed: bool) -> Arc<dyn Sink> {
    let text = format!(
        "[destinations.d]\nkind = \"webhook\"\nurl = \"{url}\"\n\
         allow_networks = [\"127.0.0.0/8\", \"::1/128\"]\n[[routes]]\nto = [\"d\"]\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wayhold.toml");
    std::fs::write(&path, text).unwrap();
    let loaded = load(Some(&path), &Overrides::default(), &Environment::default()).unwrap();
    let mut destination = loaded.config.destination("d").unwrap().clone();
    let SinkConfig::Webhook(webhook) = &mut destination.sink else {
        unreachable!("the kind is written above");
    };
    if !allowed {
        webhook.allow_networks.clear();
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    build(&destination, &clock).unwrap()
}

#[tokio::test]
async fn whoever_does_not_get_through_says_what_is_in_the_way() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = closed.local_addr().unwrap();
    drop(closed);
    // Speaks to every connection at once, and no TLS.
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let no_tls = plain.local_addr().unwrap();
    let speaking = tokio::spawn(async move {
        while let Ok((mut stream, _)) = plain.accept().await {
            stream
                .write_all(b"HTTP/1.1 400 No TLS here\r\n\r\n")
                .await
                .ok();
        }
    });
    let local = nobody.port();
    for (url, allowed, class) in [
        (format!("http://{nobody}/"), true, FailureClass::Connect),
        (format!("https://{no_tls}/"), true, FailureClass::Tls),
        (
            format!("http://{nobody}/"),
            false,
            FailureClass::BlockedAddress,
        ),
        // By a name, which is checked where it is resolved.
        (
            format!("https://localhost:{local}/"),
            false,
            FailureClass::BlockedAddress,
        ),
    ] {
        let sink = sink_of(&url, allowed);
        let mut lane = Lane::new(1);
        lane.submit(&*sink, [event("1", None, b"{}")]);
        let (outcome, _) = lane.next().await;
        assert_eq!(
            outcome.kind(),
            OutcomeKind::NotExecuted,
            "{url}: {outcome:?}"
        );
        assert_eq!(
            outcome.failure().unwrap().class,
            class,
            "{url}: {outcome:?}"
        );
        sink.stop(Duration::from_secs(1)).await;
    }
    speaking.abort();
}
