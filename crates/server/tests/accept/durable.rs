//! The way in over the real store: identity across requests and restarts, batches, look-ups.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use wayhold::api::router;
use wayhold::app::{App, Ports};
use wayhold::clock::{SystemClock, SystemEntropy};
use wayhold::config::{self, Environment, Overrides};
use wayhold::http::{Events, Front, Listener, Server};
use wayhold_store::Store;

use crate::support::{Answer, send};

const GRACE: Duration = Duration::from_secs(5);

/// A whole server but for its process: store, one destination that takes everything, front.
struct Whole {
    app: Arc<App>,
    server: Server,
    address: String,
}

impl Whole {
    async fn start(folder: &Path) -> Self {
        let file = folder.join("wayhold.toml");
        let text = "[destinations.sink]\nkind = \"null\"\n\n[[routes]]\nto = [\"sink\"]\n";
        std::fs::write(&file, text).unwrap();
        let overrides = Overrides {
            data: Some(folder.join("data")),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            ..Overrides::default()
        };
        let loaded = config::load(Some(&file), &overrides, &Environment::default()).unwrap();
        let clock = Arc::new(SystemClock);
        let app = tokio::task::spawn_blocking(move || {
            let config = &loaded.config;
            std::fs::create_dir_all(&config.data).unwrap();
            let opened = Store::open(&config.data, config.store.clone(), clock.clone()).unwrap();
            let ports = Ports {
                clock,
                entropy: Arc::new(SystemEntropy),
            };
            App::start(loaded, opened, ports).unwrap()
        });
        let app = app.await.unwrap();
        let events = Events::new(
            app.accept.clone(),
            app.auth.clone(),
            Arc::clone(&app.metrics),
        );
        let front = Arc::new(Front::new(events, router::api(&app)));
        let listen = app.in_force().config.listen[0].clone();
        let listener = Listener::bind(&listen).await.unwrap();
        let server = Server::start(vec![listener], front, app.limits()).unwrap();
        let address = server.addresses()[0].to_string();
        Self {
            app,
            server,
            address,
        }
    }

    async fn stop(self) {
        self.server.stop(GRACE).await;
        self.app.stop(GRACE).await;
    }

    async fn post(&self, query: &str, headers: &str, body: &[u8]) -> Answer {
        send(
            &self.address,
            &format!("POST /v1/events{query} HTTP/1.1\r\n{headers}"),
            body,
        )
        .await
    }

    async fn get(&self, path: &str) -> Answer {
        send(&self.address, &format!("GET {path} HTTP/1.1\r\n"), b"").await
    }
}

fn receipt(answer: &Answer) -> Value {
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.json()["receipts"][0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_one_is_stored_and_all_get_its_receipt() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Whole::start(folder.path()).await;
    for round in 0..20 {
        let query = format!("?type=t&id={round}");
        let posts = (0..64).map(|_| whole.post(&query, "", b"1"));
        let receipts: Vec<_> = futures_util::future::join_all(posts)
            .await
            .iter()
            .map(receipt)
            .collect();
        let new = receipts
            .iter()
            .filter(|receipt| receipt["duplicate"] == false)
            .count();
        assert_eq!(new, 1);
        assert!(
            receipts
                .iter()
                .all(|receipt| receipt["position"] == receipts[0]["position"])
        );
    }
    whole.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_outlives_a_restart_and_conflicts_say_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Whole::start(folder.path()).await;
    let first = receipt(&whole.post("?type=t&id=1&key=k", "", b"{\"n\":1}").await);
    whole.stop().await;
    let whole = Whole::start(folder.path()).await;
    let again = receipt(&whole.post("?type=t&id=1&key=k", "", b"{\"n\":1}").await);
    assert_eq!(
        (&again["position"], &again["duplicate"]),
        (&first["position"], &json!(true))
    );
    let other = whole.post("?type=t&id=1&key=l", "", b"{\"n\":2}").await;
    assert_eq!(
        (other.status, other.problem().as_str()),
        (409, "event-conflict")
    );
    assert_eq!(other.json()["position"], first["position"]);
    whole.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_names_what_differs_while_the_first_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Whole::start(folder.path()).await;
    receipt(&whole.post("?type=t&id=1&key=k", "", b"{\"n\":1}").await);
    let other = whole.post("?type=t&id=1&key=l", "", b"{\"n\":2}").await;
    assert_eq!(other.json()["differs"], json!(["key", "data"]), "{other:?}");
    let batch = r#"[{"specversion":"1.0","type":"t","source":"/x","id":"new"},
        {"specversion":"1.0","type":"u","source":"SOURCE","id":"1","data":{"n":1}}]"#
        .replace("SOURCE", &whole.app.in_force().config.ingest.source);
    let headers = "Content-Type: application/cloudevents-batch+json\r\n";
    let refused = whole.post("", headers, batch.as_bytes()).await;
    assert_eq!(
        (refused.status, refused.json()["index"].as_u64()),
        (409, Some(1))
    );
    assert_eq!(refused.json()["differs"], json!(["type", "key"]));
    assert_eq!(whole.get("/v1/events?id=new&source=/x").await.status, 404);
    whole.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_found_by_identity_and_by_position_with_every_digit() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Whole::start(folder.path()).await;
    whole
        .app
        .dispatcher
        .pause("sink", "ada", None)
        .await
        .unwrap();
    let data = br#"{"a":9007199254740993,"b":18446744073709551615,"c":0.1000000000000000055}"#;
    let position = receipt(&whole.post("?type=t&id=1&key=k", "", data).await)["position"]
        .as_str()
        .unwrap()
        .to_owned();
    let second = receipt(&whole.post("?type=t&id=2&key=k", "", b"2").await);
    let by_identity = whole.get("/v1/events?id=1").await;
    let by_position = whole.get(&format!("/v1/events/{position}")).await;
    assert_eq!(
        (by_identity.status, &by_identity.body),
        (200, &by_position.body)
    );
    assert!(
        by_identity
            .body
            .windows(data.len())
            .any(|window| window == data),
        "digits are kept"
    );
    let event = by_identity.json();
    assert_eq!(
        (&event["id"], &event["key"], &event["position"]),
        (&json!("1"), &json!("k"), &json!(position))
    );
    assert_eq!(event["deliveries"][0]["state"], "pending");
    assert_eq!(event["deliveries"][0]["destination"], "sink");
    whole
        .app
        .dispatcher
        .resume("sink", "ada", None)
        .await
        .unwrap();
    let path = format!("/v1/events/{}", second["position"].as_str().unwrap());
    for _ in 0..500 {
        if whole.get(&path).await.json()["deliveries"][0]["state"] == "delivered" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        whole.get(&path).await.json()["deliveries"][0]["state"],
        "delivered"
    );
    for (path, status) in [
        ("/v1/events/g1.s0.999999", 404),
        ("/v1/events/nonsense", 400),
        ("/v1/events?id=absent", 404),
        // Without an identity it is the list of what is held.
        ("/v1/events", 200),
        ("/v1/events?id=1&colour=red", 400),
    ] {
        assert_eq!(whole.get(path).await.status, status, "{path}");
    }
    whole.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_leaving_client_sent_is_stored_or_not_and_can_be_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Whole::start(folder.path()).await;
    for number in 0..200_u64 {
        let mut connection = crate::support::connect(&whole.address).await;
        let head = format!("POST /v1/events?type=t&id={number} HTTP/1.1\r\n");
        connection.send(&crate::support::request(&head, b"1")).await;
        tokio::time::sleep(Duration::from_micros(number * 37 % 3000)).await;
    }
    for number in 0..200 {
        receipt(&whole.post(&format!("?type=t&id={number}"), "", b"1").await);
    }
    let totals = whole
        .app
        .store
        .totals(whole.app.store.catalog().destinations()[0].id);
    assert_eq!(totals.accepted, 200);
    whole.stop().await;
}

/// A batch of 500 of which the last has a subject that no event may have.
fn hostile_batch(round: usize) -> Vec<u8> {
    let events: Vec<Value> = (0..500)
        .map(|n| {
            let subject = if n == 499 { "a\u{0}b" } else { "a" };
            json!({
                "specversion": "1.0", "id": format!("{round}-{n}"), "source": "/hostile",
                "type": "t", "subject": subject, "data": n,
            })
        })
        .collect();
    serde_json::to_vec(&events).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_batch_harms_nobody_who_is_stored_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Whole::start(folder.path()).await;
    let batch_json = "Content-Type: application/cloudevents-batch+json\r\n";
    for round in 0..5 {
        let batch = hostile_batch(round);
        let hostile = (0..4).map(|_| whole.post("", batch_json, &batch));
        // Bytes that are a fault elsewhere are data here.
        let octets = (0..40).map(|n| {
            format!(
                "Content-Type: application/octet-stream\r\nCE-SpecVersion: 1.0\r\nCE-Type: t\r\n\
                 CE-Source: /honest\r\nCE-Id: {round}-{n}\r\n"
            )
        });
        let octets: Vec<_> = octets.collect();
        let honest = octets
            .iter()
            .map(|headers| whole.post("", headers, b"\0\xff"));
        let (hostile, honest) = tokio::join!(
            futures_util::future::join_all(hostile),
            futures_util::future::join_all(honest)
        );
        for answer in hostile {
            assert_eq!((answer.status, &answer.json()["index"]), (400, &json!(499)));
        }
        for answer in &honest {
            assert_eq!(receipt(answer)["duplicate"], false);
        }
    }
    assert_eq!(whole.app.metrics.events_accepted.get(), 200);
    let absent = whole.get("/v1/events?source=/hostile&id=0-0").await;
    assert_eq!(absent.status, 404, "nothing of it was stored");
    whole.stop().await;
}
