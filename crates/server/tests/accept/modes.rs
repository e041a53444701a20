//! The five ways of writing events, by the vectors of the CloudEvents specification.

use serde_json::json;
use wayhold_model::condition::Condition;
use wayhold_model::route::RouteRule;

use crate::support::{Running, Setup, gzip};

const STRUCTURED: &str = "Content-Type: application/cloudevents+json; charset=utf-8\r\n";
const BATCH: &str = "Content-Type: application/cloudevents-batch+json\r\n";

#[tokio::test]
async fn each_mode_gets_a_receipt() {
    let event = r#"{"specversion":"1.0","type":"com.example.someevent","source":"/mycontext",
        "id":"C234-1234-1234","time":"2018-04-05T17:31:00Z","comexampleother":5,
        "datacontenttype":"application/json","data":{"a":"abc"}}"#;
    let batch = format!("[{event},{}]", event.replace("C234", "D345"));
    for (query, headers, body, ids) in [
        ("", STRUCTURED, event.to_owned(), vec!["C234-1234-1234"]),
        ("", BATCH, batch, vec!["C234-1234-1234", "D345-1234-1234"]),
        ("", BATCH, "[]".to_owned(), vec![]),
        (
            "",
            "ce-specversion: 1.0\r\nce-type: t\r\nce-source: /mycontext\r\nce-id: 7\r\n\
             Content-Type: application/json\r\n",
            r#"{"a":"abc"}"#.to_owned(),
            vec!["7"],
        ),
        (
            "",
            "Content-Type: application/x-ndjson\r\n",
            format!("{}\n\n", event.replace('\n', " ")),
            vec!["C234-1234-1234"],
        ),
        (
            "?type=t&id=9&source=/mycontext",
            "",
            r#"{"order":42}"#.to_owned(),
            vec!["9"],
        ),
    ] {
        let server = Running::start(Setup::default()).await;
        let answer = server.post(query, headers, body.as_bytes()).await;
        assert_eq!(answer.status, 202, "{headers}{answer:?}");
        let receipts = answer.json()["receipts"].as_array().unwrap().clone();
        let got: Vec<_> = receipts
            .iter()
            .map(|receipt| receipt["id"].as_str().unwrap())
            .collect();
        assert_eq!(got, ids);
        for receipt in receipts {
            assert_eq!(receipt["source"], "/mycontext");
            assert_eq!(receipt["duplicate"], false);
            assert!(receipt["position"].as_str().unwrap().starts_with("g1.s0."));
        }
    }
}

#[tokio::test]
async fn curl_needs_only_a_type() {
    let server = Running::start(Setup::default()).await;
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let answer = server
        .post("?type=order.created&key=42", form, br#"{"order":42}"#)
        .await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let receipt = &answer.json()["receipts"][0];
    assert_eq!(receipt["source"], "/plain");
    let id = receipt["id"].as_str().unwrap();
    assert_eq!(
        (id.len(), id.as_bytes()[14]),
        (36, b'7'),
        "a UUID of version 7: {id}"
    );
    let event = server.last();
    assert_eq!(
        (event.key(), event.subject(), event.extensions_text()),
        (Some("42"), "", "")
    );
    assert_eq!(
        (event.content_type(), event.data().as_ref()),
        ("application/json", br#"{"order":42}"#.as_slice())
    );
    let again = server
        .post("?type=order.created&key=42", form, br#"{"order":42}"#)
        .await;
    assert_ne!(again.json()["receipts"][0]["id"], receipt["id"]);
}

#[tokio::test]
async fn an_idempotency_key_is_the_id_with_or_without_quotes() {
    let server = Running::start(Setup::default()).await;
    for header in [
        "Idempotency-Key: \"8e03978e\"\r\n",
        "Idempotency-Key: 8e03978e\r\n",
    ] {
        let answer = server.post("?type=t", header, b"1").await;
        assert_eq!(answer.json()["receipts"][0]["id"], "8e03978e");
    }
    let both = server
        .post("?type=t&id=other", "Idempotency-Key: 8e03978e\r\n", b"1")
        .await;
    assert_eq!(
        (both.status, both.problem().as_str()),
        (400, "invalid-request")
    );
}

#[tokio::test]
async fn header_values_are_decoded_once() {
    let server = Running::start(Setup::default()).await;
    let headers = "ce-specversion: 1.0\r\nce-type: t\r\nce-source: /s\r\n\
         ce-id: Euro%20%E2%82%AC%20%F0%9F%98%80\r\n";
    let answer = server.post("", headers, b"").await;
    assert_eq!(answer.json()["receipts"][0]["id"], "Euro € 😀");
}

#[tokio::test]
async fn a_gzip_body_is_expanded() {
    let server = Running::start(Setup::default()).await;
    let body = gzip(br#"{"order":42}"#);
    let answer = server
        .post("?type=t", "Content-Encoding: gzip\r\n", &body)
        .await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let cut = server
        .post(
            "?type=t",
            "Content-Encoding: gzip\r\n",
            &body[..body.len() - 3],
        )
        .await;
    assert_eq!(
        (cut.status, cut.problem().as_str()),
        (400, "invalid-request")
    );
}

#[tokio::test]
async fn lenient_mode_lowers_attribute_names() {
    let body =
        br#"{"specversion":"1.0","type":"t","source":"/s","id":"1","subscriptionReference":"x"}"#;
    let strict = Running::start(Setup::default()).await;
    let answer = strict.post("", STRUCTURED, body).await;
    assert_eq!(
        (answer.status, answer.json()["field"].clone()),
        (400, json!("subscriptionReference"))
    );
    let setup = Setup {
        mode: wayhold::config::ParseMode::Lenient,
        ..Setup::default()
    };
    let lenient = Running::start(setup).await;
    assert_eq!(lenient.post("", STRUCTURED, body).await.status, 202);
}

#[tokio::test]
async fn every_octet_is_data_unless_json_is_claimed() {
    let server = Running::start(Setup::default()).await;
    let binary = "ce-specversion: 1.0\r\nce-type: t\r\nce-source: /s\r\nce-id: 1\r\n";
    let octets = format!("{binary}Content-Type: application/octet-stream\r\n");
    assert_eq!(server.post("", &octets, b"\"a\xffb\"").await.status, 202);
    let claimed = format!("{binary}Content-Type: application/json\r\n");
    let refused = server.post("", &claimed, b"\"a\xffb\"").await;
    assert_eq!(refused.status, 400);
    assert_eq!(
        (refused.problem().as_str(), refused.json()["offset"].clone()),
        ("malformed-body", json!(2))
    );
}

#[tokio::test]
async fn what_no_route_wants_is_refused_kept_or_ignored() {
    use wayhold::config::Unmatched;
    for (unmatched, status, counts) in [
        (Unmatched::Refuse, 422, (0, 0)),
        (Unmatched::Keep, 202, (1, 0)),
        (Unmatched::Ignore, 202, (0, 1)),
    ] {
        let when = Condition::compile("type == 'wanted'").unwrap();
        let routes = vec![RouteRule {
            name: "wanted".into(),
            when: Some(when),
            to: vec![],
        }];
        let server = Running::start(Setup {
            unmatched,
            routes,
            ..Setup::default()
        })
        .await;
        let answer = server.post("?type=other", "", b"1").await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(
            (server.accepted(), server.metrics.events_ignored.get()),
            counts
        );
        match unmatched {
            Unmatched::Refuse => {
                assert_eq!(answer.problem(), "no-route");
                assert_eq!(answer.json()["routes"], json!(["wanted"]));
            }
            Unmatched::Keep => assert!(answer.json()["receipts"][0]["position"].is_string()),
            Unmatched::Ignore => assert!(answer.json()["receipts"][0]["position"].is_null()),
        }
    }
}

#[tokio::test]
async fn data_stays_byte_for_byte() {
    let server = Running::start(Setup::default()).await;
    let event = |rest: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"{}","source":"/s","type":"t",{rest}}}"#,
            rest.len()
        )
    };
    for (rest, content_type, data) in [
        (
            r#""data": { "a" : [1 , 2.50, 1e400] ,"b":"\u00e9\u0000" } "#,
            "application/json",
            r#"{ "a" : [1 , 2.50, 1e400] ,"b":"\u00e9\u0000" }"#,
        ),
        (r#""data":null"#, "application/json", "null"),
        (r#""data":"text""#, "application/json", r#""text""#),
        (
            r#""datacontenttype":"application/vnd.x+json","data":"{}""#,
            "application/vnd.x+json",
            r#""{}""#,
        ),
        (
            r#""data":"a\u00e9\u0000\n","datacontenttype":"text/plain""#,
            "text/plain",
            "aé\0\n",
        ),
        (
            r#""datacontenttype":"text/xml","data":"<a/>""#,
            "text/xml",
            "<a/>",
        ),
        (r#""data_base64":"aGVsbG8=""#, "", "hello"),
        (r#""datacontenttype":null,"subject":null"#, "", ""),
    ] {
        let answer = server.post("", STRUCTURED, event(rest).as_bytes()).await;
        assert_eq!(answer.status, 202, "{rest} {answer:?}");
        let kept = server.last();
        assert_eq!(
            (kept.content_type(), kept.data().as_ref()),
            (content_type, data.as_bytes()),
            "{rest}"
        );
    }
}

#[tokio::test]
async fn the_trace_of_the_request_becomes_the_events_where_it_has_none() {
    let server = Running::start(Setup::default()).await;
    let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=1\r\n";
    server.post("?type=t", trace, b"1").await;
    assert_eq!(
        server.last().extensions_text(),
        r#"{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"a=1"}"#
    );
    server
        .post("?type=t", &format!("{trace}ce-traceparent: mine\r\n"), b"1")
        .await;
    assert_eq!(server.last().extensions_text(), r#"{"traceparent":"mine"}"#);
    server
        .post("?type=t", "traceparent: 00-bad\r\n", b"1")
        .await;
    assert_eq!(server.last().extensions_text(), "");
}

#[tokio::test]
async fn a_repeat_gets_the_first_receipt_and_another_event_of_that_id_a_conflict() {
    let server = Running::start(Setup::default()).await;
    let first = server.post("?type=t&id=1", "", b"1").await;
    let again = server.post("?type=t&id=1", "", b"1").await;
    assert_eq!(again.status, 202);
    let (first, again) = (
        first.json()["receipts"][0].clone(),
        again.json()["receipts"][0].clone(),
    );
    assert_eq!(
        (&again["position"], &again["duplicate"]),
        (&first["position"], &json!(true))
    );
    let other = server.post("?type=t&id=1", "", b"2").await;
    assert_eq!(
        (other.status, other.problem().as_str()),
        (409, "event-conflict")
    );
    assert_eq!(other.json()["position"], first["position"]);
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn published_payloads_are_accepted_as_they_are() {
    let folder = std::env::var("TEST_DATA_DIR").map_or_else(
        |_| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        std::path::PathBuf::from,
    );
    if !folder.is_dir() {
        let missing = format!(
            "published payloads because {} does not exist",
            folder.display()
        );
        assert!(
            std::env::var_os("WAYHOLD_TESTS_REQUIRE_ALL").is_none(),
            "{missing}"
        );
        println!("skipped: {missing}");
        return;
    }
    let server = Running::start(Setup::default()).await;
    let mut folders = vec![folder.join("github-webhooks"), folder.join("dcsa")];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                let body = std::fs::read(&path).unwrap();
                let answer = server
                    .post("?type=t", "Content-Type: application/json\r\n", &body)
                    .await;
                let well_formed = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok();
                assert_eq!(
                    answer.status == 202,
                    well_formed,
                    "{}: {answer:?}",
                    path.display()
                );
                if well_formed {
                    assert_eq!(server.last().data().as_ref(), body, "{}", path.display());
                    count += 1;
                }
            }
        }
    }
    assert!(count > 300, "{count}");
}
