//! The proxy between a client and a receiver, both as plain as can be.

use std::num::NonZeroU64;

use super::*;

/// How long nothing coming means that nothing comes.
const SILENCE: Duration = Duration::from_millis(200);

const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi";

const ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

/// A receiver that answers each request of the one kind, and counts them.
async fn receiver() -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::<AtomicU64>::default();
    let count = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut request = [0; REQUEST.len()];
                while stream.read_exact(&mut request).await.is_ok() {
                    assert_eq!(request, REQUEST, "a request arrives as it was sent");
                    count.fetch_add(1, Ordering::SeqCst);
                    if stream.write_all(ANSWER).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, requests)
}

async fn proxy_before(destination: SocketAddr) -> FaultProxy {
    FaultProxy::start(destination, Protocol::Http)
        .await
        .unwrap()
}

async fn connect(proxy: &FaultProxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

async fn answer(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut answer = vec![0; ANSWER.len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

async fn exchange(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    stream.write_all(REQUEST).await?;
    answer(stream).await
}

#[tokio::test]
async fn without_a_fault_everything_passes() {
    let (destination, requests) = receiver().await;
    let proxy = proxy_before(destination).await;
    let mut stream = connect(&proxy).await;
    for _ in 0..3 {
        assert_eq!(exchange(&mut stream).await.unwrap(), ANSWER);
    }
    assert_eq!(requests.load(Ordering::SeqCst), 3);
    let counts = Counts {
        connections: 1,
        answers: 3,
        lost: 0,
    };
    assert_eq!(proxy.counts(), counts);
}

#[tokio::test]
async fn a_cut_breaks_what_is_open_and_what_comes() {
    let (destination, requests) = receiver().await;
    let proxy = proxy_before(destination).await;
    let mut open = connect(&proxy).await;
    exchange(&mut open).await.unwrap();
    proxy.set(Fault::Cut);
    assert!(open.read_u8().await.is_err());
    // It may be broken before its first byte is written.
    for _ in 0..3 {
        if let Ok(mut new) = TcpStream::connect(proxy.address()).await {
            assert!(exchange(&mut new).await.is_err());
        }
    }
    proxy.set(Fault::None);
    exchange(&mut connect(&proxy).await).await.unwrap();
    assert_eq!(requests.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_stall_ends_where_it_began() {
    let (destination, requests) = receiver().await;
    let proxy = proxy_before(destination).await;
    let mut stream = connect(&proxy).await;
    proxy.set(Fault::Stall);
    stream.write_all(REQUEST).await.unwrap();
    let silence = tokio::time::timeout(SILENCE, stream.read_u8()).await;
    assert!(silence.is_err(), "{silence:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    proxy.set(Fault::None);
    assert_eq!(answer(&mut stream).await.unwrap(), ANSWER);
}

#[tokio::test]
async fn a_drip_and_a_delay_take_their_time_and_end_at_once_with_the_fault() {
    let (destination, _) = receiver().await;
    let proxy = proxy_before(destination).await;
    let mut stream = connect(&proxy).await;
    for (fault, least) in [
        (
            Fault::Drip(Duration::from_millis(1)),
            REQUEST.len() + ANSWER.len(),
        ),
        (Fault::Delay(Duration::from_millis(20)), 40),
    ] {
        proxy.set(fault);
        let begun = tokio::time::Instant::now();
        assert_eq!(exchange(&mut stream).await.unwrap(), ANSWER);
        let took = begun.elapsed().as_millis();
        assert!(took >= least as u128, "{fault:?} took {took} ms");
    }
    // Longer than any test: that it ends is the proof.
    proxy.set(Fault::Delay(Duration::from_secs(3_600)));
    stream.write_all(REQUEST).await.unwrap();
    proxy.set(Fault::None);
    assert_eq!(answer(&mut stream).await.unwrap(), ANSWER);
}

#[tokio::test]
async fn a_corrupt_answer_is_another_and_its_request_was_whole() {
    let (destination, requests) = receiver().await;
    let proxy = proxy_before(destination).await;
    proxy.set(Fault::Corrupt);
    let answer = exchange(&mut connect(&proxy).await).await.unwrap();
    assert_ne!(answer, ANSWER);
    assert_eq!(answer[1..], ANSWER[1..]);
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_answer_is_lost_after_the_destination_had_the_request() {
    let (destination, requests) = receiver().await;
    let proxy = proxy_before(destination).await;
    let one_in = NonZeroU64::new(3).unwrap();
    proxy.set(Fault::LoseAnswers { one_in });
    let mut lost = 0;
    let mut stream = connect(&proxy).await;
    for _ in 0..30 {
        if exchange(&mut stream).await.is_err() {
            lost += 1;
            stream = connect(&proxy).await;
        }
    }
    assert_eq!(lost, 10);
    assert_eq!(requests.load(Ordering::SeqCst), 30);
    let counts = proxy.counts();
    assert_eq!((counts.answers, counts.lost), (30, 10));
}

#[tokio::test]
async fn a_destination_that_is_not_there_breaks_the_connection() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let proxy = proxy_before(nobody).await;
    assert!(exchange(&mut connect(&proxy).await).await.is_err());
}

#[tokio::test]
async fn dropping_it_ends_its_connections() {
    let (destination, _) = receiver().await;
    let proxy = proxy_before(destination).await;
    let mut stream = connect(&proxy).await;
    exchange(&mut stream).await.unwrap();
    drop(proxy);
    let ended = stream.read_u8().await;
    assert!(ended.is_err(), "{ended:?}");
}
