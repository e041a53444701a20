//! The drill with a running server, under its own load. Its destination is paused and resumed, which is an
//! outage that harms nobody: nothing is sent to a real receiver that was not meant for it, and no attempt
//! fails. What cannot be seen from here is not told: the order at the receiver, and what its retries and
//! its breaker would have done. All figures are the server's own.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::client::{Client, ServerArguments, path};
use super::super::exit::{Exit, Failure};
use super::super::output::Output;
use super::super::stop_signal::StopSignal;
use super::drain::Drain;
use super::report::{Figures, Report};
use crate::config::quantity::show_duration;
use crate::telemetry::histogram::Reading;

/// How long the server is watched before the outage and at least after it, where the outage is not shorter.
const WELL: Duration = Duration::from_secs(60);

/// How often the server is asked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long nothing may be delivered after the return before the drill gives up on the rest: longer than
/// the waits between attempts are by default.
const PATIENCE: Duration = Duration::from_secs(400);

/// How long counts may move before what they say of loss is given up.
const QUIET_WITHIN: Duration = Duration::from_secs(10);

/// How often resuming is tried.
const RESUME_ATTEMPTS: u32 = 30;

/// Refusals that mean "later", as status names them.
const FOR_NOW: [&str; 6] = [
    "busy",
    "backlog_full",
    "destination_full",
    "no_space",
    "unavailable",
    "stopping",
];

/// What the server says of itself and the destination at a moment.
#[derive(Clone, Debug, Default)]
struct Moment {
    state: String,
    accepted: u64,
    pending: u64,
    delivered: u64,
    dead: u64,
    repeats: u64,
    holds: Option<bool>,
    in_motion: i64,
    refused: u64,
    bytes: u64,
}

/// Takes the destination away for `away`, or the only one that runs, and says what the server's books say of it.
///
/// # Errors
/// When the server does not answer or refuses, there is no such destination, it does not run, or it must be named.
pub async fn run(
    server: &ServerArguments,
    destination: Option<&str>,
    away: Duration,
    output: &mut Output,
) -> Result<Report, Failure> {
    let stop = StopSignal::new()?;
    let mut client = Client::new(server)?;
    let destination = match destination {
        Some(destination) => destination.to_owned(),
        None => only_running(&client.get("/v1/status").await?)?,
    };
    let mut drill = Running {
        client,
        destination,
        away,
        paused: false,
        bytes_peak: 0,
        output,
    };
    let report = tokio::select! {
        biased;
        signal = stop.received() => {
            Err(Failure::new(Exit::Failed, format!("stopped by {signal}")))
        }
        report = drill.play() => report,
    };
    // Whatever happened: nothing stays paused because of a drill. An answer may have been cut off, so this
    // has a connection of its own.
    if drill.paused {
        drill.client = Client::new(server)?;
        drill.resume().await?;
    }
    report
}

struct Running<'a> {
    client: Client,
    destination: String,
    away: Duration,
    paused: bool,
    bytes_peak: u64,
    output: &'a mut Output,
}

impl Running<'_> {
    async fn play(&mut self) -> Result<Report, Failure> {
        let well = WELL.min(self.away);
        let first = self.look().await?;
        if first.state != "running" {
            return Err(Failure::new(
                Exit::Failed,
                format!(
                    "{} is {}; a drill begins with a destination that runs",
                    self.destination, first.state
                ),
            ));
        }
        let mut times = vec![self.times().await?];
        self.output
            .note(format!("watching for {}", show_duration(well)));
        self.wait(well, "running").await?;
        times.push(self.times().await?);
        self.pause().await?;
        self.output.note(format!(
            "{} is paused for {}",
            self.destination,
            show_duration(self.away)
        ));
        self.wait(self.away, "paused").await?;
        times.push(self.times().await?);
        self.resume().await?;
        let mut drain = Drain::default();
        self.drain(well, &mut drain).await?;
        times.push(self.times().await?);
        let last = self.quiet().await?;
        let mut p99 = times.windows(2).map(|pair| match pair {
            [earlier, later] => p99_ms(earlier, later),
            _ => None,
        });
        let figures = Figures {
            accepted: last.accepted.saturating_sub(first.accepted),
            refused: last.refused.saturating_sub(first.refused),
            delivered: last.delivered.saturating_sub(first.delivered),
            repeated: last.repeats.saturating_sub(first.repeats),
            lost: last.holds.map(|holds| match holds {
                true => 0,
                false => last.in_motion.unsigned_abs(),
            }),
            reordered: None,
            p99_before_ms: p99.next().flatten(),
            p99_during_ms: p99.next().flatten(),
            p99_after_ms: p99.next().flatten(),
            drain_per_s: drain.per_second(),
            disk_peak_bytes: self.bytes_peak,
        };
        let dead = last.dead.saturating_sub(first.dead);
        if dead > 0 {
            self.output.note(format!(
                "{dead} deliveries became dead letters meanwhile; they are kept"
            ));
        }
        Ok(Report {
            figures,
            broken: Vec::new(),
        })
    }

    async fn pause(&mut self) -> Result<(), Failure> {
        // Before it is asked: an answer that is cut off may have been a success.
        self.paused = true;
        let reason = format!("drill: an outage of {}", show_duration(self.away));
        let pause = path(["v1", "destinations", &self.destination, "pause"]);
        let body = json!({ "reason": reason });
        let paused = self.client.post(&pause, Some(&body)).await.map(drop);
        if paused
            .as_ref()
            .is_err_and(|no| no.exit != Exit::Unreachable)
        {
            self.paused = false;
        }
        paused
    }

    async fn resume(&mut self) -> Result<(), Failure> {
        let resume = path(["v1", "destinations", &self.destination, "resume"]);
        let mut attempts = 0;
        loop {
            let body = json!({"reason": "drill: the outage is over"});
            let Err(failure) = self.client.post(&resume, Some(&body)).await else {
                self.paused = false;
                self.output.note(format!("{} is resumed", self.destination));
                return Ok(());
            };
            attempts += 1;
            if attempts >= RESUME_ATTEMPTS {
                return Err(Failure::new(
                    failure.exit,
                    format!(
                        "{} is still paused, since {}\nwayhold destinations resume {}",
                        self.destination, failure.message, self.destination
                    ),
                ));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn wait(&mut self, time: Duration, state: &str) -> Result<(), Failure> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            tokio::time::sleep_until(until.min(Instant::now() + LOOK_EVERY)).await;
            let found = self.look().await?.state;
            // A breaker may open by itself, for a failure that has nothing to do with the drill.
            let as_it_should = found == state || (state == "running" && found == "waiting");
            if !as_it_should {
                return Err(Failure::new(
                    Exit::Failed,
                    format!(
                        "{} is {found} in the middle of the drill: somebody else changed it",
                        self.destination
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Watches until the backlog is gone, and at least for `least`.
    async fn drain(&mut self, least: Duration, drain: &mut Drain) -> Result<(), Failure> {
        let returned = Instant::now();
        let mut newest = (0, returned);
        loop {
            let now = self.look().await?;
            let resolved = now.accepted.saturating_sub(now.pending);
            drain.look(returned.elapsed(), resolved, now.accepted);
            if resolved > newest.0 {
                newest = (resolved, Instant::now());
            }
            let gone = drain.per_second().is_some() || now.pending == 0;
            if gone && returned.elapsed() >= least {
                return Ok(());
            }
            if newest.1.elapsed() > PATIENCE {
                self.output
                    .note("the backlog is not gone, and nothing more is delivered");
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// A moment in which no count moves, if there is one soon.
    async fn quiet(&mut self) -> Result<Moment, Failure> {
        let until = Instant::now() + QUIET_WITHIN;
        loop {
            let now = self.look().await?;
            if now.holds.is_some() || Instant::now() > until {
                return Ok(now);
            }
            tokio::time::sleep(LOOK_EVERY / 10).await;
        }
    }

    async fn look(&mut self) -> Result<Moment, Failure> {
        let status = self.client.get("/v1/status").await?;
        let moment = Moment::of(&status, &self.destination)?;
        self.bytes_peak = self.bytes_peak.max(moment.bytes);
        Ok(moment)
    }

    /// How long the requests took that were accepted so far.
    async fn times(&mut self) -> Result<Reading, Failure> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = Uri::from_static("/metrics");
        let answer = self.client.request(request).await?;
        Ok(accept_durations(&String::from_utf8_lossy(answer.body())))
    }
}

impl Moment {
    fn of(status: &Value, name: &str) -> Result<Self, Failure> {
        let destinations = status.get("destinations").and_then(Value::as_array);
        let named = |one: &&Value| one.get("name").and_then(Value::as_str) == Some(name);
        let Some(destination) = destinations.and_then(|all| all.iter().find(named)) else {
            return Err(Failure::new(
                Exit::NotFound,
                format!(
                    "the server has no destination {name}; wayhold destinations list shows them"
                ),
            ));
        };
        let count = |place: &str| {
            let count = destination.pointer(place).and_then(Value::as_u64);
            count.unwrap_or_default()
        };
        let all = |place: &str, wanted: &dyn Fn(&str) -> bool| -> u64 {
            let object = status.pointer(place).and_then(Value::as_object);
            let wanted = object.into_iter().flatten().filter(|(key, _)| wanted(key));
            wanted.filter_map(|(_, value)| value.as_u64()).sum()
        };
        let state = destination.get("state").and_then(Value::as_str);
        Ok(Self {
            state: state.unwrap_or_default().to_owned(),
            accepted: count("/accounting/accepted"),
            pending: count("/accounting/pending"),
            delivered: count("/accounting/delivered"),
            dead: count("/accounting/dead_lettered"),
            repeats: count("/repeats"),
            holds: destination
                .pointer("/accounting/holds")
                .and_then(Value::as_bool),
            in_motion: destination
                .pointer("/accounting/in_motion")
                .and_then(Value::as_i64)
                .unwrap_or_default(),
            refused: all("/accepting/refused", &|reason| FOR_NOW.contains(&reason)),
            bytes: all("/store/bytes", &|_| true),
        })
    }
}

/// Most destinations that a question for one of them names.
const NAMED_MAX: usize = 8;

/// The name of the one destination that runs.
fn only_running(status: &Value) -> Result<String, Failure> {
    let destinations = status.get("destinations").and_then(Value::as_array);
    let text = |one: &Value, key: &str| one.get(key).and_then(Value::as_str).map(str::to_owned);
    let running = destinations.into_iter().flatten();
    let running = running.filter(|one| text(one, "state").as_deref() == Some("running"));
    let names: Vec<String> = running.filter_map(|one| text(one, "name")).collect();
    match names.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(Failure::new(
            Exit::Failed,
            "no destination of the server runs; a drill begins with one that does".to_owned(),
        )),
        several => {
            let named: Vec<&str> = several.iter().take(NAMED_MAX).map(String::as_str).collect();
            let more = match several.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let named = named.join(", ");
            Err(Failure::new(
                Exit::Usage,
                format!("several destinations run ({named}{more}); say which with --destination"),
            ))
        }
    }
}

/// The histogram on the page of metrics.
fn accept_durations(page: &str) -> Reading {
    const BUCKET: &str = "wayhold_accept_duration_seconds_bucket{le=\"";
    let mut below = 0;
    let buckets = page.lines().filter_map(|line| {
        let (bound, count) = line.strip_prefix(BUCKET)?.split_once("\"}")?;
        let bound = match bound {
            "+Inf" => f64::INFINITY,
            bound => bound.parse().ok()?,
        };
        let count: u64 = count.trim().parse().ok()?;
        let own = count.saturating_sub(std::mem::replace(&mut below, count));
        Some((bound, own))
    });
    Reading {
        buckets: buckets.collect(),
        sum: 0.0,
    }
}

/// The bound below which 99 of 100 answers between two readings stayed, in milliseconds.
fn p99_ms(earlier: &Reading, later: &Reading) -> Option<f64> {
    let counts = later.buckets.iter().zip(&earlier.buckets);
    let between = Reading {
        buckets: counts
            .map(|((bound, later), (_, earlier))| (*bound, later.saturating_sub(*earlier)))
            .collect(),
        sum: 0.0,
    };
    let bound = between.quantile(0.99).filter(|bound| bound.is_finite());
    bound.map(|seconds| seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(counts: [u64; 3]) -> String {
        let [a, b, c] = counts;
        format!(
            "# TYPE wayhold_accept_duration_seconds histogram\n\
             wayhold_accept_duration_seconds_bucket{{le=\"0.001\"}} {a}\n\
             wayhold_accept_duration_seconds_bucket{{le=\"0.0025\"}} {b}\n\
             wayhold_accept_duration_seconds_bucket{{le=\"+Inf\"}} {c}\n\
             wayhold_accept_duration_seconds_count {c}\n"
        )
    }

    #[test]
    fn a_percentile_is_that_of_the_requests_between_two_readings() {
        let reading = |counts| accept_durations(&page(counts));
        let earlier = reading([0, 500, 500]);
        assert_eq!(
            earlier.buckets,
            [(0.001, 0), (0.0025, 500), (f64::INFINITY, 0)]
        );
        assert_eq!(p99_ms(&earlier, &reading([100, 600, 600])), Some(1.0));
        assert_eq!(p99_ms(&earlier, &reading([90, 600, 600])), Some(2.5));
        assert_eq!(
            p99_ms(&earlier, &reading([0, 500, 600])),
            None,
            "beyond all bounds"
        );
        assert_eq!(p99_ms(&earlier, &earlier), None, "nothing was accepted");
    }

    #[test]
    fn a_moment_is_read_from_status_and_an_absent_name_is_not_found() {
        let status = json!({
            "accepting": {"refused": {"malformed": 7, "no_space": 2, "backlog_full": 3}},
            "store": {"bytes": {"segments": 10, "state": 5}},
            "destinations": [{
                "name": "wms", "state": "running", "repeats": 4,
                "accounting": {"accepted": 9, "delivered": 5, "pending": 3, "dead_lettered": 1,
                    "holds": null, "in_motion": -2},
            }],
        });
        let moment = Moment::of(&status, "wms").unwrap();
        assert_eq!(
            (moment.accepted, moment.delivered, moment.pending),
            (9, 5, 3)
        );
        assert_eq!((moment.refused, moment.bytes, moment.repeats), (5, 15, 4));
        assert_eq!((moment.holds, moment.in_motion, moment.dead), (None, -2, 1));
        assert_eq!(Moment::of(&status, "erp").unwrap_err().exit, Exit::NotFound);
    }

    #[test]
    fn the_only_destination_that_runs_need_not_be_named() {
        let status = |states: &[&str]| {
            let one = |(number, state): (usize, &&str)| json!({"name": format!("d{number}"), "state": state});
            let all: Vec<Value> = states.iter().enumerate().map(one).collect();
            json!({ "destinations": all })
        };
        let only = only_running(&status(&["paused", "running", "retired"]));
        assert_eq!(only.unwrap(), "d1");
        let none = only_running(&status(&["paused"])).unwrap_err();
        assert_eq!(none.exit, Exit::Failed);
        let several = only_running(&status(&["running"; 1_000])).unwrap_err();
        assert_eq!(several.exit, Exit::Usage);
        let said = "(d0, d1, d2, d3, d4, d5, d6, d7 and 992 more); say which with --destination";
        assert!(several.message.ends_with(said), "{}", several.message);
    }
}
