//! `/v1/destinations/{name}/explain`: what would happen to a delivery that failed in some way, and when. It
//! asks the same pure function that decides about real ones.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Json, Router, routing::get};
use serde::{Deserialize, Serialize};
use wayhold_model::endurance::{Endurance, Streak};
use wayhold_model::verdict::{RetryPolicy, Source, Tried, Verdict};
use wayhold_model::{Failure, FailureClass, Fault, Outcome, OutcomeKind, Timestamp};

use super::caller::{Caller, Read};
use super::destinations::unknown;
use super::list::List;
use crate::app::App;
use crate::config::show_duration;
use crate::http::{Problem, ProblemType};
use crate::sink::meaning;

/// The route.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/destinations/{name}/explain", get(explain))
}

/// Which failure; without status and class, one of each class.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    status: Option<i32>,
    class: Option<String>,
    attempt: Option<u32>,
    /// Seconds for which the receiver wants to be left alone.
    retry_after: Option<u64>,
}

/// What would happen.
#[derive(Debug, Serialize)]
struct ExplainedBody {
    class: &'static str,
    outcome: &'static str,
    /// Who has to do something about it.
    fault: Option<&'static str>,
    status: Option<i32>,
    attempt: u32,
    /// `retry`, `dead_letter`, `pause` or `disable`.
    then: &'static str,
    /// The same as a sentence.
    meaning: String,
    /// Shortest and longest time until the next attempt, where there is one.
    wait_least: Option<String>,
    wait_most: Option<String>,
    /// When the next attempt would start, had this one failed now.
    earliest: Option<String>,
    latest: Option<String>,
    /// Whether the attempt counts against `attempts_max`.
    counts: Option<bool>,
    attempts_max: Option<u32>,
    age_max: Option<String>,
    /// How long this may go on, with nothing delivered between, before the destination is paused instead: a
    /// time, or how often in a row.
    pauses_after: Option<String>,
    /// Where the configuration says so, or `usual`.
    rule: String,
}

async fn explain(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    Path(name): Path<String>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<List<ExplainedBody>>, Problem> {
    let Query(asked) = asked.map_err(|error| invalid(error.body_text()))?;
    let in_force = app.in_force();
    let configured = in_force
        .config
        .destination(&name)
        .ok_or_else(|| unknown(&name))?;
    let wait = asked.retry_after.map(Duration::from_secs);
    let told = match (asked.status, &asked.class) {
        (Some(status), class) => {
            let known = meaning(&configured.sink, status, wait.is_some()).ok_or_else(|| {
                let kind = configured.sink.kind();
                invalid(format!("status: a {kind} never answers {status}"))
            })?;
            let class = class.as_deref().map(named).transpose()?;
            vec![(known.0, class.unwrap_or(known.1), Some(status))]
        }
        (None, Some(class)) => {
            let class = named(class)?;
            vec![(class.usual_outcome(), class, None)]
        }
        (None, None) => {
            let all = FailureClass::ALL.into_iter();
            all.filter(|class| class.is_of_attempts())
                .map(|class| (class.usual_outcome(), class, None))
                .collect()
        }
    };
    let attempt = asked.attempt.unwrap_or(1).max(1);
    let now = app.clock.now();
    let items = told.into_iter().map(|(kind, class, status)| {
        let mut failure = Failure::new(class, "").with_retry_after(wait);
        failure.status = status;
        let outcome = outcome_of(kind, failure);
        explained(&configured.delivery.retry, &name, &outcome, attempt, now)
    });
    Ok(Json(List::whole(items.collect())))
}

fn invalid(detail: String) -> Problem {
    Problem::new(ProblemType::InvalidRequest, detail)
}

fn named(class: &str) -> Result<FailureClass, Problem> {
    FailureClass::from_name(class).ok_or_else(|| {
        let names = FailureClass::ALL.map(FailureClass::name).join(", ");
        invalid(format!("class: expected one of {names}, not {class:?}"))
    })
}

fn outcome_of(kind: OutcomeKind, failure: Failure) -> Outcome {
    match kind {
        OutcomeKind::Delivered => Outcome::Delivered,
        OutcomeKind::Refused => Outcome::Refused(failure),
        OutcomeKind::NotExecuted => Outcome::NotExecuted(failure),
        OutcomeKind::Unknown => Outcome::Unknown(failure),
    }
}

/// Asks for the earliest and for the latest that chance may decide.
fn explained(
    policy: &RetryPolicy,
    destination: &str,
    outcome: &Outcome,
    attempt: u32,
    now: Timestamp,
) -> ExplainedBody {
    let tried = Tried {
        attempts: attempt,
        put_off: 0,
        age: Duration::ZERO,
        streak: Streak::default(),
    };
    let applied = policy.applied(outcome);
    let span = applied.as_ref().map_or(0, |applied| {
        let (least, most) = applied.waits.range(attempt);
        u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX)
    });
    let earliest = policy.verdict(tried, outcome, now, 0);
    let latest = policy.verdict(tried, outcome, now, span);
    let (then, meaning) = match earliest {
        Verdict::Settle => ("settle", "delivered".to_owned()),
        Verdict::Retry { counts: true, .. } => ("retry", "tried again".to_owned()),
        Verdict::Retry { counts: false, .. } => {
            ("retry", "tried again; the attempt does not count".to_owned())
        }
        Verdict::DeadLetter => ("dead_letter", "given up as a dead letter".to_owned()),
        Verdict::Pause => (
            "pause",
            "the destination is paused until somebody resumes it; the delivery stays pending".to_owned(),
        ),
        Verdict::Disable => (
            "disable",
            "given up as a dead letter, and the destination is disabled until somebody resumes it; what \
             waits is held"
                .to_owned(),
        ),
    };
    let at = |verdict| match verdict {
        Verdict::Retry { at, .. } => Some(at),
        _ => None,
    };
    let (first, last) = (at(earliest), at(latest));
    let wait = |at: Option<Timestamp>| at.map(|at| show_duration(at.since(now)));
    let failure = outcome.failure();
    let class = failure.map(|failure| failure.class);
    ExplainedBody {
        class: class.map_or("none", FailureClass::name),
        outcome: outcome.kind().name(),
        fault: class.and_then(FailureClass::fault).map(Fault::name),
        status: failure.and_then(|failure| failure.status),
        attempt,
        then,
        meaning,
        wait_least: wait(first),
        wait_most: wait(last),
        earliest: first.as_ref().map(Timestamp::to_string),
        latest: last.as_ref().map(Timestamp::to_string),
        counts: match earliest {
            Verdict::Retry { counts, .. } => Some(counts),
            _ => None,
        },
        attempts_max: applied.as_ref().and_then(|applied| applied.attempts_max),
        age_max: applied
            .as_ref()
            .and_then(|applied| applied.age_max)
            .map(show_duration),
        pauses_after: applied
            .as_ref()
            .and_then(|applied| applied.endurance)
            .map(|endurance| match endurance {
                Endurance::Times(times) => format!("{times} in a row"),
                Endurance::Lasting(time) => show_duration(time),
            }),
        rule: match applied.map(|applied| applied.source) {
            Some(Source::Status(status)) => format!("destinations.{destination}.on.{status}"),
            Some(Source::Class(class)) => {
                format!("destinations.{destination}.on.{}", class.name())
            }
            Some(Source::Usual) | None => "usual".to_owned(),
        },
    }
}
