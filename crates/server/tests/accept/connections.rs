//! Slow and silent clients, too many of them, and the stop with all of them open.

use std::time::{Duration, Instant};

use wayhold::config::Limits;

use crate::support::{Running, Setup, request};

fn impatient() -> Setup {
    let limits = Limits {
        first_byte_timeout: Duration::from_millis(300),
        header_timeout: Duration::from_millis(600),
        body_rate_window: Duration::from_millis(600),
        idle_timeout: Duration::from_millis(900),
        ..Limits::default()
    };
    Setup {
        limits,
        ..Setup::default()
    }
}

#[tokio::test]
async fn silent_slow_and_idle_connections_are_closed_and_honest_ones_are_not() {
    let server = Running::start(impatient()).await;
    let honest = request("POST /v1/events?type=t HTTP/1.1\r\n", b"1");
    let mut silent = server.connect().await;
    let mut half_head = server.connect().await;
    half_head.send(b"POST /v1/ev").await;
    let mut half_body = server.connect().await;
    half_body
        .send(b"POST /v1/events?type=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n1")
        .await;
    let mut idle = server.connect().await;
    idle.send(&honest).await;
    assert_eq!(idle.answer().await.unwrap().status, 202);
    let closing = async {
        for connection in [&mut silent, &mut half_head, &mut half_body, &mut idle] {
            assert_eq!(connection.rest().await, b"");
        }
    };
    // Never silent for longer than an answer takes, on the runtime that also runs the server: between two
    // looks of the watchdog it gets its turn, however busy the machine is.
    let mut busy = server.connect().await;
    let sending = async {
        loop {
            busy.send(&honest).await;
            assert_eq!(busy.answer().await.unwrap().status, 202);
        }
    };
    tokio::select! {
        () = closing => {}
        () = sending => {}
    }
}

#[tokio::test]
async fn a_head_that_trickles_in_is_closed_all_the_same() {
    let server = Running::start(impatient()).await;
    let mut connection = server.connect().await;
    let started = Instant::now();
    for byte in b"POST /v1/events HTTP/1.1\r\nX-Padding: "
        .iter()
        .chain([b'x'; 10_000].iter())
    {
        connection.send(&[*byte]).await;
        let mut probe = [0];
        let read = connection.stream.try_read(&mut probe);
        if matches!(read, Ok(0))
            || read.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
        {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(15), "still open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the head was read to its end");
}

#[tokio::test]
async fn one_address_has_only_so_many_connections() {
    let limits = Limits {
        connections_per_address: 2,
        ..Limits::default()
    };
    let server = Running::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let honest = request("POST /v1/events?type=t HTTP/1.1\r\n", b"1");
    let mut first = server.connect().await;
    first.send(&honest).await;
    assert_eq!(first.answer().await.unwrap().status, 202);
    let mut second = server.connect().await;
    second.send(&honest).await;
    assert_eq!(second.answer().await.unwrap().status, 202);
    let mut third = server.connect().await;
    third.send(&honest).await;
    assert!(third.answer().await.is_none());
}

#[tokio::test]
async fn the_stop_answers_what_is_unfinished_and_does_not_wait_for_the_idle() {
    let server = Running::start(Setup::default()).await;
    let mut silent = server.connect().await;
    let mut idle = server.connect().await;
    idle.send(&request("POST /v1/events?type=t HTTP/1.1\r\n", b"1"))
        .await;
    assert_eq!(idle.answer().await.unwrap().status, 202);
    let mut unfinished = server.connect().await;
    unfinished.send(b"POST /v1/events?type=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n").await;
    // The invitation to go on shows that the request is being read.
    let mut invitation = [0; 25];
    tokio::io::AsyncReadExt::read_exact(&mut unfinished.stream, &mut invitation)
        .await
        .unwrap();
    assert!(invitation.starts_with(b"HTTP/1.1 100"));
    let stopped = tokio::spawn(server.server.stop(Duration::from_secs(10)));
    let answer = unfinished.answer().await.unwrap();
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (503, "stopping")
    );
    assert!(answer.header("retry-after").is_some());
    assert_eq!(idle.rest().await, b"");
    assert_eq!(silent.rest().await, b"");
    tokio::time::timeout(Duration::from_secs(5), stopped)
        .await
        .expect("no waiting")
        .unwrap();
}

#[tokio::test]
async fn a_panic_ends_one_request_and_is_counted() {
    let server = Running::start(Setup::default()).await;
    *server.memory.panics.lock().unwrap() = true;
    let answer = server.post("?type=t", "", b"1").await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (500, "internal")
    );
    assert_eq!(server.metrics.panics.get(), 1);
    *server.memory.panics.lock().unwrap() = false;
    assert_eq!(server.post("?type=t", "", b"1").await.status, 202);
}

#[tokio::test]
async fn a_unix_socket_serves_too_and_an_abandoned_one_is_replaced() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wayhold.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Running::start_on(&format!("unix:{}", path.display()), Setup::default()).await;
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream
        .write_all(&request("POST /v1/events?type=t HTTP/1.1\r\n", b"1"))
        .await
        .unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 202");
    server.server.stop(Duration::from_secs(5)).await;
    assert!(!path.exists());
}
