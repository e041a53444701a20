//! `GET /v1/status`: everything an operator asks first, at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::Value;
use wayhold_model::Timestamp;
use wayhold_model::admission::Measure;

use super::attempts::RecordBody;
use super::caller::{Caller, Read};
use super::destinations::DestinationBody;
use super::ledger::LedgerBody;
use super::sources::SourceBody;
use crate::app::App;
use crate::http::Problem;
use crate::ingest::LimitReport;
use crate::telemetry::accounting::Accounting;
use crate::telemetry::histogram::Reading;
use crate::telemetry::metrics::{Metrics, Refusal};
use crate::telemetry::report::{DestinationReport, Report};

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/status", get(show))
}

async fn show(State(app): State<Arc<App>>, _: Caller<Read>) -> Result<Json<StatusBody>, Problem> {
    let record = app.in_force().config.record;
    Ok(Json(StatusBody {
        attempts: Some(RecordBody::new(
            app.attempts.figures(),
            record,
            app.clock.now(),
        )),
        ..StatusBody::new(&app.report().await?, &app.metrics)
    }))
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct StatusBody {
    version: &'static str,
    node: String,
    started_at: String,
    uptime_seconds: u64,
    ready: bool,
    unready_because: Option<String>,
    degraded: Vec<String>,
    no_auth: bool,
    accepting: AcceptingBody,
    /// Limits on backlogs that are configured.
    limits: Vec<LimitBody>,
    accounting: WholeAccountingBody,
    destinations: Vec<StandingBody>,
    /// Tables that are read.
    sources: Vec<SourceBody>,
    store: StoreBody,
    /// `null`: there never were any commands.
    ledger: Option<LedgerBody>,
    /// The record of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<RecordBody>,
}

/// What happened at the door since the start.
#[derive(Debug, Serialize)]
struct AcceptingBody {
    accepted: u64,
    duplicates: u64,
    ignored: u64,
    refused: BTreeMap<&'static str, u64>,
    duration: QuantilesBody,
}

/// How one limit on a backlog stands.
#[derive(Debug, Serialize)]
struct LimitBody {
    /// `null`: the whole backlog's.
    destination: Option<String>,
    /// `events`, `bytes` or `age`.
    limit: &'static str,
    /// Events, bytes or seconds.
    used: Value,
    max: Value,
    ratio: f64,
    /// Since when it refuses events, at least those that are refused before others.
    refusing_since: Option<String>,
}

/// Upper bounds of a share of what was measured, as coarse as the histogram's buckets.
#[derive(Debug, Serialize)]
struct QuantilesBody {
    p50_seconds: Option<f64>,
    p99_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct WholeAccountingBody {
    /// `null`: counts moved while they were read.
    holds: Option<bool>,
    oldest_pending_age_seconds: f64,
}

/// One destination: how it is doing, with its counts.
#[derive(Debug, Serialize)]
struct StandingBody {
    #[serde(flatten)]
    destination: DestinationBody,
    accounting: AccountingBody,
    attempts_waiting: usize,
    oldest_pending_age_seconds: Option<f64>,
    oldest_pending: Option<String>,
    blocked_keys: BlockedKeysBody,
    repeats: u64,
    repeats_possible: u64,
    latency: QuantilesBody,
}

/// The accounting identity: accepted = delivered + pending + dead_lettered + expired + discarded.
#[derive(Debug, Serialize)]
struct AccountingBody {
    accepted: u64,
    delivered: u64,
    pending: u64,
    dead_lettered: u64,
    expired: u64,
    discarded: u64,
    redriven: u64,
    /// `null`: counts moved while they were read.
    holds: Option<bool>,
    /// Accepted less everything else. Not zero while `holds` is `null`: so many deliveries changed
    /// between the readings.
    in_motion: i64,
}

#[derive(Debug, Serialize)]
struct BlockedKeysBody {
    count: usize,
    top: Vec<BlockedKeyBody>,
}

#[derive(Debug, Serialize)]
struct BlockedKeyBody {
    key: Option<String>,
    /// The event that blocks.
    position: Option<String>,
    event_id: Option<String>,
    /// Whether it is a dead letter that an operator must redrive or discard.
    held: bool,
    attempts: u32,
    retry_at: Option<String>,
    /// Deliveries behind it, as far as the lane has read.
    waiting: u64,
}

#[derive(Debug, Serialize)]
struct StoreBody {
    shards: u64,
    segments: SegmentsBody,
    bytes: BytesBody,
    disk_free_bytes: u64,
    queued_bytes: u64,
    idempotency: IdempotencyBody,
    recovery: RecoveryBody,
}

#[derive(Debug, Serialize)]
struct SegmentsBody {
    active: u64,
    closed: u64,
    compacted: u64,
    retained: u64,
}

#[derive(Debug, Serialize)]
struct BytesBody {
    segments: u64,
    retained: u64,
    indexes: u64,
    state: u64,
    reserve: u64,
}

#[derive(Debug, Serialize)]
struct IdempotencyBody {
    ids: u64,
    reach_seconds: f64,
}

/// What opening the store found.
#[derive(Debug, Serialize)]
struct RecoveryBody {
    unclean_stop: bool,
    unproven_events: u64,
    segments: u64,
    findings: Vec<String>,
    took_seconds: f64,
}

impl StatusBody {
    /// The answer for this moment.
    pub fn new(report: &Report, metrics: &Metrics) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            node: report.node.clone(),
            started_at: report.started_at.to_string(),
            uptime_seconds: report.at.since(report.started_at).as_secs(),
            ready: report.readiness.unready.is_none(),
            unready_because: report.readiness.unready.clone(),
            degraded: report.readiness.degraded.clone(),
            no_auth: report.no_auth,
            accepting: AcceptingBody::new(metrics),
            limits: report.limits.iter().map(LimitBody::new).collect(),
            accounting: WholeAccountingBody {
                holds: report.accounting_holds(),
                oldest_pending_age_seconds: report.oldest_pending_age().as_secs_f64(),
            },
            destinations: report
                .destinations
                .iter()
                .map(|destination| StandingBody::new(destination, report.at, metrics))
                .collect(),
            sources: report
                .sources
                .iter()
                .map(|source| SourceBody::new(source, report.at))
                .collect(),
            attempts: None,
            store: StoreBody::new(report),
            ledger: LedgerBody::new(report),
        }
    }
}

impl AcceptingBody {
    fn new(metrics: &Metrics) -> Self {
        let refused = Refusal::ALL.map(|reason| (reason.name(), metrics.refused(reason).get()));
        Self {
            accepted: metrics.events_accepted.get(),
            duplicates: metrics.events_duplicate.get(),
            ignored: metrics.events_ignored.get(),
            refused: refused
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .collect(),
            duration: QuantilesBody::new(&metrics.accept_duration.read()),
        }
    }
}

impl LimitBody {
    fn new(report: &LimitReport) -> Self {
        Self {
            destination: report.destination.clone(),
            limit: report.measure.name(),
            used: amount(report.measure, report.used),
            max: amount(report.measure, report.limit),
            ratio: report.fraction(),
            refusing_since: report.since.as_ref().map(Timestamp::to_string),
        }
    }
}

/// An age in seconds, everything else as it is counted.
fn amount(measure: Measure, counted: u64) -> Value {
    match measure {
        Measure::Age => rounded(Duration::from_millis(counted)).into(),
        Measure::Events | Measure::Bytes => counted.into(),
    }
}

impl QuantilesBody {
    fn new(reading: &Reading) -> Self {
        // JSON has no infinity: what exceeds every bound is told as absent.
        let finite = |q| reading.quantile(q).filter(|bound| bound.is_finite());
        Self {
            p50_seconds: finite(0.5),
            p99_seconds: finite(0.99),
        }
    }
}

impl StandingBody {
    fn new(destination: &DestinationReport, now: Timestamp, metrics: &Metrics) -> Self {
        let lane = &destination.lane;
        let latency = metrics.destination(&lane.name).delivery_latency.read();
        Self {
            destination: DestinationBody::new(destination),
            accounting: AccountingBody::new(&destination.accounting),
            attempts_waiting: lane.retries,
            oldest_pending_age_seconds: destination
                .oldest_pending_age(now)
                .map(|age| age.as_secs_f64()),
            oldest_pending: lane.oldest.map(|position| position.to_string()),
            blocked_keys: BlockedKeysBody {
                count: lane.blocked_keys,
                top: lane
                    .blocked
                    .iter()
                    .map(|blocked| BlockedKeyBody {
                        key: blocked.key.clone(),
                        position: blocked.position.map(|position| position.to_string()),
                        event_id: blocked.event_id.clone(),
                        held: blocked.held,
                        attempts: blocked.attempts,
                        retry_at: blocked.retry_at.as_ref().map(Timestamp::to_string),
                        waiting: blocked.waiting,
                    })
                    .collect(),
            },
            repeats: lane.repeats,
            repeats_possible: lane.repeats_possible,
            latency: QuantilesBody::new(&latency),
        }
    }
}

impl AccountingBody {
    fn new(accounting: &Accounting) -> Self {
        let totals = &accounting.totals;
        Self {
            accepted: totals.accepted,
            delivered: totals.delivered,
            pending: totals.pending,
            dead_lettered: totals.dead,
            expired: totals.expired,
            discarded: totals.discarded,
            redriven: totals.redriven,
            holds: accounting.holds(),
            in_motion: accounting.difference(),
        }
    }
}

impl StoreBody {
    fn new(report: &Report) -> Self {
        let (figures, recovery) = (&report.figures, &report.recovery);
        Self {
            shards: figures.shards,
            segments: SegmentsBody {
                active: figures.segments_active,
                closed: figures.segments_closed - figures.segments_compacted,
                compacted: figures.segments_compacted,
                retained: figures.segments_retained,
            },
            bytes: BytesBody {
                segments: figures.segment_bytes,
                retained: figures.retained_bytes,
                indexes: figures.index_bytes,
                state: figures.state_bytes,
                reserve: figures.reserve_bytes,
            },
            disk_free_bytes: figures.disk_free_bytes,
            queued_bytes: figures.queued_bytes,
            idempotency: IdempotencyBody {
                ids: figures.window_ids,
                reach_seconds: figures.window_reach.as_secs_f64(),
            },
            recovery: RecoveryBody {
                unclean_stop: recovery.unclean,
                unproven_events: recovery.unproven,
                segments: recovery.segments,
                findings: recovery.findings.clone(),
                took_seconds: rounded(recovery.took),
            },
        }
    }
}

/// Seconds to the millisecond: what a person reads.
fn rounded(duration: Duration) -> f64 {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).as_secs_f64()
}
