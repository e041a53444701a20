//! Lists of events: what is selected, page by page, over HTTP and on the command line.

use serde_json::Value;

use crate::support::server::{Server, run, stdout};

fn start(dir: &std::path::Path) -> Server {
    let text = r#"
data = "data"
listen = ["127.0.0.1:0"]

[store]
segment_rows = 16

[retention]
time = "1h"

[destinations.nobody]
kind = "null"

[destinations.held]
kind = "null"

[[routes]]
when = 'type == "order.paid"'
to = ["held"]

[[routes]]
to = ["nobody"]
"#;
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
    Server::start(dir, &["--config", "wayhold.toml"])
}

/// Forty events of four keys and two types, of which one type is held.
fn send_forty(server: &Server) {
    server.post("/v1/destinations/held/pause", "");
    for n in 0..40 {
        let kind = ["order.created", "order.paid"][n % 2];
        server.send(kind, &n.to_string(), &(n % 4).to_string());
    }
}

fn ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap();
    let id = |item: &Value| item["id"].as_str().unwrap().to_owned();
    items.iter().map(id).collect()
}

#[test]
fn events_are_listed_newest_first_page_by_page_and_by_every_part_of_a_selection() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    send_forty(&server);
    let numbers = |wanted: &dyn Fn(usize) -> bool| -> Vec<String> {
        (0..40)
            .filter(|n| wanted(*n))
            .map(|n| n.to_string())
            .collect()
    };
    let all = numbers(&|_| true);
    assert_eq!(ids(&server.get("/v1/events?order=oldest")), all);
    let (mut found, mut after) = (Vec::new(), String::new());
    for _ in 0..10 {
        let page = server.get(&format!("/v1/events?limit=7{after}"));
        found.extend(ids(&page));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    found.reverse();
    assert_eq!(found, all);
    for (query, expected) in [
        ("type=order.paid", numbers(&|n| n % 2 == 1)),
        ("key=3&type=order.paid", numbers(&|n| n % 4 == 3)),
        ("destination=held", numbers(&|n| n % 2 == 1)),
        ("from=1h", all.clone()),
        ("until=1h", Vec::new()),
        ("source=nowhere", Vec::new()),
        (
            "filter=type.endsWith(%22paid%22)%20%7C%7C%20id%20%3D%3D%20%224%22",
            numbers(&|n| n % 2 == 1 || n == 4),
        ),
    ] {
        let page = server.get(&format!("/v1/events?order=oldest&{query}"));
        assert_eq!(ids(&page), expected, "{query}");
    }
    let newest = &server.get("/v1/events?limit=1")["items"][0];
    assert_eq!(
        (
            &newest["id"],
            &newest["type"],
            &newest["key"],
            &newest["deliveries"][0]["state"]
        ),
        (
            &"39".into(),
            &"order.paid".into(),
            &"3".into(),
            &"pending".into()
        )
    );
    assert!(server.terminate().success());
}

#[test]
fn a_list_says_what_is_wrong_with_its_request_and_is_the_same_on_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    send_forty(&server);
    for (query, field) in [
        ("from=yesterday", "from"),
        ("filter=type%20%3D%3D", "filter"),
        ("id=3&type=order.paid", "id"),
    ] {
        let answer = server.ask("GET", &format!("/v1/events?{query}"), &[], b"");
        assert_eq!(answer.status, 400, "{query}");
        assert_eq!(answer.json()["field"], field, "{query}");
    }
    for query in ["after=nonsense", "order=sideways", "colour=red"] {
        let answer = server.ask("GET", &format!("/v1/events?{query}"), &[], b"");
        assert_eq!(answer.status, 400, "{query}");
    }
    assert_eq!(
        server
            .ask("GET", "/v1/events?destination=x", &[], b"")
            .status,
        404
    );

    let url = server.url();
    let list = [
        "events",
        "list",
        "--server",
        &url,
        "--type",
        "order.paid",
        "--limit",
        "3",
    ];
    let shown = stdout(&run(dir.path(), &list));
    assert!(
        shown.contains("held:pending") && !shown.contains("order.created"),
        "{shown}"
    );
    let shown = stdout(&run(
        dir.path(),
        &[&list[..], &["--json", "--oldest"]].concat(),
    ));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(ids(&shown), ["1", "3", "5"]);
    assert!(server.terminate().success());
}
