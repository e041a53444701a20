//! The page that `/metrics` serves, in Prometheus' text format. Every metric, its labels and its
//! meaning are in `docs/metrics.md`; a test holds this page against it.

mod ledger;
mod page;

use std::fmt;
use std::iter;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

use wayhold_model::OutcomeKind;
use wayhold_store::GenerationState;
use wayhold_store::commands::Counts;
use wayhold_store::figures::{COMMIT_BUCKETS, GROUP_BUCKETS};

use self::page::Page;
use super::histogram::Reading;
use super::metrics::{DestinationMetrics, Metrics, Refusal, ReloadResult};
use super::report::Report;
use crate::dispatch::LaneState;
use crate::source::outbox_table::State;

pub use prometheus_text::CONTENT_TYPE;

/// Before every name.
const PREFIX: &str = "wayhold";

/// Writes the page.
pub fn render(metrics: &Arc<Metrics>, report: Report) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    let metrics = Arc::clone(metrics);
    registry.register_collector(Box::new(Scrape { metrics, report }));
    let mut page = String::new();
    // Writing to a String cannot fail; half a page would be worse than none.
    match prometheus_text::encode(&mut page, &registry) {
        Ok(()) => page,
        Err(fmt::Error) => String::new(),
    }
}

#[derive(Debug)]
struct Scrape {
    metrics: Arc<Metrics>,
    report: Report,
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page { encoder };
        accepting(&mut page, &self.metrics)?;
        limits(&mut page, &self.report)?;
        attempts(&mut page, &self.metrics.destinations())?;
        destinations(&mut page, &self.report)?;
        sources(&mut page, &self.report)?;
        under_way(&mut page, &self.report)?;
        ledger::ledger(&mut page, &self.report)?;
        store(&mut page, &self.report)?;
        shards(&mut page, &self.report)?;
        process(&mut page, &self.metrics, &self.report)
    }
}

fn accepting(page: &mut Page<'_>, metrics: &Metrics) -> fmt::Result {
    page.counter(
        "events_accepted",
        "Events stored and acknowledged, without duplicates",
        [([], metrics.events_accepted.get())],
    )?;
    page.counter(
        "events_duplicate",
        "Events that had been accepted before and got their first receipt again",
        [([], metrics.events_duplicate.get())],
    )?;
    page.counter(
        "events_ignored",
        "Events that matched no route and were dropped because the configuration says so",
        [([], metrics.events_ignored.get())],
    )?;
    page.counter(
        "events_refused",
        "Events that were not accepted, by reason",
        Refusal::ALL.map(|reason| ([("reason", reason.name())], metrics.refused(reason).get())),
    )?;
    page.histogram(
        "accept_duration_seconds",
        "From the whole request to its answer, for requests that were accepted",
        [([], metrics.accept_duration.read())],
    )
}

/// The limits that are configured; none, none are shown.
fn limits(page: &mut Page<'_>, report: &Report) -> fmt::Result {
    let of_whole = report.limits.iter().filter(|one| one.destination.is_none());
    page.gauge(
        "backlog_limit_ratio",
        "How full a limit on the whole backlog is; events are refused from 1 on",
        of_whole.map(|one| ([("limit", one.measure.name())], one.fraction())),
    )?;
    let of_destinations = report.limits.iter().filter_map(|one| {
        let name = one.destination.as_deref()?;
        let labels = [("destination", name), ("limit", one.measure.name())];
        Some((labels, one.fraction()))
    });
    page.gauge(
        "destination_limit_ratio",
        "How full a limit on a destination's backlog is",
        of_destinations,
    )
}

fn attempts(page: &mut Page<'_>, all: &[(Box<str>, Arc<DestinationMetrics>)]) -> fmt::Result {
    page.counter(
        "attempts",
        "Delivery attempts that ended, by outcome and class of failure",
        all.iter().flat_map(|(name, metrics)| {
            let labels = |outcome: OutcomeKind, class| {
                [
                    ("destination", &**name),
                    ("outcome", outcome.name()),
                    ("class", class),
                ]
            };
            let delivered = labels(OutcomeKind::Delivered, "none");
            let failed = metrics.failures().into_iter();
            let failed = failed.map(move |(outcome, class, n)| (labels(outcome, class.name()), n));
            iter::once((delivered, metrics.delivered.get())).chain(failed)
        }),
    )?;
    page.counter(
        "repeats",
        "Attempts after an unknown outcome: what a destination may have seen twice",
        all.iter()
            .map(|(name, metrics)| (of(name), metrics.repeats.get())),
    )?;
    page.counter(
        "replayed",
        "Events that replays delivered, apart from attempts and accounting",
        all.iter()
            .map(|(name, metrics)| (of(name), metrics.replayed.get())),
    )?;
    page.histogram(
        "attempt_duration_seconds",
        "From an attempt's submission to its outcome",
        all.iter()
            .map(|(name, metrics)| (of(name), metrics.attempt_duration.read())),
    )?;
    page.histogram(
        "delivery_latency_seconds",
        "From acceptance to settlement as delivered",
        all.iter()
            .map(|(name, metrics)| (of(name), metrics.delivery_latency.read())),
    )
}

fn destinations(page: &mut Page<'_>, report: &Report) -> fmt::Result {
    let all = || {
        report
            .destinations
            .iter()
            .map(|one| (one.lane.name.as_str(), one))
    };
    page.gauge(
        "pending_deliveries",
        "Deliveries that are not resolved",
        all().map(|(name, one)| (of(name), one.accounting.totals.pending)),
    )?;
    page.gauge(
        "oldest_pending_age_seconds",
        "Age of the oldest event with a delivery that is not resolved; 0 without one",
        [([], report.oldest_pending_age().as_secs_f64())],
    )?;
    page.gauge(
        "in_flight",
        "Attempts that were sent and have not ended",
        all().map(|(name, one)| (of(name), one.lane.in_flight as u64)),
    )?;
    page.gauge(
        "blocked_keys",
        "Ordering keys that wait for a failed or dead delivery",
        all().map(|(name, one)| (of(name), one.lane.blocked_keys as u64)),
    )?;
    page.gauge(
        "dead_letters",
        "Deliveries that were given up and are held, by class",
        all().flat_map(|(name, one)| {
            let letters = one.dead_letters.iter();
            letters.map(move |(class, n)| ([("destination", name), ("class", class.as_str())], *n))
        }),
    )?;
    page.counter(
        "expired",
        "Deliveries that ended because their event's expirytime passed",
        all().map(|(name, one)| (of(name), one.accounting.totals.expired)),
    )?;
    page.counter(
        "redriven",
        "Redrives of dead letters ever started",
        all().map(|(name, one)| (of(name), one.accounting.totals.redriven)),
    )?;
    page.gauge(
        "destination_state",
        "1 for the state a destination is in, 0 for the others",
        all().flat_map(|(name, one)| {
            LaneState::ALL.map(|state| {
                let is = u64::from(one.lane.state == state);
                ([("destination", name), ("state", state.name())], is)
            })
        }),
    )
}

/// The tables that are read; none, none are shown.
fn sources(page: &mut Page<'_>, report: &Report) -> fmt::Result {
    page.counter(
        "source_rows_accepted",
        "Rows of the source's table that became events",
        report
            .sources
            .iter()
            .map(|one| (of_source(&one.name), one.snapshot.accepted)),
    )?;
    page.gauge(
        "source_lag_rows",
        "Rows that wait in the source's table",
        report.sources.iter().filter_map(|one| {
            let rows = one.snapshot.lag?.rows;
            Some((of_source(&one.name), count(rows)))
        }),
    )?;
    page.gauge(
        "source_log_bytes",
        "Bytes of the database's log that are kept for the source",
        report.sources.iter().filter_map(|one| {
            let bytes = one.snapshot.lag?.log_bytes?;
            Some((of_source(&one.name), count(bytes)))
        }),
    )?;
    page.gauge(
        "source_oldest_row_age_seconds",
        "Age of the oldest row that waits in the source's table",
        report.sources.iter().map(|one| {
            let age = one.snapshot.oldest_row_age(report.at);
            (of_source(&one.name), age.as_secs_f64())
        }),
    )?;
    page.gauge(
        "source_refused_rows",
        "Rows that were refused and stay in the source's table",
        report
            .sources
            .iter()
            .map(|one| (of_source(&one.name), count(one.snapshot.refused as u64))),
    )?;
    let states = report.sources.iter().flat_map(|one| {
        State::ALL.map(|state| {
            let labels = [("source", one.name.as_str()), ("state", state.name())];
            (labels, u64::from(one.snapshot.state == state))
        })
    });
    page.gauge(
        "source_state",
        "1 for the state a source is in, 0 for the others",
        states,
    )
}

fn of_source(source: &str) -> [(&'static str, &str); 1] {
    [("source", source)]
}

/// What is under way beside deliveries of events as they come.
fn under_way(page: &mut Page<'_>, report: &Report) -> fmt::Result {
    page.gauge(
        "replays",
        "Replays that have not ended, by state: events are held for them",
        report
            .replays
            .iter()
            .map(|(state, n)| ([("state", state.name())], *n)),
    )?;
    let commands = report.commands.iter();
    page.gauge(
        "commands",
        "Commands by state, also those that have ended",
        commands
            .flat_map(Counts::iter)
            .map(|(state, n)| ([("state", state.name())], n)),
    )?;
    if report.commands.is_none() {
        return Ok(());
    }
    let decisions = &report.decisions;
    page.counter(
        "approvals",
        "Requests for approval that ended, by how",
        decisions
            .ended
            .iter()
            .map(|(outcome, n)| ([("outcome", *outcome)], *n)),
    )?;
    page.histogram(
        "approval_decision_seconds",
        "From a request for approval to the decision of people that ended it",
        [([], decisions.time.clone())],
    )?;
    let reconciled = report.reconciled.iter();
    page.counter(
        "reconciled",
        "Commands about which a target was asked on somebody's wish or on schedule, by what was found",
        reconciled.map(|((kind, result), n)| ([("kind", &**kind), ("result", *result)], *n)),
    )
}

fn store(page: &mut Page<'_>, report: &Report) -> fmt::Result {
    let figures = &report.figures;
    page.gauge(
        "pending_bytes",
        "Bytes of segments that hold something unresolved: at most so much do pending events occupy",
        [([], figures.segment_bytes)],
    )?;
    page.gauge(
        "segments",
        "Segments by state",
        [
            ("active", figures.segments_active),
            (
                "closed",
                figures.segments_closed - figures.segments_compacted,
            ),
            ("compacted", figures.segments_compacted),
            ("retained", figures.segments_retained),
        ]
        .map(|(state, n)| ([("state", state)], n)),
    )?;
    page.counter(
        "compactions",
        "Compactions of segments of which most was resolved",
        [([], figures.compactions)],
    )?;
    page.counter(
        "compacted_bytes",
        "Bytes on disk that compactions gave back",
        [([], figures.compacted_bytes)],
    )?;
    page.gauge(
        "store_bytes",
        "Bytes on disk by kind of file",
        [
            ("segments", figures.segment_bytes),
            ("retained", figures.retained_bytes),
            ("indexes", figures.index_bytes),
            ("state", figures.state_bytes),
            ("reserve", figures.reserve_bytes),
        ]
        .map(|(kind, bytes)| ([("kind", kind)], bytes)),
    )?;
    page.gauge(
        "disk_free_bytes",
        "Free bytes of the data directory's volume",
        [([], figures.disk_free_bytes)],
    )?;
    page.gauge(
        "queued_bytes",
        "Bytes of events that wait for a commit",
        [([], figures.queued_bytes)],
    )?;
    page.gauge(
        "idempotency_reach_seconds",
        "Age of the oldest id that is remembered",
        [([], figures.window_reach.as_secs_f64())],
    )?;
    let micros = COMMIT_BUCKETS.map(|bound| count(bound) / MICROS_PER_SECOND);
    page.histogram(
        "sync_duration_seconds",
        "Time to write and sync one group",
        [(
            [],
            reading(
                &micros,
                &figures.commit_buckets,
                count(figures.commit_micros) / MICROS_PER_SECOND,
            ),
        )],
    )?;
    page.histogram(
        "group_events",
        "Events in one group, that is in one commit",
        [(
            [],
            reading(
                &GROUP_BUCKETS.map(count),
                &figures.group_buckets,
                count(figures.group_events),
            ),
        )],
    )
}

/// Over how many shards events are spread, and what a change of their number has left to drain.
fn shards(page: &mut Page<'_>, report: &Report) -> fmt::Result {
    let all = || report.generations.iter();
    page.gauge(
        "shards",
        "Shards by state of their generation: active ones take events",
        GenerationState::ALL.map(|state| {
            let of_state = all().filter(|one| one.state == state);
            let shards: u64 = of_state.map(|one| u64::from(one.shards)).sum();
            ([("state", state.name())], shards)
        }),
    )?;
    let draining = || all().filter(|one| one.state == GenerationState::Draining);
    page.gauge(
        "draining_deliveries",
        "Deliveries that are not resolved and lie in older generations of shards",
        [([], draining().map(|one| one.pending).sum::<u64>())],
    )
}

fn process(page: &mut Page<'_>, metrics: &Metrics, report: &Report) -> fmt::Result {
    page.gauge(
        "ready",
        "1 while events can be durably accepted",
        [([], u64::from(report.readiness.unready.is_none()))],
    )?;
    page.gauge(
        "degraded",
        "Number of findings that a person should look at; /readyz names them",
        [([], report.readiness.degraded.len() as u64)],
    )?;
    page.gauge(
        "no_auth",
        "1 while the server takes every request without a token",
        [([], u64::from(report.no_auth))],
    )?;
    page.counter(
        "config_reloads",
        "Times that the configuration was asked to be read again, by what came of it",
        ReloadResult::ALL
            .map(|result| ([("result", result.name())], metrics.reloaded(result).get())),
    )?;
    page.gauge(
        "config_loaded_timestamp_seconds",
        "Since when the configuration that is in force is, in Unix time",
        [(
            [],
            Duration::from_micros(report.config_since.as_micros()).as_secs_f64(),
        )],
    )?;
    page.counter(
        "panics",
        "Panics that were caught; each is a bug",
        [([], metrics.panics.get())],
    )?;
    page.gauge(
        "build_info",
        "1, with the version",
        [([("version", env!("CARGO_PKG_VERSION"))], 1.0)],
    )
}

const MICROS_PER_SECOND: f64 = 1e6;

/// The label set of what belongs to one destination.
fn of(destination: &str) -> [(&'static str, &str); 1] {
    [("destination", destination)]
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus knows no other numbers"
)]
fn count(n: u64) -> f64 {
    n as f64
}

/// A histogram that the store keeps as counts per bound, and one more above.
fn reading(bounds: &[f64], counts: &[u64], sum: f64) -> Reading {
    let bounds = bounds.iter().copied().chain([f64::INFINITY]);
    Reading {
        buckets: bounds.zip(counts.iter().copied()).collect(),
        sum,
    }
}

#[cfg(test)]
mod tests;
