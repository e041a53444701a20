//! The report: one object for a program, tables for a person.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use wayhold_store::Options;

use super::super::output::Output;
use super::accept::{Accepted, per};
use super::backlog::Backlog;
use super::lanes::{Lanes, bytes_per_lane};
use super::load::request::DATA_BYTES;
use super::machine::Machine;
use super::settled::event_bytes;
use super::sizing::{CALLERS, Costs, Sizing};
use super::sync::{Syncs, warnings};

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    version: &'static str,
    folder: String,
    machine: Machine,
    seconds: f64,
    data_bytes_per_event: usize,
    /// What a person should know before trusting the rest.
    warnings: Vec<String>,
    /// Sync latency.
    pub sync: Vec<Syncs>,
    /// Events in.
    pub accept: Vec<Accepted>,
    /// A backlog, and working it off.
    pub backlog: Option<Backlog>,
    /// Memory by destinations.
    pub lanes: Vec<Lanes>,
    /// Bytes on disk of one event that waits for long.
    pub settled_bytes_per_event: Option<f64>,
    /// What follows; absent where something could not be measured.
    sizing: Option<Sizing>,
}

impl Report {
    /// An empty one.
    pub fn new(folder: &dyn Display, machine: Machine) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            folder: folder.to_string(),
            machine,
            seconds: 0.0,
            data_bytes_per_event: DATA_BYTES,
            warnings: Vec::new(),
            sync: Vec::new(),
            accept: Vec::new(),
            backlog: None,
            lanes: Vec::new(),
            settled_bytes_per_event: None,
            sizing: None,
        }
    }

    /// Everything is measured; what follows is said for a store with these options.
    pub fn finish(&mut self, took: Duration, in_memory: bool, options: &Options) {
        self.seconds = took.as_secs_f64();
        self.warnings = warnings(&self.sync, in_memory);
        self.sizing = self.costs().map(|costs| Sizing::of(&costs, options));
        let refused: u64 = self.accept.iter().map(|accepted| accepted.refused).sum();
        if refused > 0 {
            self.warnings.push(format!(
                "{refused} requests were refused while accepting was measured: the disk did not keep up"
            ));
        }
    }

    /// What the sizing rule takes from the measures: of events that come alone those with the most callers.
    fn costs(&self) -> Option<Costs> {
        let (single, bulk): (Vec<&Accepted>, Vec<&Accepted>) = self
            .accept
            .iter()
            .filter(|one| one.events > 0)
            .partition(|one| one.events_per_request == 1);
        let most = single.iter().max_by_key(|one| one.callers)?;
        let backlog = self.backlog.as_ref()?;
        Some(Costs {
            cores: whole(self.machine.cores as u64),
            sync_ms: self.sync.first()?.took.mean_ms,
            accept_us: most.server_cpu_us_per_event,
            accept_bulk_us: bulk.first()?.server_cpu_us_per_event,
            deliver_us: backlog.cpu_us_per_delivery,
            event_bytes: whole(event_bytes() as u64),
            fresh_bytes: most.disk_bytes_per_event,
            settled_bytes: self
                .settled_bytes_per_event
                .unwrap_or(most.disk_bytes_per_event),
            empty_bytes: backlog.empty_bytes,
            peak_bytes: backlog.peak_bytes,
            lane_bytes: bytes_per_lane(&self.lanes),
        })
    }

    /// Prints it.
    pub fn print(&self, output: &mut Output) {
        output.json(&json!(self));
        let memory = self.machine.memory_bytes.map_or_else(String::new, |bytes| {
            format!(", {} MiB of memory", grouped(mib(bytes)))
        });
        output.line(format!(
            "wayhold {} on {} cores{memory}, in {}, {:.0} s; events of {} bytes",
            self.version, self.machine.cores, self.folder, self.seconds, self.data_bytes_per_event
        ));
        for warning in &self.warnings {
            output.line("");
            output.line(format!("WARNING: {warning}"));
        }
        self.print_sync(output);
        self.print_accept(output);
        self.print_drain(output);
        self.print_memory(output);
        match &self.sizing {
            Some(sizing) => self.print_sizing(sizing, output),
            None => heading(
                output,
                "There was too little time to say what follows; give more --time",
            ),
        }
    }

    fn print_sync(&self, output: &mut Output) {
        heading(output, "Write and sync: every commit waits for one");
        let rows: Vec<_> = self
            .sync
            .iter()
            .map(|syncs| {
                [
                    format!("{:?}", syncs.write).to_lowercase(),
                    format!("{} KiB", syncs.bytes / 1024),
                    millis(syncs.took.mean_ms),
                    millis(syncs.took.p50_ms),
                    millis(syncs.took.p99_ms),
                    millis(syncs.took.max_ms),
                    grouped(whole(syncs.took.count)),
                ]
            })
            .collect();
        output.table(
            ["WRITE", "BYTES", "MEAN", "P50", "P99", "LONGEST", "SYNCS"],
            &rows,
        );
    }

    fn print_accept(&self, output: &mut Output) {
        heading(
            output,
            "Accept over HTTP: each event synced before it is acknowledged",
        );
        let rows: Vec<_> = self
            .accept
            .iter()
            .map(|one| {
                [
                    one.callers.to_string(),
                    one.events_per_request.to_string(),
                    grouped(one.events_per_second),
                    millis(one.p50_ms),
                    millis(one.p99_ms),
                    format!("{:.1}", one.events_per_commit),
                    millis(one.commit_ms),
                    grouped(one.disk_bytes_per_event),
                    format!("{:.0} us", one.server_cpu_us_per_event),
                ]
            })
            .collect();
        let heading = [
            "CALLERS",
            "A REQUEST",
            "EVENTS/S",
            "P50",
            "P99",
            "A COMMIT",
            "COMMIT",
            "DISK BYTES",
            "CPU",
        ];
        output.table(heading, &rows);
        output.line(
            "A REQUEST, A COMMIT: events in one. DISK BYTES, CPU: of one event, CPU of the server alone.",
        );
        if let Some(share) = self.generator_share() {
            output.line(format!(
                "The load came from these {} cores too and took up to {share:.0} % of the processor time in use.",
                self.machine.cores
            ));
        }
    }

    /// The largest share of the processor time in use that the load generator had, in percent.
    fn generator_share(&self) -> Option<f64> {
        let share = |one: &Accepted| {
            let both = one.server_cpu_us_per_event + one.generator_cpu_us_per_event;
            per(one.generator_cpu_us_per_event * 100.0, both)
        };
        self.accept.iter().map(share).reduce(f64::max)
    }

    fn print_drain(&self, output: &mut Output) {
        let Some(backlog) = &self.backlog else { return };
        heading(
            output,
            "Drain: a backlog to a destination that takes everything at once",
        );
        let part = if backlog.drained < backlog.events {
            format!(" of {}", grouped(whole(backlog.events)))
        } else {
            String::new()
        };
        output.line(format!(
            "{}{part} events at {} a second, {:.1} us of processor time for each",
            grouped(whole(backlog.drained)),
            grouped(backlog.drained_per_second),
            backlog.cpu_us_per_delivery
        ));
    }

    fn print_memory(&self, output: &mut Output) {
        heading(output, "Memory of the server, without the window of ids");
        let mut rows = Vec::new();
        if let Some(backlog) = &self.backlog {
            let of = |words: String, bytes: u64| [words, format!("{} MiB", grouped(mib(bytes)))];
            rows.push(of("empty".to_owned(), backlog.empty_bytes));
            let waiting = format!("{} events waiting", grouped(whole(backlog.events)));
            rows.push(of(waiting, backlog.filled_bytes));
            rows.push(of(
                "the same after the drain".to_owned(),
                backlog.drained_bytes,
            ));
            rows.push(of("the most meanwhile".to_owned(), backlog.peak_bytes));
        }
        rows.extend(self.lanes.iter().map(|one| {
            [
                format!("{} destinations", one.lanes),
                format!("{} MiB", grouped(mib(one.bytes))),
            ]
        }));
        rows.push([
            "one more destination".to_owned(),
            format!(
                "{} KiB",
                grouped(whole(bytes_per_lane(&self.lanes)) / 1024.0)
            ),
        ]);
        output.table(["SERVER", "RESIDENT"], &rows);
    }

    fn print_sizing(&self, sizing: &Sizing, output: &mut Output) {
        heading(
            output,
            "What follows for events like these, with the default settings (docs/sizing.md has the rule)",
        );
        print_rates(sizing, output);
        print_disk(sizing, self.settled_bytes_per_event, output);
        print_window(sizing, output);
        heading(output, "Memory, at the most");
        let rows: Vec<_> = sizing
            .memory
            .iter()
            .map(|one| {
                [
                    one.lanes.to_string(),
                    size(one.server_bytes),
                    size(one.queue_bytes),
                    size(one.window_bytes),
                    size(one.total_bytes),
                ]
            })
            .collect();
        output.table(
            ["DESTINATIONS", "SERVER", "WAITING REQUESTS", "IDS", "TOTAL"],
            &rows,
        );
        heading(
            output,
            "Not enough? In this order: more events a request, more callers, a faster disk; where the",
        );
        output
            .line("processors end it, more of them, and with more than four of them more shards.");
    }
}

fn print_rates(sizing: &Sizing, output: &mut Output) {
    heading(
        output,
        "Events a second at the most, by sync and by callers x events a request; this disk first",
    );
    let rows: Vec<_> = sizing
        .rate
        .as_chunks::<{ CALLERS.len() }>()
        .0
        .iter()
        .map(|of_sync| {
            let [first, ..] = of_sync;
            let [a, b, c, d, e] = of_sync.each_ref().map(|one| {
                let mark = if one.is_disk { "" } else { " *" };
                format!("{}{mark}", grouped(one.events_per_second))
            });
            [millis(first.sync_ms), a, b, c, d, e]
        })
        .collect();
    let loads = CALLERS.map(|(callers, batch)| format!("{callers} x {batch}"));
    let [a, b, c, d, e] = loads.each_ref().map(String::as_str);
    output.table(["SYNC", a, b, c, d, e], &rows);
    output.line("* as far as these processors go, with all of them for the server");
}

fn print_disk(sizing: &Sizing, settled: Option<f64>, output: &mut Output) {
    heading(
        output,
        "Disk, while destinations take everything; and for each hour that one is away",
    );
    let rows: Vec<_> = sizing
        .disk
        .iter()
        .map(|one| {
            [
                grouped(one.events_per_second),
                size(one.retained_bytes),
                size(one.index_bytes),
                size(one.in_motion_bytes),
                size(one.kept_free_bytes),
                size(one.total_bytes),
                size(one.away_hour_bytes),
            ]
        })
        .collect();
    output.table(
        [
            "EVENTS/S",
            "FOR REPLAY",
            "INDEX FILES",
            "IN MOTION",
            "KEPT FREE",
            "TOTAL",
            "AN HOUR AWAY",
        ],
        &rows,
    );
    output.line(format!(
        "An event that waits takes {} bytes, and {} in index files while its id is remembered.",
        grouped(settled.unwrap_or_default()),
        sizing.index_bytes_per_event
    ));
}

fn print_window(sizing: &Sizing, output: &mut Output) {
    heading(
        output,
        &format!(
            "Ids are remembered for {:.0} h and at most {} of them. To reach that far at any rate:",
            sizing.window_seconds / 3_600.0,
            grouped(whole(sizing.window_ids))
        ),
    );
    let rows: Vec<_> = sizing
        .disk
        .iter()
        .map(|one| {
            [
                grouped(one.events_per_second),
                grouped(whole(one.whole_window_ids)),
                size(one.whole_window_disk_bytes),
                size(one.whole_window_memory_bytes),
            ]
        })
        .collect();
    output.table(["EVENTS/S", "window_ids", "INDEX FILES", "MEMORY"], &rows);
}

/// Bytes in the unit that suits them.
fn size(bytes: u64) -> String {
    const KIB: f64 = 1024.0;
    let bytes = whole(bytes);
    let (unit, name) = [(KIB * KIB * KIB, "GiB"), (KIB * KIB, "MiB"), (KIB, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit)
        .unwrap_or((1.0, "B"));
    let number = bytes / unit;
    if number < 10.0 && unit > 1.0 {
        format!("{number:.1} {name}")
    } else {
        format!("{} {name}", grouped(number))
    }
}

fn heading(output: &mut Output, words: &str) {
    output.line("");
    output.line(words);
}

fn millis(millis: f64) -> String {
    match millis {
        ..0.0995 => format!("{millis:.3} ms"),
        ..9.95 => format!("{millis:.2} ms"),
        _ => format!("{millis:.1} ms"),
    }
}

fn mib(bytes: u64) -> f64 {
    whole(bytes) / 1_048_576.0
}

fn whole(n: u64) -> f64 {
    super::accept::count(n)
}

/// A whole number with its thousands set apart.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_at_a_glance() {
        for (number, text) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.5, "1,000"),
            (58_715.2, "58,715"),
            (1_234_567.0, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(millis(0.0123), "0.012 ms");
        assert_eq!(millis(1.239), "1.24 ms");
        assert_eq!(millis(12.34), "12.3 ms");
    }
}
