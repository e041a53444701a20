//! A server in the other one's place, for tests: it stores batches as that one does, and answers as the test says
//! where the test says something.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::clock::SystemClock;
use crate::config::{Environment, Overrides, SinkConfig, load};
use crate::sink::wayhold::ForwardSink;

/// What the test says to a batch: status, `Retry-After`, body; or nothing.
pub(super) type Said = Option<(u16, Option<u64>, String)>;

type Script = Box<dyn FnMut(&[Value]) -> Said + Send>;

/// A running server; it ends with the test.
pub(super) struct Centre {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    script: Mutex<Script>,
    stored: Mutex<Stored>,
}

#[derive(Default)]
struct Stored {
    events: Vec<String>,
    known: HashSet<String>,
    batches: Vec<usize>,
    headers: HeaderMap,
}

impl Centre {
    /// Stores everything.
    pub(super) async fn start() -> Self {
        Self::answering(|_| None).await
    }

    /// Stores the batches to which the test says nothing.
    pub(super) async fn answering(script: impl FnMut(&[Value]) -> Said + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Mutex::new(Box::new(script)),
            stored: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = Arc::clone(&serving);
                let service = service_fn(move |request| {
                    let serving = Arc::clone(&serving);
                    async move { serving.answer(request).await }
                });
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self {
            address,
            shared,
            task,
        }
    }

    /// The sink of a destination at this server, with these keys more.
    pub(super) fn sink(&self, keys: &str) -> ForwardSink {
        sink_at(self.address, keys)
    }

    /// What is stored, each event as it came, in order.
    pub(super) fn stored(&self) -> Vec<String> {
        self.shared.stored.lock().unwrap().events.clone()
    }

    /// The ids of what is stored.
    pub(super) fn ids(&self) -> Vec<String> {
        let id = |text: &String| {
            let event: Value = serde_json::from_str(text).unwrap();
            event["id"].as_str().unwrap().to_owned()
        };
        self.stored().iter().map(id).collect()
    }

    /// The sizes of the batches that came.
    pub(super) fn batches(&self) -> Vec<usize> {
        self.shared.stored.lock().unwrap().batches.clone()
    }

    /// The headers of the batch that came last.
    pub(super) fn headers(&self) -> HeaderMap {
        self.shared.stored.lock().unwrap().headers.clone()
    }
}

impl Drop for Centre {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The sink of a destination at this address.
pub(super) fn sink_at(address: SocketAddr, keys: &str) -> ForwardSink {
    let text = format!(
        "[destinations.centre]\nkind = \"wayhold\"\nurl = \"http://{address}\"\n\
         allow_networks = [\"127.0.0.0/8\"]\n{keys}\n[[routes]]\nto = [\"centre\"]\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wayhold.toml");
    std::fs::write(&path, text).unwrap();
    let environment = Environment::new([("TOKEN", "hunter2")]);
    let loaded = load(Some(&path), &Overrides::default(), &environment)
        .unwrap_or_else(|problems| panic!("{problems}"));
    let SinkConfig::Wayhold(config) = &loaded.config.destinations[0].sink else {
        panic!("expected another Wayhold");
    };
    ForwardSink::start(config, Arc::new(SystemClock)).unwrap()
}

/// A problem as the other one tells it.
pub(super) fn problem(kind: &str, index: Option<usize>) -> String {
    json!({ "type": format!("/problems/{kind}"), "title": "t", "index": index }).to_string()
}

impl Shared {
    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, http::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let texts: Vec<&RawValue> = serde_json::from_slice(&body).unwrap();
        let events: Vec<Value> = serde_json::from_slice(&body).unwrap();
        assert_eq!(head.method, http::Method::POST);
        assert_eq!(head.uri.path(), "/v1/events");
        let mut stored = self.stored.lock().unwrap();
        stored.batches.push(events.len());
        stored.headers = head.headers;
        let said = (self.script.lock().unwrap())(&events);
        if let Some((status, wait, body)) = said {
            let mut response = Response::builder().status(status);
            if let Some(wait) = wait {
                response = response.header("retry-after", wait);
            }
            return response.body(Full::new(body.into()));
        }
        for (event, text) in events.iter().zip(&texts) {
            if stored
                .known
                .insert(format!("{} {}", event["source"], event["id"]))
            {
                stored.events.push(text.get().to_owned());
            }
        }
        let receipt = |event: &Value| json!({ "id": event["id"], "source": event["source"], "position": "g1.s0.1" });
        let receipts: Vec<Value> = events.iter().map(receipt).collect();
        let body = json!({ "receipts": receipts }).to_string();
        Response::builder().status(202).body(Full::new(body.into()))
    }
}
