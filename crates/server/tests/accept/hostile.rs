//! Bodies made to hurt: bombs, depth, breadth, huge numbers. Each is answered within the patience of
//! the client, which is far below what the attack would cost.

use wayhold::auth::{Principal, PrincipalKind};
use wayhold::config::Limits;

use crate::support::{Running, Setup, gzip};

#[tokio::test]
async fn a_gzip_bomb_is_refused_by_what_it_would_become() {
    // The bomb is many times either limit, so a refusal in time shows that it was not expanded.
    let limits = Limits {
        ndjson_bytes: 2 << 20,
        ..Limits::default()
    };
    let server = Running::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let bomb = gzip(&vec![b' '; 128 << 20]);
    assert!(bomb.len() < 200_000);
    for (query, headers) in [
        ("?type=t", ""),
        ("", "Content-Type: application/x-ndjson\r\n"),
    ] {
        let headers = format!("{headers}Content-Encoding: gzip\r\n");
        let answer = server.post(query, &headers, &bomb).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (413, "too-large")
        );
    }
    let principal = Principal::new("shop", PrincipalKind::Service, &["ingest".to_owned()]).unwrap();
    server.auth.create(&principal, "test").unwrap();
    let answer = server
        .post("?type=t", "Content-Encoding: gzip\r\n", &bomb)
        .await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (401, "unauthenticated")
    );
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn deep_broad_and_huge_json_is_judged_by_its_bytes() {
    let server = Running::start(Setup::default()).await;
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let members: String = (0..80_000).map(|n| format!("\"{n}\":0,")).collect();
    for (body, status) in [
        (nested(64), 202),
        (nested(65), 400),
        (nested(10_000), 400),
        ("[".repeat(1_000_000), 400),
        (r#"{"a":"#.repeat(150_000), 400),
        ("9".repeat(1_000_000), 202),
        ("9".repeat(2_000_000), 413),
        (format!("{{{members}\"end\":0}}"), 202),
        (
            r#"{"a":9007199254740993,"b":18446744073709551615,"c":1e400}"#.to_owned(),
            202,
        ),
    ] {
        let answer = server.post("?type=t", "", body.as_bytes()).await;
        assert_eq!(answer.status, status, "{} bytes: {answer:?}", body.len());
    }
}

#[tokio::test]
async fn an_envelope_of_many_members_is_refused_early() {
    let server = Running::start(Setup::default()).await;
    let members =
        |value: &str| -> String { (0..60_000).map(|n| format!(r#","e{n}":{value}"#)).collect() };
    for value in ["null", "1"] {
        let body = format!(r#"{{"specversion":"1.0"{}}}"#, members(value));
        let answer = server
            .post(
                "",
                "Content-Type: application/cloudevents+json\r\n",
                body.as_bytes(),
            )
            .await;
        assert_eq!(
            (answer.status, answer.json()["field"].as_str()),
            (400, Some("extensions"))
        );
    }
}
