//! `wayhold destinations test NAME --event FILE`: the request is shown, secrets are not, and nothing is sent
//! unless asked for.

use std::path::Path;
use std::process::Output;

use crate::support::receiver::Receiver;
use crate::support::server::{Server, run, stderr, stdout};

const ORDER: &str = r#"{"specversion":"1.0","id":"1","source":"/shop","type":"order","subject":"a/7","data":{"total":10.50}}"#;

fn server(dir: &Path, receiver: &Receiver) -> Server {
    let text = format!(
        r#"
        [destinations.erp]
        kind = "http"
        method = "PUT"
        url = "http://{}/orders/{{subject}}"
        headers = {{ x-from = "{{source}}", x-fixed = "hunter2" }}
        body = '{{ "total": {{/data/total}} }}'
        allow_networks = ["127.0.0.0/8"]
        auth = {{ bearer = {{ file = "token" }} }}
        [destinations.file]
        kind = "file"
        path = "out.ndjson"
        [[routes]]
        to = ["file"]
        "#,
        receiver.authority
    );
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
    std::fs::write(dir.join("token"), "hunter2\n").unwrap();
    std::fs::write(dir.join("order.json"), ORDER).unwrap();
    std::fs::write(dir.join("bare.json"), ORDER.replace("subject", "other")).unwrap();
    std::fs::write(dir.join("bad.json"), "{}").unwrap();
    Server::start(dir, &["--config", "wayhold.toml"])
}

#[test]
fn a_request_is_shown_without_secrets_and_sent_only_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(200);
    let server = server(dir.path(), &receiver);
    let url = server.url();
    let test = |arguments: &[&str], code: i32| -> Output {
        let start = ["destinations", "test"];
        let output = run(
            dir.path(),
            &[&start, arguments, &["--server", &url]].concat(),
        );
        let said = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
        output
    };

    let shown = stdout(&test(&["erp", "--event", "order.json"], 0));
    for line in [
        &format!("PUT http://{}/orders/a%2F7", receiver.authority),
        "authorization: [redacted]",
        "content-type: application/json",
        "x-fixed: [redacted]",
        "x-from: /shop",
        "{ \"total\": 10.50 }",
        "erp: nothing was sent; --send sends it",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    assert!(shown.contains("idempotency-key: evt_"), "{shown}");
    let told = stderr(&test(&["erp", "--event", "bare.json"], 1));
    assert!(
        told.contains("url: expected a value for {subject}"),
        "{told}"
    );
    test(&["erp", "--event", "bad.json"], 2);
    test(&["erp", "--event", "absent.json"], 2);
    test(&["erp", "--send"], 2);
    test(&["absent", "--event", "order.json"], 4);
    test(&["file", "--event", "order.json"], 2);
    assert!(receiver.received().is_empty());

    test(&["erp", "--event", "order.json", "--send"], 0);
    assert_eq!(receiver.received()[0].body, b"{ \"total\": 10.50 }");
    receiver.answer(422);
    let refused = test(&["erp", "--event", "order.json", "--send", "--json"], 1);
    let json: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(
        (&json["sent"], &json["status"]),
        (&true.into(), &422.into())
    );
    assert_eq!(
        (&json["outcome"], &json["class"]),
        (&"refused".into(), &"invalid".into())
    );
    assert_eq!(json["request"]["headers"]["authorization"], "[redacted]");
    test(&["file", "--event", "order.json", "--send"], 0);
    let written = std::fs::read_to_string(dir.path().join("out.ndjson")).unwrap();
    assert_eq!(written.lines().count(), 1, "{written}");
}
