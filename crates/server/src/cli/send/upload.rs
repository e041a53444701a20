//! Slices on their way: one request at a time, repeated until every line of it is stored or refused
//! for good. Requests are not overlapped: a later slice must never be stored before an earlier one
//! that the server had no room for.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use serde::Deserialize;
use tokio::time::Instant;

use super::super::client::{self, Client, NoAnswer};
use super::super::exit::{Exit, Failure};
use super::slice::{Line, Refusal};

/// First wait where the server names none; it doubles up to `WAIT_MAX`.
const WAIT_MIN: Duration = Duration::from_millis(250);

/// Longest of these waits: short enough to notice a recovery soon.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Sends slices to one server.
#[derive(Debug)]
pub struct Upload {
    client: Client,
    patience: Duration,
    answered: bool,
}

/// What became of a slice.
#[derive(Debug, Default)]
pub struct Sent {
    /// Lines stored by it.
    pub stored: u64,
    /// Lines that were stored before, with the same content.
    pub duplicates: u64,
    /// Lines refused for good.
    pub refused: Vec<Refusal>,
}

/// What the server said of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Stored,
    Duplicate,
    Refused(String),
    Later(String),
}

#[derive(Deserialize)]
struct Receipts {
    receipts: Vec<ReceiptBody>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ReceiptBody {
    Refused { problem: ProblemBody },
    Stored { duplicate: bool },
}

#[derive(Default, Deserialize)]
struct ProblemBody {
    status: Option<u16>,
    title: Option<String>,
    detail: Option<String>,
}

impl Upload {
    /// An upload that waits at most `patience` for a server without hearing good news.
    pub fn new(client: Client, patience: Duration) -> Self {
        Self {
            client,
            patience,
            answered: false,
        }
    }

    /// Sends lines until each is stored, known, or refused for good; `waiting` hears why it takes
    /// longer.
    ///
    /// # Errors
    /// When the server cannot be reached at the first request, or stays away or full for longer than
    /// the patience, or lets nobody in.
    pub async fn slice(
        &mut self,
        mut lines: Vec<Line>,
        waiting: &mut impl FnMut(&str),
    ) -> Result<Sent, Failure> {
        let mut sent = Sent::default();
        let mut wait = WAIT_MIN;
        let mut good_news = Instant::now();
        while !lines.is_empty() {
            let (failure, asked) = match self.client.request(request(&lines)).await {
                Ok(answer) => {
                    self.answered = true;
                    if is_closed(answer.status()) {
                        return Err(client::refusal(answer.status(), answer.body()));
                    }
                    let before = lines.len();
                    let later = sort(&mut lines, verdicts(&answer, before), &mut sent);
                    if lines.len() < before {
                        good_news = Instant::now();
                        wait = WAIT_MIN;
                    }
                    let reason = later.unwrap_or_default();
                    (Failure::new(Exit::Failed, reason), retry_after(&answer))
                }
                Err(no_answer) => (self.away(no_answer)?, None),
            };
            if lines.is_empty() {
                break;
            }
            let pause = asked.unwrap_or(wait);
            if good_news.elapsed() + pause >= self.patience {
                return Err(failure);
            }
            waiting(&format!("{}; trying again", failure.message));
            tokio::time::sleep(pause).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
        Ok(sent)
    }

    /// A server that never answered is a mistake in the address; one that did is away for a while.
    fn away(&self, no_answer: NoAnswer) -> Result<Failure, Failure> {
        let failure = Failure::from(no_answer);
        if self.answered {
            Ok(failure)
        } else {
            Err(failure)
        }
    }
}

fn request(lines: &[Line]) -> Request<Full<Bytes>> {
    let mut body = Vec::with_capacity(lines.iter().map(|line| line.text.len() + 1).sum());
    for line in lines {
        body.extend_from_slice(&line.text);
        body.push(b'\n');
    }
    let mut request = Request::new(Full::new(body.into()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("/v1/events");
    request.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    request
}

/// Whether the server lets this client in at all.
fn is_closed(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND
    )
}

fn comes_later(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..=599)
}

/// One verdict per line, from receipts or from a problem that concerns the whole request.
fn verdicts(answer: &Response<Bytes>, lines: usize) -> Vec<Verdict> {
    if let Ok(body) = serde_json::from_slice::<Receipts>(answer.body())
        && body.receipts.len() == lines
    {
        return body.receipts.into_iter().map(Verdict::from).collect();
    }
    let problem: ProblemBody = serde_json::from_slice(answer.body()).unwrap_or_default();
    let status = answer.status();
    let verdict = if status.is_success() {
        // Nobody can say what was stored: ask again, the ids make that harmless.
        Verdict::Later("the server's answer does not name every line".to_owned())
    } else {
        Verdict::from(ReceiptBody::Refused {
            problem: ProblemBody {
                status: Some(status.as_u16()),
                ..problem
            },
        })
    };
    vec![verdict; lines]
}

impl From<ReceiptBody> for Verdict {
    fn from(receipt: ReceiptBody) -> Self {
        match receipt {
            ReceiptBody::Stored { duplicate: false } => Self::Stored,
            ReceiptBody::Stored { duplicate: true } => Self::Duplicate,
            ReceiptBody::Refused { problem } => {
                let status = problem.status.unwrap_or(400);
                let reason = match (problem.title, problem.detail) {
                    (Some(title), Some(detail)) => format!("{title}: {detail}"),
                    (Some(words), None) | (None, Some(words)) => words,
                    (None, None) => format!("the server answered {status}"),
                };
                if comes_later(status) {
                    Self::Later(reason)
                } else {
                    Self::Refused(reason)
                }
            }
        }
    }
}

/// Counts what is settled and leaves in `lines` what must be sent again, with the reason for it.
fn sort(lines: &mut Vec<Line>, verdicts: Vec<Verdict>, sent: &mut Sent) -> Option<String> {
    let mut later = None;
    let mut again = Vec::new();
    for (line, verdict) in lines.drain(..).zip(verdicts) {
        match verdict {
            Verdict::Stored => sent.stored += 1,
            Verdict::Duplicate => sent.duplicates += 1,
            Verdict::Refused(reason) => sent.refused.push(Refusal {
                origin: line.origin,
                reason,
            }),
            Verdict::Later(reason) => {
                later.get_or_insert(reason);
                again.push(line);
            }
        }
    }
    *lines = again;
    later
}

fn retry_after(answer: &Response<Bytes>) -> Option<Duration> {
    let value = answer.headers().get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use http_body_util::BodyExt as _;
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::super::record::Origin;
    use super::*;

    fn answer(status: u16, body: &'static str) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from_static(body.as_bytes()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response
    }

    #[test]
    fn receipts_say_what_became_of_each_line() {
        let body = r#"{"receipts":[
            {"id":"1","source":"/s","position":"g1.s0.1","duplicate":false},
            {"line":2,"problem":{"type":"/problems/conflict","status":409,"title":"conflict"}},
            {"id":"3","source":"/s","position":"g1.s0.1","duplicate":true},
            {"line":4,"problem":{"status":503,"title":"no space","detail":"below min_free"}}]}"#;
        assert_eq!(
            verdicts(&answer(503, body), 4),
            [
                Verdict::Stored,
                Verdict::Refused("conflict".to_owned()),
                Verdict::Duplicate,
                Verdict::Later("no space: below min_free".to_owned()),
            ]
        );
    }

    #[test]
    fn a_problem_concerns_every_line() {
        for (status, body, expected) in [
            (
                413,
                r#"{"title":"too large"}"#,
                Verdict::Refused("too large".to_owned()),
            ),
            (
                429,
                r#"{"title":"too many"}"#,
                Verdict::Later("too many".to_owned()),
            ),
            (
                502,
                "<html>",
                Verdict::Later("the server answered 502".to_owned()),
            ),
            (
                202,
                r#"{"receipts":[]}"#,
                Verdict::Later("the server's answer does not name every line".to_owned()),
            ),
        ] {
            assert_eq!(
                verdicts(&answer(status, body), 2),
                [expected.clone(), expected]
            );
        }
    }

    #[test]
    fn only_what_comes_later_is_sent_again() {
        let mut lines = lines(&["a", "b", "c", "d"]);
        let mut sent = Sent::default();
        let later = sort(
            &mut lines,
            vec![
                Verdict::Later("full".to_owned()),
                Verdict::Stored,
                Verdict::Refused("bad".to_owned()),
                Verdict::Later("full still".to_owned()),
            ],
            &mut sent,
        );
        assert_eq!(later.as_deref(), Some("full"));
        let again: Vec<_> = lines.iter().map(|line| line.origin.line).collect();
        assert_eq!(again, [1, 4]);
        assert_eq!(
            (sent.stored, sent.duplicates, sent.refused.len()),
            (1, 0, 1)
        );
    }

    /// A server on a free port that answers each request by the script: status, `Retry-After`, and
    /// what becomes of the lines (`s`tored, `d`uplicate, `r`efused, `l`ater). It remembers the bodies.
    async fn scripted(
        script: Vec<(u16, Option<&'static str>, &'static str)>,
    ) -> (Client, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let seen = Arc::clone(&bodies);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, script) = (Arc::clone(&seen), Arc::clone(&script));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (seen, script) = (Arc::clone(&seen), Arc::clone(&script));
                    async move {
                        let body = request.into_body().collect().await?.to_bytes();
                        seen.lock()
                            .unwrap()
                            .push(String::from_utf8_lossy(&body).into_owned());
                        let (status, wait, lines) = script.lock().unwrap().pop_front().unwrap();
                        Ok::<_, hyper::Error>(scripted_answer(status, wait, lines))
                    }
                });
                drop(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await,
                );
            }
        });
        let arguments = client::ServerArguments {
            server: server.parse().unwrap(),
            token_file: None,
        };
        (Client::new(&arguments).unwrap(), bodies)
    }

    fn scripted_answer(status: u16, wait: Option<&str>, lines: &str) -> Response<Full<Bytes>> {
        let receipts: Vec<_> = lines
            .chars()
            .map(|line| match line {
                's' => json!({"id": "1", "position": "g1.s0.1", "duplicate": false}),
                'd' => json!({"id": "1", "position": "g1.s0.1", "duplicate": true}),
                'r' => json!({"line": 1, "problem": {"status": 400, "title": "bad"}}),
                _ => json!({"line": 1, "problem": {"status": 503, "title": "full"}}),
            })
            .collect();
        let mut answer = Response::new(Full::from(json!({"receipts": receipts}).to_string()));
        *answer.status_mut() = StatusCode::from_u16(status).unwrap();
        if let Some(wait) = wait {
            answer
                .headers_mut()
                .insert(RETRY_AFTER, wait.parse().unwrap());
        }
        answer
    }

    fn lines(texts: &[&str]) -> Vec<Line> {
        (1..)
            .zip(texts)
            .map(|(line, text)| Line {
                origin: Origin::new("a".as_ref(), line),
                text: text.as_bytes().to_vec(),
            })
            .collect()
    }

    #[tokio::test]
    async fn a_slice_is_repeated_until_every_line_is_settled() {
        let script = vec![
            (503, Some("0"), "slrl"),
            (429, Some("0"), "ll"),
            (202, None, "sd"),
        ];
        let (client, bodies) = scripted(script).await;
        let mut upload = Upload::new(client, Duration::from_secs(20));
        let mut said = Vec::new();
        let sent = upload
            .slice(lines(&["a", "b", "c", "d"]), &mut |why| {
                said.push(why.to_owned());
            })
            .await
            .unwrap();
        assert_eq!((sent.stored, sent.duplicates), (2, 1));
        assert_eq!(sent.refused[0].origin.to_string(), "a:3");
        assert_eq!(said, ["full; trying again"; 2]);
        assert_eq!(
            *bodies.lock().unwrap(),
            ["a\nb\nc\nd\n", "b\nd\n", "b\nd\n"]
        );
    }

    #[tokio::test]
    async fn patience_ends_and_a_closed_door_is_no_reason_to_wait() {
        let (client, _) = scripted(vec![(503, Some("0"), "l")]).await;
        let failure = Upload::new(client, Duration::ZERO)
            .slice(lines(&["a"]), &mut |_| ())
            .await;
        assert_eq!(failure.unwrap_err().exit, Exit::Failed);
        let (client, _) = scripted(vec![(401, None, "")]).await;
        let failure = Upload::new(client, Duration::from_secs(20))
            .slice(lines(&["a"]), &mut |_| ())
            .await;
        assert_eq!(failure.unwrap_err().exit, Exit::NotAllowed);
    }

    #[tokio::test]
    async fn a_server_that_never_answered_is_not_waited_for() {
        let free = TcpListener::bind(("127.0.0.1", 0))
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let arguments = client::ServerArguments {
            server: format!("http://{free}").parse().unwrap(),
            token_file: None,
        };
        let client = Client::new(&arguments).unwrap();
        let failure = Upload::new(client, Duration::from_secs(20))
            .slice(lines(&["a"]), &mut |_| ())
            .await;
        assert_eq!(failure.unwrap_err().exit, Exit::Unreachable);
    }
}
