//! Checking a ledger: how many records of an export are verified in a second, beside only parsing the same export as JSON.
//! The library alone, on one thread.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use wayhold::command::export::ExportWriter;
use wayhold::command::verify::{Trusted, verify};
use wayhold_model::Timestamp;
use wayhold_model::ledger::export::{Keys, PAYLOADS, RECORDS};
use wayhold_model::ledger::note::{Algorithm, SigningNoteKey};
use wayhold_model::ledger::proof::Head;
use wayhold_model::ledger::{
    Actor, Checkpoint, Draft, Frontier, Hash, Place, Salt, Trace, commitment,
};

use super::part::{Part, Round};
use super::series::Figures;
use super::verdict::{Derived, Target};
use crate::BenchError;

const VERIFY: &str = "ledger.verify";
const PARSE: &str = "ledger.parse";

/// Records of a command's life.
const LIFE: u64 = 10;

/// Verifying, against parsing.
pub const PART: Part = Part {
    names: &[VERIFY, PARSE],
    targets: &[Target::at_least(
        Derived::Ratio {
            of: VERIFY,
            over: PARSE,
        },
        0.3,
        0.4,
    )],
    round,
};

fn round(round: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let folder = round.data()?;
    let dir = folder.path().join("export");
    let records = round.plan.ledger_records;
    write(&dir, records)?;
    // Read once before, so that neither is the one that finds the files on the disk.
    parse(&dir)?;

    let begun = Instant::now();
    let parsed = parse(&dir)?;
    let parsing = begun.elapsed();
    let begun = Instant::now();
    let verified = verify(&dir, &Trusted::default()).map_err(|finding| finding.to_string())?;
    let verifying = begun.elapsed();
    if parsed != records || verified.size != records {
        return Err(format!(
            "{records} records, {parsed} parsed, {} verified",
            verified.size
        )
        .into());
    }
    figures.add(PARSE, "records/s", float(records) / parsing.as_secs_f64());
    figures.add(
        VERIFY,
        "records/s",
        float(records) / verifying.as_secs_f64(),
    );
    Ok(())
}

/// Reads every record, and every payload, which are JSON too.
fn parse(dir: &Path) -> Result<u64, BenchError> {
    let mut records = 0;
    for line in fs::read(dir.join(RECORDS))?.split(|byte| *byte == b'\n') {
        if !line.is_empty() {
            serde_json::from_slice::<Value>(line)?;
            records += 1;
        }
    }
    for entry in fs::read_dir(dir.join(PAYLOADS))? {
        let path = entry?.path();
        if path.extension().is_none() {
            serde_json::from_slice::<Value>(&fs::read(path)?)?;
        }
    }
    Ok(records)
}

/// An export of commands with ten records each, of which the first holds a payload.
fn write(dir: &Path, records: u64) -> Result<(), BenchError> {
    let key = SigningNoteKey::new("ledger.bench", Algorithm::Ed25519, &[7; 32]);
    let key = key.ok_or("no key")?;
    let (actor, trace) = (Actor::system("commands"), Trace::default());
    let mut export = ExportWriter::create(dir)?;
    let mut tree = Frontier::new();
    let mut last = Hash::ZERO;
    for idx in 0..records {
        // The first record introduces the key; the streams of commands follow.
        let (command, sseq) = ((idx.saturating_sub(1)) / LIFE, idx.saturating_sub(1) % LIFE);
        let (stream, kind, body) = match (idx, sseq) {
            (0, _) => {
                let body = json!({ "verifier": key.public().to_string() });
                ("key:bench".to_owned(), "key.added", body)
            }
            (_, 0) => {
                let payload = format!(r#"{{"amount":{command},"sku":"880004","text":"order"}}"#);
                let salt = Salt(Hash::of(payload.as_bytes()).0);
                let commit = commitment::commit(&salt, payload.as_bytes());
                export.payload(commit, &salt, payload.as_bytes())?;
                (
                    format!("cmd:{command:032}"),
                    "command.accepted",
                    accepted(command, commit),
                )
            }
            _ => (format!("cmd:{command:032}"), "command.state", moved(sseq)),
        };
        let prev = if sseq == 0 { Hash::ZERO } else { last };
        let draft = Draft::new(stream, kind, &actor, &trace, &body)?;
        let ts = Timestamp::from_micros(1_785_196_800_000_000 + idx);
        let (record, leaf) = draft.seal(&Place {
            idx,
            sseq,
            prev,
            ts,
        });
        export.record(&record)?;
        export.leaf(leaf)?;
        tree.push(leaf);
        last = leaf;
    }
    let head = Head {
        size: tree.size(),
        root: tree.root(),
    };
    let checkpoint = Checkpoint {
        origin: key.public().name().to_owned(),
        head,
        extensions: Vec::new(),
    };
    let keys = Keys {
        first: 0,
        keys: vec![key.public().clone()],
    };
    export.finish(&keys, &checkpoint.sign(&key))?;
    Ok(())
}

fn accepted(command: u64, commit: Hash) -> Value {
    json!({
        "command_id": format!("{command:032}"), "kind": "po_create", "kind_version": "1", "destination": "erp",
        "args": { "commit": commit.to_string(), "bytes": 48 }, "risk": "high", "reversibility": "compensatable",
        "rationale": { "summary": "the stock of 880004 runs out before the next delivery", "evidence_refs": ["a", "b"] },
        "model": { "provider": "example", "requested": "m-1", "returned": "m-1-2026" }
    })
}

fn moved(step: u64) -> Value {
    json!({ "from": "ready", "to": "sending", "reason": "its turn", "n": step })
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
