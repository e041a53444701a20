//! The ledger's part of the page; without a ledger it is empty, and so it is of second places where none are configured.

use std::fmt;

use super::count;
use super::page::Page;
use crate::telemetry::report::Report;

pub(super) fn ledger(page: &mut Page<'_>, report: &Report) -> fmt::Result {
    let standing = || report.ledger.iter();
    let signed = || standing().filter_map(|ledger| ledger.signed);
    page.gauge(
        "ledger_records",
        "Records that were ever written into the ledger",
        standing().map(|ledger| ([], count(ledger.records))),
    )?;
    page.gauge(
        "ledger_bytes",
        "Bytes on disk of commands, ledger and payloads, which are one file",
        standing().map(|ledger| ([], count(ledger.bytes))),
    )?;
    page.gauge(
        "ledger_checkpoint_records",
        "Records that the newest signed checkpoint covers",
        signed().map(|signed| ([], count(signed.size))),
    )?;
    page.gauge(
        "ledger_checkpoint_age_seconds",
        "Age of the newest signed checkpoint",
        signed().map(|signed| ([], report.at.since(signed.at).as_secs_f64())),
    )?;
    let anchors = || report.anchors.iter();
    page.gauge(
        "ledger_anchor_records",
        "Records that the newest checkpoint in a second place covers",
        anchors().filter_map(|one| Some((of_anchor(&one.name), count(one.size?)))),
    )?;
    page.gauge(
        "ledger_anchor_age_seconds",
        "Time since a checkpoint was put into a second place",
        anchors().filter_map(|one| {
            let age = report.at.since(one.at?);
            Some((of_anchor(&one.name), age.as_secs_f64()))
        }),
    )?;
    page.counter(
        "ledger_anchor_failures",
        "Tries to put a checkpoint into a second place that failed",
        anchors().map(|one| (of_anchor(&one.name), one.failures)),
    )
}

fn of_anchor(anchor: &str) -> [(&'static str, &str); 1] {
    [("anchor", anchor)]
}
