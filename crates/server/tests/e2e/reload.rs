//! A running server that follows its configuration: what was not sent yet goes by the newest version, attempts in
//! flight end at the old one, and what is wrong changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::receiver::Receiver;
use crate::support::server::{Server, run, signal, stderr, stdout};
use crate::support::wait_until;

/// A destination `wms` at this receiver, with more of its keys, and one route to it.
fn wms(receiver: &Receiver, more: &str) -> String {
    format!(
        r#"
        [destinations.wms]
        kind = "webhook"
        url = "http://{}/hook"
        allow_networks = ["127.0.0.0/8"]
        retry = {{ base = "20ms", cap = "100ms" }}
        {more}

        [[routes]]
        to = ["wms"]
        "#,
        receiver.authority
    )
}

fn write(dir: &Path, text: &str) {
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
}

fn start(dir: &Path) -> Server {
    Server::start(dir, &["--config", "wayhold.toml"])
}

fn reload(server: &Server) -> Value {
    server.post("/v1/config/reload", "")
}

/// Paths and effects of changes.
fn told(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let changes = answer["changes"].as_array().unwrap().iter();
    changes
        .map(|one| (text(&one["path"]), text(&one["effect"])))
        .collect()
}

/// Ids in the order in which they came, whoever took them.
fn arrivals(receivers: &[&Receiver]) -> Vec<usize> {
    let received = receivers.iter().flat_map(|receiver| receiver.received());
    let mut all: Vec<(Instant, usize)> = received
        .map(|one| (one.at, one.headers["ce-id"].parse().unwrap()))
        .collect();
    all.sort_unstable();
    all.into_iter().map(|(_, id)| id).collect()
}

/// Every one of `0..count` came once, and those of each of so many keys in order.
fn assert_each_once_in_order(arrivals: &[usize], count: usize, keys: usize) {
    let ids: BTreeSet<_> = arrivals.iter().collect();
    assert_eq!(
        (arrivals.len(), ids.len()),
        (count, count),
        "each arrives once"
    );
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    for id in arrivals {
        if let Some(before) = last.insert(id % keys, *id) {
            assert!(before < *id, "{id} came after {before}");
        }
    }
}

fn send(server: &Server, id: usize, keys: usize) {
    let receipt = server.send("order.created", &id.to_string(), &format!("k{}", id % keys));
    assert_eq!(receipt["duplicate"], false);
}

fn wait_for_delivered(server: &Server, name: &str, count: usize) {
    server.wait_for_destination(name, "everything delivered", |one| {
        one["accounting"]["delivered"] == count && one["accounting"]["holds"] == true
    });
}

#[test]
fn what_was_not_sent_yet_goes_to_the_new_address_while_attempts_in_flight_end_at_the_old_one() {
    const KEYS: usize = 20;
    const HELD: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (Receiver::start(204), Receiver::start(204));
    old.hold(true);
    write(dir.path(), &wms(&old, "concurrency = 4"));
    let server = start(dir.path());
    for id in 0..100 {
        send(&server, id, KEYS);
    }
    wait_until("the old receiver is busy", || old.received().len() == HELD);

    write(dir.path(), &wms(&new, "concurrency = 8"));
    let diff = server.get("/v1/config/diff");
    let answer = reload(&server);
    assert_eq!(diff["changes"], answer["changes"]);
    let applied = |path: &str| (path.to_owned(), "applied".to_owned());
    let expected = ["destinations.wms.url", "destinations.wms.concurrency"];
    let paths: BTreeSet<_> = told(&answer).into_iter().collect();
    assert_eq!(paths, expected.map(applied).into_iter().collect());
    assert_eq!(told(&server.get("/v1/config/diff")), []);
    for id in 100..200 {
        send(&server, id, KEYS);
    }
    // All keys but those in flight go on at once; those wait for the answers that are still owed.
    let others = 200 - HELD * (200 / KEYS);
    wait_until("the other keys are with the new receiver", || {
        new.received().len() == others
    });
    let held: BTreeSet<_> = arrivals(&[&old]).into_iter().map(|id| id % KEYS).collect();
    assert!(
        arrivals(&[&new])
            .iter()
            .all(|id| !held.contains(&(id % KEYS)))
    );

    old.hold(false);
    wait_for_delivered(&server, "wms", 200);
    assert_eq!(old.received().len(), HELD);
    assert_each_once_in_order(&arrivals(&[&old, &new]), 200, KEYS);
    let status = server.get("/v1/status");
    assert_eq!(status["destinations"][0]["repeats"], 0);
}

#[test]
fn a_hundred_reloads_under_load_lose_nothing_repeat_nothing_and_keep_the_order_of_each_key() {
    const EVENTS: usize = 1_500;
    const KEYS: usize = 30;
    let dir = tempfile::tempdir().unwrap();
    let receivers = [Receiver::start(204), Receiver::start(204)];
    let write = |n: usize| {
        let more = format!(
            "concurrency = {}\nrate = \"{}/s\"\non_failure = \"{}\"",
            1 + n % 7,
            2_000 + n,
            if n.is_multiple_of(2) { "block" } else { "park" },
        );
        let archive = format!(
            "[destinations.archive]\nkind = \"file\"\npath = \"archive.ndjson\"\nconcurrency = {}\n[[routes]]\nto = [\"archive\"]\n",
            16 + n,
        );
        write(dir.path(), &(wms(&receivers[n % 2], &more) + &archive));
    };
    write(0);
    let server = start(dir.path());
    std::thread::scope(|threads| {
        threads.spawn(|| (0..EVENTS).for_each(|id| send(&server, id, KEYS)));
        for n in 1..=100 {
            write(n);
            if n.is_multiple_of(10) {
                // Two at once: one follows the other and finds nothing left.
                let other = threads.spawn(|| reload(&server));
                let (one, other) = (reload(&server), other.join().unwrap());
                let counts = [told(&one).len(), told(&other).len()];
                assert!(
                    counts.contains(&0) && counts.iter().sum::<usize>() > 0,
                    "{counts:?}"
                );
            } else {
                assert!(!told(&reload(&server)).is_empty(), "{n}");
            }
        }
    });
    for name in ["wms", "archive"] {
        wait_for_delivered(&server, name, EVENTS);
    }
    assert_each_once_in_order(&arrivals(&[&receivers[0], &receivers[1]]), EVENTS, KEYS);
    let archive = std::fs::read_to_string(dir.path().join("archive.ndjson")).unwrap();
    let event = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let of_archive: Vec<usize> = archive
        .lines()
        .map(|line| event(line)["id"].as_str().unwrap().parse().unwrap())
        .collect();
    assert_each_once_in_order(&of_archive, EVENTS, KEYS);
    let page = server.ask("GET", "/metrics", &[], b"").text();
    assert!(
        page.contains("wayhold_config_reloads_total{result=\"applied\"} 100\n")
            && page.contains("wayhold_config_reloads_total{result=\"unchanged\"} 10\n"),
        "{page}"
    );
}

#[expect(
    clippy::too_many_lines,
    reason = "one server and one story, told in order"
)]
#[test]
fn what_is_wrong_or_needs_a_restart_changes_nothing_and_is_named_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Receiver::start(204), Receiver::start(204));
    let good = wms(&first, "");
    write(dir.path(), &good);
    let server = start(dir.path());
    let elsewhere = wms(&second, "");
    let ask = |text: &str| {
        write(dir.path(), text);
        let answer = server.ask("POST", "/v1/config/reload", &[], b"");
        let shown = run(dir.path(), &["config", "diff", "--server", &server.url()]);
        (answer.status, answer.json(), shown)
    };
    let keys = |answer: &Value, list: &str, field: &str| -> Vec<String> {
        let items = answer[list].as_array().unwrap().iter();
        items
            .map(|one| one[field].as_str().unwrap().to_owned())
            .collect()
    };
    for (text, named) in [
        ("not toml".to_owned(), vec![""]),
        (
            elsewhere.replace("[[routes]]", "[[routs]]"),
            vec!["routs", "routes"],
        ),
        (
            wms(
                &second,
                "concurrency = 0\nsigning_keys = [{ env = \"NO_SUCH_KEY\" }]\nca = { file = \"none.pem\" }",
            ),
            vec![
                "destinations.wms.concurrency",
                "destinations.wms.signing_keys[0]",
                "destinations.wms.ca",
            ],
        ),
        (
            elsewhere.replace("http://127", "http://192"),
            vec!["destinations.wms.url"],
        ),
    ] {
        let (status, answer, shown) = ask(&text);
        assert_eq!(
            (status, &answer["type"]),
            (422, &json!("/problems/invalid-configuration"))
        );
        let found: BTreeSet<_> = keys(&answer, "problems", "key").into_iter().collect();
        assert!(
            named.iter().all(|key| found.contains(*key)),
            "{text}: {answer}"
        );
        assert_eq!(shown.status.code(), Some(2), "{}", stdout(&shown));
        let words = stderr(&shown);
        assert!(named.iter().all(|key| words.contains(key)), "{words}");
    }
    let fixed = format!(
        "data = \"other\"\nlisten = [\"127.0.0.1:1\"]\n{elsewhere}\n[store]\nwindow_ids = 5_000\n[retention]\ntime = \"1h\"\n[log]\nlevel = \"warn\"\n",
    );
    let (status, answer, shown) = ask(&fixed);
    assert_eq!(
        (status, &answer["type"]),
        (409, &json!("/problems/restart-needed"))
    );
    // `listen` was given as a flag, which beats the file.
    let named = keys(&answer, "changes", "path");
    assert_eq!(
        named,
        ["data", "log.level", "store.window_ids", "retention.time"]
    );
    // A look is no wish: it tells all of it.
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    let shown = stdout(&shown);
    assert!(
        shown.contains("store.window_ids: 2000000 -> 5000 (needs a restart)"),
        "{shown}"
    );
    assert!(shown.contains("destinations.wms.url"), "{shown}");
    let done = run(dir.path(), &["config", "reload", "--server", &server.url()]);
    assert_eq!(done.status.code(), Some(2));
    assert!(
        stderr(&done).contains("retention.time"),
        "{}",
        stderr(&done)
    );

    // All the while, and after a signal too, the first version is in force.
    signal(server.pid(), "HUP");
    wait_until("the signal is answered in the log", || {
        let log = server.log.lock().unwrap();
        log.matches("the configuration was not reloaded").count() == 7
    });
    send(&server, 0, 1);
    wait_for_delivered(&server, "wms", 1);
    assert_eq!((first.received().len(), second.received().len()), (1, 0));
    let trail = server.get("/v1/audit").to_string();
    assert!(!trail.contains("config.reloaded"), "{trail}");
    let page = server.ask("GET", "/metrics", &[], b"").text();
    assert!(
        page.contains("wayhold_config_reloads_total{result=\"refused\"} 7\n"),
        "{page}"
    );

    // And the next good one is followed, with its name in the audit trail.
    write(dir.path(), &elsewhere);
    let done = run(
        dir.path(),
        &["config", "reload", "--server", &server.url(), "--json"],
    );
    let answer: Value = serde_json::from_str(&stdout(&done)).unwrap();
    assert_eq!(keys(&answer, "changes", "path"), ["destinations.wms.url"]);
    let entry = &server.get("/v1/audit")["items"][0];
    assert_eq!(
        [
            &entry["by"],
            &entry["action"],
            &entry["subject"],
            &entry["reason"]
        ],
        [
            "local",
            "config.reloaded",
            "wayhold.toml",
            "destinations.wms.url"
        ]
        .map(|word| json!(word))
        .each_ref()
    );
    send(&server, 1, 1);
    wait_for_delivered(&server, "wms", 2);
    assert_eq!(second.received().len(), 1);
}

#[test]
fn destinations_and_routes_come_go_and_return_and_run_states_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (wms_at, crm_at) = (Receiver::start(503), Receiver::start(204));
    let (only_wms, only_crm) = (wms(&wms_at, ""), wms(&crm_at, "").replace("wms", "crm"));
    write(dir.path(), &only_wms);
    let server = start(dir.path());
    send(&server, 0, 1);
    let state = |name: &str| {
        let shown = server.get(&format!("/v1/destinations/{name}"));
        shown["state"].as_str().unwrap().to_owned()
    };

    // A new one takes what comes from now on.
    write(dir.path(), &(only_wms.clone() + &only_crm));
    signal(server.pid(), "HUP");
    wait_until("crm is there", || {
        server.ask("GET", "/v1/destinations/crm", &[], b"").status == 200
    });
    wait_until("its route is", || {
        told(&server.get("/v1/config/diff")).is_empty()
    });
    send(&server, 1, 1);
    wait_for_delivered(&server, "crm", 1);
    server.post("/v1/destinations/crm/pause", r#"{"reason":"stocktaking"}"#);

    // One that is gone is held, as after a restart, and the other stays paused.
    write(
        dir.path(),
        &(only_crm.clone() + "\n[limits]\nbody_bytes = \"1 KiB\"\n"),
    );
    reload(&server);
    assert_eq!([state("wms"), state("crm")], ["retired", "paused"]);
    send(&server, 2, 1);
    let pending = |name: &str| server.get(&format!("/v1/destinations/{name}"))["pending"].clone();
    assert_eq!([pending("wms"), pending("crm")], [json!(2), json!(1)]);
    let form = [("content-type", "application/json")];
    let large = vec![b'1'; 2_000];
    let refused = server.ask("POST", "/v1/events?type=t&id=large", &form, &large);
    assert_eq!(refused.status, 413, "{}", refused.text());
    let test = server.ask("POST", "/v1/destinations/wms/test", &form, b"");
    assert_eq!(test.status, 404, "{}", test.text());

    // It returns, and is given what it is owed, in order.
    wms_at.answer(204);
    write(dir.path(), &(only_wms + &only_crm));
    reload(&server);
    wait_for_delivered(&server, "wms", 2);
    assert_eq!(state("crm"), "paused");
    server.post("/v1/destinations/crm/resume", "");
    wait_for_delivered(&server, "crm", 2);
    let arrived = arrivals(&[&wms_at]);
    let first_of = |id| arrived.iter().position(|one| *one == id).unwrap();
    assert!(first_of(0) < first_of(1));
    assert_eq!(
        server.post("/v1/events?type=t&id=large", "1")["receipts"][0]["duplicate"],
        false
    );
}

#[test]
fn a_secret_with_another_content_is_followed_and_never_told() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(204);
    let secret = |text: &str| std::fs::write(dir.path().join("key"), text).unwrap();
    secret("hunter-one");
    write(
        dir.path(),
        &wms(&receiver, "headers = { x-api-key = { file = \"key\" } }"),
    );
    let server = start(dir.path());
    send(&server, 0, 1);
    wait_for_delivered(&server, "wms", 1);
    assert_eq!(told(&reload(&server)), []);
    secret("hunter-two");
    let answer = reload(&server);
    let [change] = &answer["changes"].as_array().unwrap()[..] else {
        panic!("one change: {answer}");
    };
    assert_eq!(change["path"], "destinations.wms.headers.x-api-key");
    assert_eq!(
        (&change["content"], &change["from"]),
        (&json!(true), &change["to"])
    );
    send(&server, 1, 1);
    wait_for_delivered(&server, "wms", 2);
    let keys: Vec<_> = receiver
        .received()
        .iter()
        .map(|one| one.headers["x-api-key"].clone())
        .collect();
    assert_eq!(keys, ["hunter-one", "hunter-two"]);
    let trail = server.get("/v1/audit").to_string();
    let log = server.log.lock().unwrap().clone();
    for text in [answer.to_string(), trail, log] {
        assert!(!text.contains("hunter"), "{text}");
    }
}

#[test]
fn whether_dead_letters_hold_their_keys_can_be_changed_while_they_do() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(422);
    let of = |word: &str| wms(&receiver, &format!("on_dead_letter = \"{word}\""));
    let on_dead_letter = |server: &Server, word: &str| {
        write(dir.path(), &of(word));
        let answer = reload(server);
        let path = "destinations.wms.on_dead_letter".to_owned();
        assert_eq!(told(&answer), [(path, "applied".to_owned())]);
    };
    let ids = || -> Vec<String> {
        let received = receiver.received().into_iter();
        received.map(|one| one.headers["ce-id"].clone()).collect()
    };
    write(dir.path(), &of("hold"));
    let server = start(dir.path());
    server.send("order.created", "1", "a");
    server.wait_for_destination("wms", "the first is dead", |one| {
        one["accounting"]["dead_lettered"] == 1
    });
    receiver.answer(204);
    server.send("order.created", "2", "a");
    server.send("order.created", "3", "b");
    wait_for_delivered(&server, "wms", 1);
    assert_eq!(ids(), ["1", "3"], "the letter holds its key and no other");

    on_dead_letter(&server, "release");
    wait_for_delivered(&server, "wms", 2);
    assert_eq!(ids(), ["1", "3", "2"]);

    // The same letter holds the key again, for what comes from now on.
    on_dead_letter(&server, "hold");
    server.send("order.created", "4", "a");
    server.send("order.created", "5", "b");
    wait_for_delivered(&server, "wms", 3);
    assert_eq!(ids(), ["1", "3", "2", "5"]);
    let letters = server.get("/v1/dead-letters");
    let letter = &letters["items"][0]["id"];
    server.post(&format!("/v1/dead-letters/{letter}/redrive"), "");
    wait_for_delivered(&server, "wms", 5);
    assert_eq!(ids(), ["1", "3", "2", "5", "1", "4"]);
}
