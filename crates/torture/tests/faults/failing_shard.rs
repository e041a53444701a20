//! One of several shards fails: what belongs to it is refused, and nothing else.

use std::time::Duration;

use serde_json::Value;

use wayhold_torture::black_box::client::{Answer, Client};
use wayhold_torture::black_box::history::Event;
use wayhold_torture::black_box::native::{Action, Shim};
use wayhold_torture::black_box::receiver::{Mood, Receiver};
use wayhold_torture::black_box::server::SMALL_SEGMENTS;
use wayhold_torture::black_box::server::Server;

/// The segments of the shard that fails, and everything that it has.
/// The one that takes events first, and its successor; never a file that is only being prepared.
const SEGMENTS: [&str; 2] = ["*/s1/1.db-wal", "*/s1/2.db-wal"];
const EVERYTHING: &str = "*/s1/*";

/// Enough keys that every shard has some.
const KEYS: usize = 24;

const BATCH: &str = "Content-Type: application/cloudevents-batch+json\r\n";
const LINES: &str = "Content-Type: application/x-ndjson\r\n";

/// A server with three shards behind the shim.
fn start(root: &std::path::Path) -> Option<(Shim, Receiver, Server)> {
    let shim = Shim::build(root, "one failing shard")?;
    let folder = root.join("server");
    std::fs::create_dir(&folder).unwrap();
    let receiver = Receiver::start(1, Mood::Well);
    let mut server = Server::prepare_sharded(&folder, receiver.address, SMALL_SEGMENTS, 3);
    server.set_environment(shim.environment());
    server.start();
    Some((shim, receiver, server))
}

/// One event of each key, as the receiver knows them: with numbers as ids.
fn events(round: usize) -> Vec<String> {
    let keys = 0..KEYS;
    keys.map(|key| event(round * KEYS + key, &format!(r#""partitionkey":"k{key}","#)))
        .collect()
}

fn event(id: usize, key: &str) -> String {
    let data = String::from_utf8(Event(id as u64).body()).unwrap();
    format!(
        r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"t",{key}"datacontenttype":"application/json","data":{data}}}"#
    )
}

/// Rounds of events.
const MAP: usize = 0;
const BATCHED: usize = 1;
const STREAMED: usize = 2;
const HEALED: usize = 3;
const OTHERS: usize = 10;
const STUCK: usize = 100;

fn send(client: &mut Client, events: &[String]) -> Answer {
    let body = format!("[{}]", events.join(","));
    client.post("/v1/events", BATCH, body.as_bytes()).unwrap()
}

fn receipts(answer: &Answer) -> Vec<Value> {
    let json = answer.json();
    let receipts = json["receipts"].as_array();
    receipts
        .unwrap_or_else(|| panic!("no receipts: {json}"))
        .clone()
}

/// Sends until it is accepted, as a producer does.
fn send_until_accepted(client: &mut Client, events: &[String]) -> Vec<Value> {
    for _ in 0..2000 {
        let answer = send(client, events);
        if answer.status == 202 {
            return receipts(&answer);
        }
        assert_eq!((answer.status, &*answer.problem()), (503, "unavailable"));
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it never accepts again");
}

fn shard_of(receipt: &Value) -> usize {
    let position = receipt["position"].as_str().unwrap();
    position.split('.').nth(1).unwrap()[1..].parse().unwrap()
}

#[test]
fn a_batch_of_which_one_shard_fails_is_answered_with_what_is_stored_and_sent_again_for_the_rest() {
    let root = tempfile::tempdir().unwrap();
    let Some((shim, _receiver, mut server)) = start(root.path()) else {
        return;
    };
    let mut client = Client::new(server.address);
    let shards: Vec<_> = send_until_accepted(&mut client, &events(MAP))
        .iter()
        .map(shard_of)
        .collect();
    assert!((0..3).all(|shard| shards.contains(&shard)), "{shards:?}");

    shim.rule(Action::FailOnce, 1, SEGMENTS[0]);
    let answer = send(&mut client, &events(BATCHED));
    assert_eq!((answer.status, &*answer.problem()), (503, "unavailable"));
    assert!(answer.header("retry-after").is_some());
    let first = receipts(&answer);
    assert_eq!(first.len(), KEYS);
    for (key, (receipt, shard)) in first.iter().zip(&shards).enumerate() {
        assert_eq!(receipt.is_null(), *shard == 1, "{receipt}");
        if *shard != 1 {
            assert_eq!(
                (&receipt["id"], &receipt["source"]),
                (&(BATCHED * KEYS + key).to_string().into(), &"/s".into())
            );
            assert_eq!(
                (shard_of(receipt), &receipt["duplicate"]),
                (*shard, &false.into())
            );
        }
    }
    let again = send_until_accepted(&mut client, &events(BATCHED));
    for ((again, first), shard) in again.iter().zip(&first).zip(&shards) {
        assert_eq!(shard_of(again), *shard);
        assert_eq!(again["duplicate"], *shard != 1);
        assert!(*shard == 1 || again["position"] == first["position"]);
    }

    shim.rule(Action::FailOnce, 1, SEGMENTS[1]);
    let lines = events(STREAMED).join("\n");
    let answer = client.post("/v1/events", LINES, lines.as_bytes()).unwrap();
    assert_eq!((answer.status, &*answer.problem()), (503, "unavailable"));
    for (number, (told, shard)) in (1..).zip(receipts(&answer).iter().zip(&shards)) {
        match shard {
            1 => assert_eq!(
                (&told["line"], &told["problem"]["status"]),
                (&Value::from(number), &503.into())
            ),
            _ => assert_eq!(
                (shard_of(told), &told["duplicate"]),
                (*shard, &false.into())
            ),
        }
    }
    shim.clear();
    let again = send_until_accepted(&mut client, &events(STREAMED));
    for (again, shard) in again.iter().zip(&shards) {
        assert_eq!(again["duplicate"], *shard != 1);
    }

    let status = server.drain();
    for destination in status["destinations"].as_array().unwrap() {
        assert_eq!(destination["accounting"]["delivered"], 3 * KEYS);
    }
    assert_eq!(status["store"]["shards"], 3);
}

#[test]
fn a_shard_that_cannot_write_refuses_its_own_keys_and_the_others_go_on() {
    let root = tempfile::tempdir().unwrap();
    let Some((shim, _receiver, mut server)) = start(root.path()) else {
        return;
    };
    let mut client = Client::new(server.address);
    let shards: Vec<_> = send_until_accepted(&mut client, &events(MAP))
        .iter()
        .map(shard_of)
        .collect();
    shim.rule(Action::Fail, 1, EVERYTHING);
    let stuck = shards.iter().position(|shard| *shard == 1).unwrap();
    let one = |round: usize| vec![events(STUCK + round).swap_remove(stuck)];
    // Until it is known that the shard cannot write; from then on it is refused without a try.
    let refused = (0..2000)
        .find_map(|round| {
            let answer = send(&mut client, &one(round));
            assert_eq!(answer.status, 503, "{answer:?}");
            let known = server.get("/readyz").to_string().contains("g1.s1");
            known.then_some(answer)
        })
        .expect("the shard is named");
    assert!(refused.header("retry-after").is_some());
    for round in 0..20 {
        let round = events(OTHERS + round);
        let others = round.iter().zip(&shards).filter(|(_, shard)| **shard != 1);
        for (event, _) in others {
            let answer = send(&mut client, std::slice::from_ref(event));
            assert_eq!(answer.status, 202, "{answer:?}");
        }
        // Nothing of a batch is stored where it is known beforehand that a part cannot be.
        let answer = send(&mut client, &round);
        if answer.status != 503 || !answer.json()["receipts"].is_null() {
            let receipts = receipts(&answer);
            assert!(
                receipts
                    .iter()
                    .zip(&shards)
                    .all(|(one, shard)| one.is_null() == (*shard == 1))
            );
        }
    }
    assert!(server.is_ready(), "it accepts for the other shards");
    // Events without a key lie wherever there is room.
    for number in 0..20 {
        let answer = send(&mut client, &[event(1_000_000 + number, "")]);
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    shim.clear();
    send_until_accepted(&mut client, &events(HEALED));
    let status = server.drain();
    assert_eq!(status["accounting"]["holds"], true);
}
