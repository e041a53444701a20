//! A webhook receiver that is well, refuses everything, is slow, or forgets. What it confirms it remembers,
//! in the order of its confirmations.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpListener;

use super::proof::Step;

/// How long a slow receiver thinks about each event.
const SLOW: Duration = Duration::from_millis(60);

/// A forgetful receiver forgets one confirmation in so many.
const FORGETS_ONE_IN: u64 = 100;

/// How the receiver feels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Confirms at once.
    Well,
    /// Answers 503 to everything.
    Failing,
    /// Confirms, but takes its time.
    Slow,
    /// Confirms everything and forgets some of it: what a judge must find.
    Forgetful,
}

/// The receiver, from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Receiver {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    mood: Mood,
    confirmed: Vec<Step>,
    rejected: u64,
    forgotten: u64,
}

/// What the checker needs of an event's data.
#[derive(Deserialize)]
pub struct Told {
    /// The order.
    pub order: u64,
    /// The step.
    pub step: u32,
}

impl Receiver {
    /// Listens on a free loopback port until the process ends.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let receiver = Self {
            address: listener.local_addr()?,
            state: Arc::new(Mutex::new(State {
                mood: Mood::Well,
                confirmed: Vec::new(),
                rejected: 0,
                forgotten: 0,
            })),
        };
        let serving = receiver.clone();
        tokio::spawn(async move { serving.serve(listener).await });
        Ok(receiver)
    }

    /// Where events are to be sent.
    pub fn url(&self) -> String {
        format!("http://{}/events", self.address)
    }

    /// The port of that place.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how it feels.
    pub fn feel(&self, mood: Mood) {
        self.with(|state| state.mood = mood);
    }

    /// What it confirmed, in order.
    pub fn confirmed(&self) -> Vec<Step> {
        self.with(|state| state.confirmed.clone())
    }

    /// How many confirmations and how many refusals it gave.
    pub fn counts(&self) -> (u64, u64) {
        self.with(|state| (state.confirmed.len() as u64, state.rejected))
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn serve(self, listener: TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors for a moment; the sender tries again.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let receiver = self.clone();
            tokio::spawn(async move {
                let service = service_fn(|request| receiver.answer(request));
                // A connection that breaks is the sender's to notice.
                let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                drop(served.await);
            });
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let mut response = Response::new(Full::default());
        let told = request
            .into_body()
            .collect()
            .await
            .ok()
            .and_then(|body| serde_json::from_slice::<Told>(&body.to_bytes()).ok());
        let Some(Told { order, step }) = told else {
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return Ok(response);
        };
        if self.with(|state| state.mood) == Mood::Slow {
            tokio::time::sleep(SLOW).await;
        }
        let confirmed = self.with(|state| state.decide(Step { order, step }));
        *response.status_mut() = if confirmed {
            StatusCode::NO_CONTENT
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        Ok(response)
    }
}

impl State {
    /// Whether it confirms.
    fn decide(&mut self, step: Step) -> bool {
        if self.mood == Mood::Failing {
            self.rejected += 1;
            return false;
        }
        let number = self.confirmed.len() as u64 + self.forgotten + 1;
        if self.mood == Mood::Forgetful && number.is_multiple_of(FORGETS_ONE_IN) {
            self.forgotten += 1;
        } else {
            self.confirmed.push(step);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};

    use super::super::super::client::{Client, ServerArguments};
    use super::*;

    async fn post(client: &mut Client, body: &'static str) -> u16 {
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("/events");
        client.request(request).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn only_what_it_confirmed_is_remembered() {
        let receiver = Receiver::start().await.unwrap();
        let server = receiver.url().replace("/events", "").parse().unwrap();
        let token_file = None;
        let mut client = Client::new(&ServerArguments { server, token_file }).unwrap();
        assert_eq!(post(&mut client, r#"{"order":1,"step":1}"#).await, 204);
        receiver.feel(Mood::Failing);
        assert_eq!(post(&mut client, r#"{"order":1,"step":2}"#).await, 503);
        receiver.feel(Mood::Slow);
        assert_eq!(post(&mut client, r#"{"order":1,"step":2}"#).await, 204);
        assert_eq!(post(&mut client, "{}").await, 400);
        let confirmed = [(1, 1), (1, 2)].map(|(order, step)| Step { order, step });
        assert_eq!(receiver.confirmed(), confirmed);
        assert_eq!(receiver.counts(), (2, 1));
    }
}
