//! `POST /v1/destinations/{name}/test`: whether a destination can be reached; with an event as the body,
//! what would be sent for it; and with `?send=true` that, sent once, beside the lane: no order, no
//! retry, no account.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::timeout;
use wayhold_model::{
    DestinationSet, Event, Failure, FailureClass, Generation, Outcome, Position, Sequence, ShardId,
    StoredEvent,
};

use super::body::whole;
use super::caller::{Caller, Operate};
use super::destinations::unknown;
use crate::app::App;
use crate::http::{Problem, ProblemType};
use crate::sink::{Attempt, Preview, Sink};

/// How long the destination may take before it counts as one that cannot be reached, or that does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// What else is asked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    #[serde(default)]
    send: bool,
}

/// Whether a destination can be reached.
#[derive(Debug, Serialize)]
struct ReachBody {
    reachable: bool,
    detail: String,
}

/// What was made of an event, and what came of it.
#[derive(Debug, Serialize)]
struct TrialBody {
    /// `null` where the event cannot become a request, or the kind of destination has none to show.
    request: Option<RequestBody>,
    sent: bool,
    /// `null` where nothing was sent and nothing is wrong.
    outcome: Option<&'static str>,
    /// What the receiver answered, where it was not a success.
    status: Option<i32>,
    /// What was in the way.
    class: Option<&'static str>,
    detail: String,
}

#[derive(Debug, Serialize)]
struct RequestBody {
    method: String,
    url: String,
    headers: BTreeMap<String, String>,
    /// The body where it is text; `null` where it is not.
    body: Option<String>,
    /// The body where it is not text.
    body_base64: Option<String>,
}

impl From<Preview> for RequestBody {
    fn from(preview: Preview) -> Self {
        let text = std::str::from_utf8(&preview.body).ok().map(str::to_owned);
        Self {
            method: preview.method,
            url: preview.url,
            headers: preview.headers.into_iter().collect(),
            body_base64: text.is_none().then(|| STANDARD.encode(&preview.body)),
            body: text,
        }
    }
}

/// Tests a destination.
pub(super) async fn test(
    State(app): State<Arc<App>>,
    _: Caller<Operate>,
    Path(name): Path<String>,
    wanted: Result<Query<Wanted>, QueryRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let Query(wanted) = wanted.map_err(|_rejection| {
        let detail = "send: expected ?send=true, ?send=false or nothing";
        Problem::new(ProblemType::InvalidRequest, detail).with("field", "send")
    })?;
    let sink = app.sink(&name).ok_or_else(|| unknown(&name))?;
    let body = whole(request, app.accept.limits().body_bytes).await?;
    if body.is_empty() {
        if wanted.send {
            let detail = "body: expected an event to send, as a JSON object (CloudEvents)";
            return Err(Problem::new(ProblemType::InvalidRequest, detail).with("field", "body"));
        }
        return Ok(Json(reach(&sink).await).into_response());
    }
    let event = app.accept.read_event(&body)?;
    let preview = sink.preview(&event);
    let shown = match preview {
        Some(Err(failure)) => return Ok(Json(impossible(failure)).into_response()),
        Some(Ok(preview)) => Some(RequestBody::from(preview)),
        None if wanted.send => None,
        None => {
            let detail = format!("destination {name:?} sends no HTTP request that could be shown");
            return Err(Problem::new(ProblemType::InvalidRequest, detail));
        }
    };
    let outcome = if wanted.send {
        Some(send(&app, &sink, event).await)
    } else {
        None
    };
    Ok(Json(told(shown, outcome)).into_response())
}

async fn reach(sink: &Arc<dyn Sink>) -> ReachBody {
    let (reachable, detail) = match timeout(ANSWER_TIMEOUT, sink.probe()).await {
        Ok(Ok(words)) => (true, words),
        Ok(Err(failure)) => (false, failure.reason),
        Err(_) => (
            false,
            format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()),
        ),
    };
    ReachBody { reachable, detail }
}

/// One attempt of an event that lies nowhere.
async fn send(app: &App, sink: &Arc<dyn Sink>, event: Event) -> Outcome {
    let event = StoredEvent {
        position: Position {
            generation: Generation(0),
            shard: ShardId(0),
            sequence: Sequence(0),
        },
        accepted_at: app.clock.now(),
        destinations: Arc::new(DestinationSet::new([])),
        key_hash: None,
        event: Arc::new(event),
    };
    let (finished, mut results) = mpsc::channel(1);
    let attempt = Attempt::new(Arc::new(event), 1, ANSWER_TIMEOUT, 0, finished);
    sink.submit(&mut vec![attempt]);
    let ended = results.recv().await.map(|finished| finished.outcome);
    ended.unwrap_or_else(|| {
        let class = FailureClass::Interrupted;
        Outcome::Unknown(Failure::new(class, "the server is stopping"))
    })
}

fn impossible(failure: Failure) -> TrialBody {
    told(None, Some(Outcome::Refused(failure))).unsent()
}

fn told(request: Option<RequestBody>, outcome: Option<Outcome>) -> TrialBody {
    let failure = outcome.as_ref().and_then(Outcome::failure);
    let detail = match (&outcome, failure) {
        (_, Some(failure)) => failure.reason.clone(),
        (Some(_), None) => "the receiver confirmed it".to_owned(),
        (None, None) => "nothing was sent".to_owned(),
    };
    TrialBody {
        sent: outcome.is_some(),
        status: failure.and_then(|failure| failure.status),
        class: failure.map(|failure| failure.class.name()),
        outcome: outcome.map(|outcome| outcome.kind().name()),
        request,
        detail,
    }
}

impl TrialBody {
    fn unsent(self) -> Self {
        Self {
            sent: false,
            ..self
        }
    }
}
