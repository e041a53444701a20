//! Every refusal: its status, its problem type, the field it names, and that nothing was accepted.

use serde_json::{Value, json};
use wayhold::config::Unmatched;
use wayhold_model::condition::Condition;
use wayhold_model::route::RouteRule;
use wayhold_model::{DestinationId, Generation, Position, Sequence, ShardId};
use wayhold_store::{AppendError, Receipt};

use crate::support::{Running, Setup};

const STRUCTURED: &str = "Content-Type: application/cloudevents+json\r\n";
const BATCH: &str = "Content-Type: application/cloudevents-batch+json\r\n";
const BINARY: &str = "ce-specversion: 1.0\r\nce-type: t\r\nce-source: /s\r\nce-id: 1\r\n";

struct Refused {
    query: &'static str,
    headers: String,
    body: Vec<u8>,
    expected: (u16, &'static str),
    field: Option<&'static str>,
}

fn refused(
    headers: impl Into<String>,
    body: impl Into<Vec<u8>>,
    expected: (u16, &'static str),
    field: Option<&'static str>,
) -> Refused {
    Refused {
        query: "",
        headers: headers.into(),
        body: body.into(),
        expected,
        field,
    }
}

const MALFORMED: (u16, &str) = (400, "malformed-body");
const INVALID: (u16, &str) = (400, "invalid-event");
const REQUEST: (u16, &str) = (400, "invalid-request");

fn structured() -> Vec<Refused> {
    let with = |members: &str| {
        format!(r#"{{"specversion":"1.0","type":"t","source":"/s","id":"1"{members}}}"#)
    };
    let deep = format!("{}{}", "[".repeat(64), "]".repeat(64));
    let many: String = (0..65).map(|n| format!(r#","e{n}":1"#)).collect();
    [
        ("{", MALFORMED, None),
        ("[]", MALFORMED, None),
        ("", MALFORMED, None),
        ("{} {}", INVALID, Some("specversion")),
        (
            r#"{"type":"t","source":"/s","id":"1"}"#,
            INVALID,
            Some("specversion"),
        ),
        (
            r#"{"specversion":"0.3","type":"t","source":"/s","id":"1"}"#,
            INVALID,
            Some("specversion"),
        ),
        (
            r#"{"specversion":1.0,"type":"t","source":"/s","id":"1"}"#,
            INVALID,
            Some("specversion"),
        ),
        (
            r#"{"specversion":"1.0","source":"/s","id":"1"}"#,
            INVALID,
            Some("type"),
        ),
        (
            r#"{"specversion":"1.0","type":"t","id":"1"}"#,
            INVALID,
            Some("source"),
        ),
        (
            r#"{"specversion":"1.0","type":"t","source":"/s"}"#,
            INVALID,
            Some("id"),
        ),
        (
            r#"{"specversion":"1.0","type":"t","source":"/s","id":null}"#,
            INVALID,
            Some("id"),
        ),
        (&with(r#","id":"2""#), INVALID, Some("id")),
        (&with(r#","\u0069d":"2""#), INVALID, Some("id")),
        (
            &with(r#","subject":null,"subject":"x""#),
            INVALID,
            Some("subject"),
        ),
        (&with(r#","subject":"""#), INVALID, Some("subject")),
        (&with(r#","subject":5"#), INVALID, Some("subject")),
        (&with(r#","subject":"a\u0000b""#), INVALID, Some("subject")),
        (&with(r#","subject":"\ud800""#), MALFORMED, None),
        (&with(r#","time":"yesterday""#), INVALID, Some("time")),
        (&with(r#","Upper":"x""#), INVALID, Some("Upper")),
        (&with(r#","with-dash":"x""#), INVALID, Some("with-dash")),
        (&with(r#","ext":1.5"#), INVALID, Some("ext")),
        (&with(r#","ext":2147483648"#), INVALID, Some("ext")),
        (&with(r#","ext":{}"#), INVALID, Some("ext")),
        (&with(r#","ext":1,"ext":1"#), INVALID, Some("ext")),
        (&with(&many), INVALID, Some("extensions")),
        (&with(r#","data":1,"data":2"#), INVALID, Some("data")),
        (
            &with(r#","data":1,"data_base64":"AA==""#),
            INVALID,
            Some("data_base64"),
        ),
        (
            &with(r#","data_base64":"not base64""#),
            INVALID,
            Some("data_base64"),
        ),
        (
            &with(r#","datacontenttype":"text/plain","data":{}"#),
            INVALID,
            Some("data"),
        ),
        (&with(&format!(r#","data":{deep}"#)), MALFORMED, None),
    ]
    .into_iter()
    .map(|(body, expected, field)| refused(STRUCTURED, body, expected, field))
    .collect()
}

fn binary_and_plain() -> Vec<Refused> {
    let line = |header: &str| format!("{BINARY}{header}\r\n");
    let plain = |query, headers: &str, body: &[u8], expected, field| Refused {
        query,
        headers: headers.into(),
        body: body.into(),
        expected,
        field,
    };
    let long = line(&format!("ce-subject: {}", "x".repeat(1025)));
    vec![
        refused(
            line("ce-datacontenttype: text/plain"),
            "",
            REQUEST,
            Some("ce-datacontenttype"),
        ),
        refused(line("ce-data: x"), "", INVALID, Some("data")),
        refused(line("ce-id: 2"), "", INVALID, Some("id")),
        refused(line("ce-subject: %zz"), "", REQUEST, Some("ce-subject")),
        refused(line("ce-subject: %C0%80"), "", REQUEST, Some("ce-subject")),
        refused(line("ce-subject: a%00b"), "", INVALID, Some("subject")),
        refused(line("ce-my_ext: x"), "", INVALID, Some("my_ext")),
        refused(long, "", INVALID, Some("subject")),
        refused(line("Content-Type: application/json"), "{", MALFORMED, None),
        refused(
            BINARY.replace("1.0", "1.1"),
            "",
            INVALID,
            Some("specversion"),
        ),
        plain("", "", b"{}", INVALID, Some("type")),
        plain("?type=t", "", b"{", MALFORMED, None),
        plain("?type=t", "", b"", MALFORMED, None),
        plain(
            "?type=t",
            "Content-Type: text/plain\r\n",
            b"hello",
            (415, "unsupported-media"),
            None,
        ),
        plain("?type=t&colour=red", "", b"1", REQUEST, Some("colour")),
        plain("?type=t&type=u", "", b"1", REQUEST, Some("type")),
        plain("?type=%FF", "", b"1", REQUEST, Some("query")),
        plain(
            "?type=t",
            "Idempotency-Key: \"\"\r\n",
            b"1",
            REQUEST,
            Some("idempotency-key"),
        ),
        plain("?type=t", BINARY, b"", REQUEST, Some("query")),
        plain("?type=t&access_token=wh_x", "", b"1", REQUEST, None),
        plain(
            "?type=t",
            "Content-Encoding: br\r\n",
            b"1",
            (415, "unsupported-media"),
            None,
        ),
        plain(
            "?type=t",
            "Content-Encoding: gzip, gzip\r\n",
            b"1",
            (415, "unsupported-media"),
            None,
        ),
        plain(
            "?type=t",
            "Content-Encoding: gzip\r\n",
            b"not gzip",
            REQUEST,
            Some("content-encoding"),
        ),
        refused(
            "Content-Type: application/cloudevents+xml\r\n",
            "",
            (415, "unsupported-media"),
            None,
        ),
    ]
}

#[tokio::test]
async fn every_refusal_says_what_is_wrong_and_accepts_nothing() {
    let server = Running::start(Setup::default()).await;
    for case in structured().into_iter().chain(binary_and_plain()) {
        let answer = server.post(case.query, &case.headers, &case.body).await;
        let shown = String::from_utf8_lossy(&case.body).into_owned();
        let got = (answer.status, answer.problem());
        assert_eq!(
            (got.0, got.1.as_str()),
            case.expected,
            "{}{shown} {answer:?}",
            case.headers
        );
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json")
        );
        let json = answer.json();
        assert_eq!(json["status"], answer.status, "{shown}");
        if let Some(field) = case.field {
            assert_eq!(json["field"], Value::from(field), "{shown}");
        }
        assert_eq!(answer.header("retry-after"), None);
    }
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn a_batch_with_one_bad_event_names_it_and_accepts_nothing() {
    let server = Running::start(Setup::default()).await;
    let event = |n: usize, subject: &str| {
        format!(
            r#"{{"specversion":"1.0","type":"t","source":"/s","id":"{n}","subject":"{subject}"}}"#
        )
    };
    for bad in [0, 6, 9] {
        let events: Vec<_> = (0..10)
            .map(|n| event(n, if n == bad { r"a\u0000b" } else { "fine" }))
            .collect();
        let answer = server
            .post("", BATCH, format!("[{}]", events.join(",")).as_bytes())
            .await;
        assert_eq!(
            (answer.status, answer.json()["index"].as_u64()),
            (400, Some(bad as u64))
        );
        assert_eq!(answer.json()["field"], "subject");
    }
    let many: Vec<_> = (0..1001).map(|n| event(n, "fine")).collect();
    let answer = server
        .post("", BATCH, format!("[{}]", many.join(",")).as_bytes())
        .await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (413, "too-large")
    );
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn a_batch_that_is_stored_in_part_is_answered_with_its_receipts() {
    let server = Running::start(Setup {
        unmatched: Unmatched::Ignore,
        routes: vec![RouteRule {
            name: "wanted".into(),
            when: Some(Condition::compile("type == 'wanted'").unwrap()),
            to: vec![DestinationId(1)],
        }],
        ..Setup::default()
    })
    .await;
    let receipt = |shard: u16, duplicate: bool| Receipt {
        position: Position {
            generation: Generation(1),
            shard: ShardId(shard),
            sequence: Sequence(7),
        },
        duplicate,
    };
    for (cause, problem) in [
        (
            AppendError::Unavailable { reason: "x".into() },
            "unavailable",
        ),
        (
            AppendError::NoSpace {
                retry_after: std::time::Duration::from_secs(9),
            },
            "no-space",
        ),
        (AppendError::Stopping, "stopping"),
    ] {
        let error = AppendError::Partly {
            receipts: vec![Some(receipt(0, false)), None, Some(receipt(2, true))],
            cause: Box::new(cause),
        };
        *server.memory.remaining.lock().unwrap() = Some((0, error));
        let events: Vec<_> = ["wanted", "other", "wanted", "wanted"]
            .iter()
            .zip(0..)
            .map(|(kind, id)| {
                format!(r#"{{"specversion":"1.0","type":"{kind}","source":"/s","id":"{id}"}}"#)
            })
            .collect();
        let told = [
            json!({"id": "0", "source": "/s", "position": "g1.s0.7", "duplicate": false}),
            json!({"id": "1", "source": "/s", "position": null, "duplicate": false}),
            json!(null),
            json!({"id": "3", "source": "/s", "position": "g1.s2.7", "duplicate": true}),
        ];
        let answer = server
            .post("", BATCH, format!("[{}]", events.join(",")).as_bytes())
            .await;
        assert_eq!((answer.status, answer.problem().as_str()), (503, problem));
        assert!(answer.header("retry-after").is_some());
        assert_eq!(answer.json()["receipts"], json!(told), "{answer:?}");
        // Lines are told one by one.
        let answer = server
            .post(
                "",
                "Content-Type: application/x-ndjson\r\n",
                events.join("\n").as_bytes(),
            )
            .await;
        assert_eq!((answer.status, answer.problem().as_str()), (503, problem));
        let json = answer.json();
        let lines = json["receipts"].as_array().unwrap();
        for (line, told) in lines.iter().zip(&told) {
            match told {
                Value::Null => assert_eq!(
                    (&line["line"], &line["problem"]["status"]),
                    (&json!(3), &json!(503))
                ),
                told => assert_eq!(line, told),
            }
        }
        assert_eq!(lines.len(), 4);
    }
    let counted = (
        server.metrics.events_accepted.get(),
        server.metrics.events_duplicate.get(),
    );
    assert_eq!(
        counted,
        (6, 6),
        "what is stored is counted, each time it was answered"
    );
}

#[tokio::test]
async fn paths_and_methods_that_do_not_exist_are_problems_too() {
    let server = Running::start(Setup::default()).await;
    for (head, status, problem) in [
        ("GET /nothing HTTP/1.1\r\n", 404, "not-found"),
        ("POST /problems HTTP/1.1\r\n", 405, "method-not-allowed"),
        ("GET /problems/nothing HTTP/1.1\r\n", 404, "not-found"),
    ] {
        let answer = server.send(head, b"").await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (status, problem),
            "{head}"
        );
    }
    let page = server
        .send("GET /problems/no-route HTTP/1.1\r\n", b"")
        .await;
    assert_eq!(page.status, 200);
    assert!(String::from_utf8(page.body).unwrap().contains("routes"));
}
