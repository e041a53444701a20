//! NDJSON: independent lines, results in order, the status of the worst.

use wayhold::config::Limits;

use crate::support::{Running, Setup};

const LINES: &str = "Content-Type: application/x-ndjson\r\n";

fn line(id: usize) -> String {
    format!(r#"{{"specversion":"1.0","type":"t","source":"/s","id":"{id}","data":{{"n":{id}}}}}"#)
}

#[tokio::test]
async fn every_line_has_its_result_in_order_and_bad_ones_do_not_stop_the_rest() {
    let server = Running::start(Setup::default()).await;
    let mut lines: Vec<_> = (1..=2500).map(line).collect();
    lines[6] = "{".into();
    lines[1999] = line(2000).replace("\"t\"", "\"\"");
    let answer = server.post("", LINES, lines.join("\n").as_bytes()).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (400, "malformed-body")
    );
    let json = answer.json();
    let receipts = json["receipts"].as_array().unwrap();
    assert_eq!(receipts.len(), 2500);
    for (number, receipt) in (1..).zip(receipts) {
        match number {
            7 => assert_eq!(
                (&receipt["line"], &receipt["problem"]["offset"]),
                (&7.into(), &1.into())
            ),
            2000 => assert_eq!(
                (&receipt["line"], &receipt["problem"]["field"]),
                (&2000.into(), &"type".into())
            ),
            _ => assert_eq!(receipt["id"], number.to_string()),
        }
    }
    assert_eq!(server.accepted(), 2498);
}

#[tokio::test]
async fn windows_line_ends_blank_lines_and_a_missing_last_end_are_fine() {
    let server = Running::start(Setup::default()).await;
    let body = format!("{}\r\n\r\n{}", line(1), line(2));
    let answer = server.post("", LINES, body.as_bytes()).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(answer.json()["receipts"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn limits_on_lines_bytes_and_one_line_hold() {
    let limits = Limits {
        ndjson_bytes: 4096,
        ndjson_lines: 20,
        slice_bytes: 512,
        slice_lines: 4,
        ..Limits::default()
    };
    let server = Running::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let lines = |count: usize| (0..count).map(|n| line(n) + "\n").collect::<String>();

    let long = format!("{}\n{}\n{}\n", line(1), "x".repeat(600), line(2));
    let answer = server.post("", LINES, long.as_bytes()).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (413, "too-large")
    );
    assert_eq!(answer.json()["receipts"].as_array().unwrap().len(), 3);
    assert_eq!(server.accepted(), 2);

    let answer = server.post("", LINES, lines(21).as_bytes()).await;
    assert_eq!(
        (answer.status, answer.json()["limit"].as_u64()),
        (413, Some(20))
    );
    assert_eq!(
        answer.json()["receipts"].as_array().unwrap().len(),
        20,
        "{answer:?}"
    );

    let mut connection = server.connect().await;
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nHost: localhost\r\n{LINES}Transfer-Encoding: chunked\r\n\r\n"
    );
    connection.send(head.as_bytes()).await;
    let body = format!("{}{}\n", lines(3), "x".repeat(4096));
    connection
        .send(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).as_bytes())
        .await;
    let answer = connection.answer().await.unwrap();
    assert_eq!(
        (answer.status, answer.json()["limit"].as_u64()),
        (413, Some(4096))
    );
}

#[tokio::test]
async fn a_stream_that_breaks_off_keeps_its_whole_lines() {
    let server = Running::start(Setup::default()).await;
    let mut connection = server.connect().await;
    let body = format!("{}\n{}\n{}", line(1), line(2), &line(3)[..20]);
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nHost: localhost\r\n{LINES}Content-Length: 9999\r\n\r\n"
    );
    connection.send(head.as_bytes()).await;
    connection.send(body.as_bytes()).await;
    tokio::io::AsyncWriteExt::shutdown(&mut connection.stream)
        .await
        .unwrap();
    drop(connection.rest().await);
    for _ in 0..200 {
        if server.accepted() == 2 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(server.accepted(), 2);
}

#[tokio::test]
async fn conflicts_concern_their_line_alone_and_keep_the_order_of_the_others() {
    let server = Running::start(Setup::default()).await;
    let mut lines: Vec<_> = (0..20).map(line).collect();
    // A repeat, and others of a known id: at the start, in the middle twice, at the end.
    lines[4] = line(3);
    for (at, id) in [(7, 6), (8, 6), (19, 2)] {
        lines[at] = line(id)
            .replace("data", "subject")
            .replace(&format!("{{\"n\":{id}}}"), "\"x\"");
    }
    let first = lines[0]
        .replace("data", "subject")
        .replace("{\"n\":0}", "\"x\"");
    server.post("", LINES, first.as_bytes()).await;
    let answer = server.post("", LINES, lines.join("\n").as_bytes()).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (409, "event-conflict")
    );
    let json = answer.json();
    for (at, receipt) in json["receipts"].as_array().unwrap().iter().enumerate() {
        match at {
            0 | 7 | 8 | 19 => {
                assert_eq!(
                    receipt["problem"]["type"], "/problems/event-conflict",
                    "{at} {json}"
                );
                assert!(receipt["problem"]["position"].is_string());
            }
            _ => assert_eq!(receipt["duplicate"], at == 4, "{at} {receipt}"),
        }
    }
    let kept: Vec<_> = server
        .memory
        .events
        .lock()
        .unwrap()
        .iter()
        .map(|event| event.id().to_owned())
        .collect();
    let expected: Vec<_> = (0..19)
        .filter(|at| ![4, 7, 8].contains(at))
        .map(|at| at.to_string())
        .collect();
    assert_eq!(kept, expected);
}

#[tokio::test]
async fn once_there_is_no_room_nothing_overtakes_what_must_be_sent_again() {
    use wayhold_store::AppendError;
    for (error, status, problem) in [
        (AppendError::Busy, 429, "busy"),
        (
            AppendError::NoSpace {
                retry_after: std::time::Duration::from_secs(9),
            },
            503,
            "no-space",
        ),
        (
            AppendError::Unavailable { reason: "x".into() },
            503,
            "unavailable",
        ),
        (AppendError::Stopping, 503, "stopping"),
    ] {
        let limits = Limits {
            slice_lines: 10,
            ..Limits::default()
        };
        let server = Running::start(Setup {
            limits,
            ..Setup::default()
        })
        .await;
        *server.memory.remaining.lock().unwrap() = Some((2, error));
        let mut lines: Vec<_> = (0..50).map(line).collect();
        lines[3] = "{}".into();
        let answer = server.post("", LINES, lines.join("\n").as_bytes()).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (status, problem)
        );
        assert!(answer.header("retry-after").is_some());
        let json = answer.json();
        let receipts = json["receipts"].as_array().unwrap();
        assert_eq!(receipts.len(), 50);
        for (at, receipt) in receipts.iter().enumerate() {
            assert_eq!(receipt["position"].is_string(), at < 20 && at != 3, "{at}");
        }
        assert_eq!(server.accepted(), 19);
    }
}
