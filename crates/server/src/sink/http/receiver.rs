//! A receiver for tests: a real HTTP server on loopback that keeps what it was sent and answers as the test
//! says.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).map(|value| value.to_str().unwrap());
        value.unwrap_or_default()
    }
}

/// Answers as the test says; it ends with the test.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Receiver {
    /// A receiver that answers every request with what `answer` makes of it: status and body.
    pub(crate) async fn start(
        answer: impl Fn(&Seen) -> (u16, String) + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let log = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, log) = (answer.clone(), Arc::clone(&log));
                let service = service_fn(move |request| {
                    let (answer, log) = (answer.clone(), Arc::clone(&log));
                    async move {
                        let seen = seen_of(request).await;
                        log.lock().unwrap().push(seen.clone());
                        let (status, body) = answer(&seen);
                        let response = Response::builder().status(status);
                        response.body(Full::new(Bytes::from(body)))
                    }
                });
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self {
            address,
            seen,
            task,
        }
    }

    /// What came so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn seen_of(request: http::Request<Incoming>) -> Seen {
    let (head, body) = request.into_parts();
    Seen {
        method: head.method,
        uri: head.uri,
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}
