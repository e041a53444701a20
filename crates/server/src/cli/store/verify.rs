//! `store verify`: every finding with what is wrong, what it costs and what to do.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wayhold_store::rescue::StoppedStore;
use wayhold_store::rescue::verify::{Finding, Verified};

use super::refused;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;

/// How often a person is told how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(2);

/// Checks everything and prints what was found.
pub(super) fn run(store: &StoppedStore, output: &mut Output) -> Result<(), Failure> {
    let mut told = Instant::now();
    let mut progress = |file: &std::path::Path, done: usize, all: usize| {
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            output.note(format!(
                "{done} of {all} segments; reading {}",
                file.display()
            ));
        }
    };
    let verified = store
        .verify(&mut progress)
        .map_err(|error| refused(&error))?;
    output.json(&body(store, &verified));
    print(&verified, output);
    match verified.is_damaged() {
        false => Ok(()),
        true => Err(Failure::new(
            Exit::Failed,
            "something is damaged; nothing was changed",
        )),
    }
}

/// A finding as JSON.
pub(super) fn finding_body(finding: &Finding) -> Value {
    json!({
        "file": finding.file,
        "damage": finding.is_damage(),
        "what": finding.what,
        "costs": finding.costs,
        "do": finding.remedy.words(),
    })
}

fn body(store: &StoppedStore, verified: &Verified) -> Value {
    let accounts = verified.accounts.iter().map(|(destination, totals)| {
        json!({
            "destination": store.name_of(*destination),
            "accepted": totals.accepted,
            "delivered": totals.delivered,
            "pending": totals.pending,
            "dead_lettered": totals.dead,
            "expired": totals.expired,
            "discarded": totals.discarded,
        })
    });
    json!({
        "damaged": verified.is_damaged(),
        "findings": verified.findings.iter().map(finding_body).collect::<Vec<_>>(),
        "events": verified.rows,
        "index_files": verified.index_files,
        "dead_letters": verified.dead_letters,
        "accounts": accounts.collect::<Vec<_>>(),
    })
}

fn print(verified: &Verified, output: &mut Output) {
    for finding in &verified.findings {
        print_finding(finding, output);
    }
    output.line(format!(
        "checked {} events, {} index files, {} dead letters: {}",
        verified.rows,
        verified.index_files,
        verified.dead_letters,
        match verified.is_damaged() {
            true => "damaged",
            false => "all is well",
        }
    ));
}

/// A finding for a person.
pub(super) fn print_finding(finding: &Finding, output: &mut Output) {
    output.line(format!("{}: {}", finding.file.display(), finding.what));
    output.line(format!("  costs: {}", finding.costs));
    output.line(format!("  do: {}", finding.remedy.words()));
}
