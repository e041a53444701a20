//! `POST /v1/events`: sending events. Looking them up is in `lookup`.

use std::fmt::Write as _;
use std::time::Instant;

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use wayhold_model::admission::Fill;

use crate::auth::Role;
use crate::http::{Answer, Client, Events, Problem, ProblemType, RequestBody};
use crate::ingest::{self, Accepted, Mode, Refusal, push_json_string};
use crate::telemetry::metrics::Refusal as Reason;

/// `POST /v1/events`: one event, a batch, or a stream. Tokens are checked before a byte of the body is
/// read, let alone expanded.
pub(crate) async fn post(
    events: &Events,
    request: Request<Incoming>,
    client: &Client,
) -> Response<Answer> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let admit_until = match events.auth.authorise(&parts, &client.peer, Role::Ingest) {
        Ok(principal) => principal.admit_until,
        Err(problem) => {
            events.metrics.refused(Reason::NotAllowed).inc();
            return problem.to_response();
        }
    };
    let answer = match ingest::mode_of(&parts.headers) {
        Ok(Mode::Lines) => {
            return Box::pin(post_stream(events, &parts, body, client, admit_until)).await;
        }
        Ok(mode) => post_whole(events, mode, &parts, body, client, admit_until).await,
        Err(refusal) => {
            events.accept.count_refused(&refusal);
            Err(refusal.into())
        }
    };
    match answer {
        Ok(receipts) => {
            events.metrics.accept_duration.observe(started.elapsed());
            accepted(receipts)
        }
        Err(problem) => problem.to_response(),
    }
}

/// One event or a batch; gives the text of the answer.
async fn post_whole(
    events: &Events,
    mode: Mode,
    parts: &Parts,
    body: Incoming,
    client: &Client,
    admit_until: Fill,
) -> Result<String, Problem> {
    let limit = events.accept.limits().body_bytes;
    let body = match RequestBody::new(body, &parts.headers, limit, client) {
        Ok(body) => body.whole().await,
        Err(refusal) => Err(refusal),
    };
    let body = body.inspect_err(|refusal| events.accept.count_refused(refusal))?;
    let query = parts.uri.query().unwrap_or_default();
    let mut text = String::with_capacity(RECEIPT_BYTES);
    text.push_str(RECEIPTS_OPEN);
    if mode == Mode::Batch {
        for (index, accepted) in events
            .accept
            .batch(&parts.headers, query, body, admit_until)
            .await?
            .iter()
            .enumerate()
        {
            push_separator(&mut text, index == 0);
            push_receipt(&mut text, accepted);
        }
    } else {
        push_receipt(
            &mut text,
            &events
                .accept
                .one(mode, &parts.headers, query, body, admit_until)
                .await?,
        );
    }
    text.push_str("]}");
    Ok(text)
}

/// Room for the answer to one event; ids and sources are rarely longer, and then it grows.
const RECEIPT_BYTES: usize = 256;

const RECEIPTS_OPEN: &str = r#"{"receipts":["#;

/// A stream of lines: read, stored and listed slice by slice.
async fn post_stream(
    events: &Events,
    parts: &Parts,
    body: Incoming,
    client: &Client,
    admit_until: Fill,
) -> Response<Answer> {
    let small = announced_bytes(&parts.headers)
        .is_some_and(|bytes| bytes <= events.accept.limits().body_bytes);
    // A stream no larger than a batch may be costs no more memory than one.
    let place = (!small).then(|| events.streams.try_acquire());
    let Ok(_place) = place.transpose() else {
        let detail = "as many streams are being read as may be at a time";
        events.metrics.refused(Reason::Busy).inc();
        return Problem::new(ProblemType::Busy, detail).to_response();
    };
    let mut results = Results::default();
    let ended = read_stream(events, parts, body, client, admit_until, &mut results).await;
    if let Err(refusal) = &ended {
        events.accept.count_refused(refusal);
    }
    results.text.push(']');
    match ended.err().map(Problem::from).or(results.worst) {
        None => accepted(format!(r#"{{"receipts":{}}}"#, results.text)),
        Some(problem) => problem.to_response_with_member("receipts", &results.text),
    }
}

/// Bytes of the body as its events will be read, where the client says so beforehand.
fn announced_bytes(headers: &HeaderMap) -> Option<usize> {
    if headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

async fn read_stream(
    events: &Events,
    parts: &Parts,
    body: Incoming,
    client: &Client,
    admit_until: Fill,
    results: &mut Results,
) -> Result<(), Refusal> {
    let limit = events.accept.limits().ndjson_bytes;
    let mut body = RequestBody::new(body, &parts.headers, limit, client)?;
    let mut stream = events.accept.stream(
        &parts.headers,
        parts.uri.query().unwrap_or_default(),
        admit_until,
    )?;
    loop {
        let fed = match body.next().await {
            Ok(Some(piece)) => {
                stream
                    .feed(&piece, |line, result| results.push(line, result))
                    .await
            }
            Ok(None) => {
                return stream
                    .finish(|line, result| results.push(line, result))
                    .await;
            }
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = fed {
            stream.cut(|line, result| results.push(line, result)).await;
            return Err(refusal);
        }
    }
}

/// What became of a stream's lines, as the answer shows it.
struct Results {
    /// A JSON array without its closing bracket.
    text: String,
    worst: Option<Problem>,
}

impl Default for Results {
    fn default() -> Self {
        Self {
            text: String::from("["),
            worst: None,
        }
    }
}

impl Results {
    fn push(&mut self, line: usize, result: Result<Accepted, Refusal>) {
        let first = self.text.len() == 1;
        push_separator(&mut self.text, first);
        match result {
            Ok(accepted) => push_receipt(&mut self.text, &accepted),
            Err(refusal) => {
                let problem = Problem::from(refusal);
                let json = problem.to_json();
                // Writing to a String cannot fail.
                let _infallible = write!(self.text, r#"{{"line":{line},"problem":{json}}}"#);
                if self
                    .worst
                    .as_ref()
                    .is_none_or(|worst| gravity(&problem) > gravity(worst))
                {
                    self.worst = Some(problem);
                }
            }
        }
    }
}

/// Which of two statuses a stream answers with: 503 before 429 before all others.
fn gravity(problem: &Problem) -> u8 {
    match problem.status() {
        StatusCode::SERVICE_UNAVAILABLE => 2,
        StatusCode::TOO_MANY_REQUESTS => 1,
        _ => 0,
    }
}

fn accepted(text: String) -> Response<Answer> {
    let mut response = Response::new(Answer::from(text));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn push_separator(text: &mut String, first: bool) {
    if !first {
        text.push(',');
    }
}

/// `{"id","source","position","duplicate"}`; the position of an event that was ignored is `null`.
fn push_receipt(text: &mut String, accepted: &Accepted) {
    text.push_str(r#"{"id":"#);
    push_json_string(text, accepted.event.id());
    text.push_str(r#","source":"#);
    push_json_string(text, accepted.event.source());
    // Writing to a String cannot fail.
    let _infallible = match accepted.receipt {
        Some(receipt) => write!(
            text,
            r#","position":"{}","duplicate":{}}}"#,
            receipt.position, receipt.duplicate
        ),
        None => write!(text, r#","position":null,"duplicate":false}}"#),
    };
}
