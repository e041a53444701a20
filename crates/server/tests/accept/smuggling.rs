//! Requests that two readers could take differently. Each must be exactly one request or an error:
//! what follows in its shadow is never answered as a request of its own.

use crate::support::{Running, Setup};

/// What hides behind the ambiguity. If it were answered, the connection would carry a 404 for it.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn corpus() -> Vec<String> {
    let post = "POST /v1/events?type=t HTTP/1.1\r\nHost: localhost\r\n";
    let lengths = [
        "Content-Length: 1\r\nContent-Length: 47\r\n",
        "Content-Length: 47\r\nContent-Length: 1\r\n",
        "Content-Length: 1, 47\r\n",
        "Content-Length: +47\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x2f\r\n",
        "Content-Length: 4 7\r\n",
        "Content-Length: 47x\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length:\r\n",
        "Content-Length : 47\r\n",
        "Content-Length\t: 47\r\n",
        " Content-Length: 47\r\n",
        "Content\u{b}-Length: 47\r\n",
        "X: y\rContent-Length: 47\r\n",
        "X: y\0\r\nContent-Length: 47\r\n",
    ];
    let codings = [
        "chunked",
        "Chunked",
        "xchunked",
        "chunked, identity",
        "identity",
        "gzip",
        "chunked, chunked",
        "\"chunked\"",
        "\tchunked",
        "\u{b}chunked",
        "chunked\u{b}",
        "chunked;q=1",
        ", chunked",
        "cow",
        "",
    ];
    let names = [
        "Transfer-Encoding:",
        "Transfer-Encoding :",
        "transfer-encoding:",
        " Transfer-Encoding:",
        "Transfer_Encoding:",
        "X: y\nTransfer-Encoding:",
    ];
    let mut corpus: Vec<_> = lengths
        .iter()
        .map(|length| format!("{post}{length}\r\n1{HIDDEN}"))
        .collect();
    for name in names {
        for coding in codings {
            // Content-Length covers everything, the chunks end before what is hidden.
            let body = format!("1\r\n1\r\n0\r\n\r\n{HIDDEN}");
            corpus.push(format!(
                "{post}Content-Length: {}\r\n{name} {coding}\r\n\r\n{body}",
                body.len()
            ));
        }
    }
    let chunks = [
        "1;a=\"\n\"\r\n1\r\n0\r\n\r\n",
        "01\r\n1\r\n0\r\n\r\nX",
        "0x1\r\n1\r\n0\r\n\r\n",
        "+1\r\n1\r\n0\r\n\r\n",
        "-1\r\n1\r\n0\r\n\r\n",
        " 1\r\n1\r\n0\r\n\r\n",
        "1 \r\n1\r\n0\r\n\r\n",
        "1\n1\n0\n\n",
        "1\r\n1X0\r\n\r\n",
        "1\r\n11\r\n0\r\n\r\n",
        "ffffffffffffffff\r\n1\r\n0\r\n\r\n",
        "10000000000000001\r\n1\r\n0\r\n\r\n",
        "g\r\n1\r\n0\r\n\r\n",
        "\r\n1\r\n0\r\n\r\n",
    ];
    for chunk in chunks {
        corpus.push(format!("{post}Transfer-Encoding: chunked\r\n\r\n{chunk}"));
    }
    for line in [
        "POST /v1/events?type=t HTTP/1.1\nHost: localhost\nContent-Length: 1\n\n1",
        "POST /v1/events?type=t HTTP/1.1\rHost: localhost\r\n\r\n",
        "POST  /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /v1/events HTTP/1.1 \r\nHost: localhost\r\n\r\n",
        "POST /v1/events\r\n\r\n",
        "POST /v1/events HTTP/1.2\r\nHost: localhost\r\n\r\n",
        "POST /v1/events HTTP/0.9\r\nHost: localhost\r\n\r\n",
        "POST\0 /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        corpus.push(line.to_owned());
    }
    corpus
}

#[tokio::test]
async fn every_request_of_the_corpus_is_one_request_or_an_error() {
    let server = Running::start(Setup::default()).await;
    let corpus = corpus();
    assert!(corpus.len() >= 60, "{}", corpus.len());
    for bytes in corpus {
        let before = server.accepted();
        let mut connection = server.connect().await;
        connection.send(bytes.as_bytes()).await;
        tokio::io::AsyncWriteExt::shutdown(&mut connection.stream)
            .await
            .unwrap();
        let answers = String::from_utf8_lossy(&connection.rest().await).into_owned();
        let statuses: Vec<_> = answers
            .split("HTTP/1.1 ")
            .skip(1)
            .map(|answer| &answer[..3])
            .collect();
        let accepted = server.accepted() - before;
        assert!(statuses.len() <= 1, "{bytes:?} was answered {statuses:?}");
        assert!(
            accepted <= 1 && (accepted == 1) == (statuses == ["202"]),
            "{bytes:?}: {statuses:?}"
        );
    }
}

#[tokio::test]
async fn heads_beyond_the_limits_are_refused() {
    let server = Running::start(Setup::default()).await;
    let many: String = (0..101).map(|n| format!("x-{n}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(40_000));
    for headers in [many, long] {
        let answer = server.post("?type=t", &headers, b"1").await;
        assert_eq!(answer.status, 431, "{}", answer.head);
    }
    assert_eq!(server.accepted(), 0);
}
