//! `store inspect`: what there is, as JSON or in tables.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wayhold_model::{DestinationId, Timestamp};
use wayhold_store::rescue::StoppedStore;
use wayhold_store::rescue::inspect::{
    CatalogInventory, CommandsInventory, Inventory, SegmentInventory, ShardInventory,
};

use super::refused;
use crate::cli::exit::Failure;
use crate::cli::output::{Output, cell, items};

/// Prints everything that lies in the directory.
pub(super) fn run(store: &StoppedStore, output: &mut Output) -> Result<(), Failure> {
    let inventory = store.inspect().map_err(|error| refused(&error))?;
    let answer = body(store, &inventory);
    output.json(&answer);
    print(&answer, output);
    Ok(())
}

fn body(store: &StoppedStore, inventory: &Inventory) -> Value {
    let catalog = match &inventory.catalog {
        Ok(catalog) => catalog_body(catalog),
        Err(reason) => json!({ "problem": reason }),
    };
    let shards = inventory
        .shards
        .iter()
        .map(|shard| shard_body(store, shard));
    let shards = shards.collect::<Vec<_>>();
    let mut body = json!({ "catalog": catalog, "shards": shards });
    let commands = match &inventory.commands {
        Ok(None) => return body,
        Ok(Some(commands)) => commands_body(commands),
        Err(reason) => json!({ "problem": reason }),
    };
    if let Some(body) = body.as_object_mut() {
        body.insert("commands".to_owned(), commands);
    }
    body
}

fn catalog_body(catalog: &CatalogInventory) -> Value {
    let generations = catalog.generations.iter().map(|one| {
        json!({
            "generation": one.generation.0,
            "shards": one.shards,
            "since": one.since.to_string(),
        })
    });
    let destinations = catalog.destinations.iter().map(|one| {
        json!({
            "number": one.id.0,
            "name": one.name,
            "state": one.state.name(),
            "reason": one.reason,
            "since": one.since.to_string(),
        })
    });
    json!({
        "format": catalog.format,
        "node": catalog.node,
        "tokens": catalog.tokens,
        "generations": generations.collect::<Vec<_>>(),
        "destinations": destinations.collect::<Vec<_>>(),
    })
}

fn commands_body(commands: &CommandsInventory) -> Value {
    let counts = commands.counts.iter().filter(|(_, count)| *count > 0);
    let counts = counts.map(|(state, count)| (state.name().to_owned(), json!(count)));
    json!({
        "file": commands.file,
        "format": commands.format,
        "by_state": Value::Object(counts.collect()),
    })
}

fn shard_body(store: &StoppedStore, shard: &ShardInventory) -> Value {
    let mark = match &shard.mark {
        Ok(mark) => json!({ "clean": mark.clean, "segment": mark.segment, "last": mark.last }),
        Err(reason) => json!({ "problem": reason }),
    };
    let state = match &shard.state {
        Ok(state) => json!({
            "file": state.file,
            "format": state.format,
            "dead_letters": state.dead_letters,
            "resolved_segments": state.resolved_segments,
        }),
        Err(reason) => json!({ "problem": reason }),
    };
    let segments = shard.segments.iter().map(|one| segment_body(store, one));
    json!({
        "shard": shard.name,
        "directory": shard.dir,
        "present": shard.exists,
        "mark": mark,
        "state": state,
        "segments": segments.collect::<Vec<_>>(),
        "quarantined": shard.quarantined,
        "unknown": shard.unknown,
    })
}

fn segment_body(store: &StoppedStore, segment: &SegmentInventory) -> Value {
    let newest = (segment.newest != 0).then(|| Timestamp::from_micros(segment.newest).to_string());
    json!({
        "segment": segment.number,
        "sealed": segment.index_bytes.is_some(),
        "resolved": segment.resolved,
        "events": segment.rows,
        "first": segment.span.map(|(first, _)| first),
        "last": segment.span.map(|(_, last)| last),
        "compacted": segment.covers.is_some(),
        "newest_accepted_at": newest,
        "bytes": segment.bytes,
        "log_bytes": segment.wal_bytes,
        "index_bytes": segment.index_bytes,
        "pending": named(store, &segment.pending),
        "problem": segment.problem,
    })
}

fn named(store: &StoppedStore, counts: &BTreeMap<DestinationId, u64>) -> Value {
    let counts = counts.iter();
    let named = counts.map(|(id, count)| (store.name_of(*id), json!(count)));
    Value::Object(named.collect())
}

fn print(answer: &Value, output: &mut Output) {
    let Some(catalog) = answer.get("catalog") else {
        return;
    };
    output.line("catalogue:");
    output.fields(catalog);
    if let Some(commands) = answer.get("commands") {
        output.line("commands:");
        output.fields(commands);
    }
    for shard in items(&json!({ "items": answer.get("shards") })) {
        output.line("");
        output.line(format!("shard {}:", cell(shard, "shard")));
        for part in ["mark", "state"] {
            output.fields(&json!({ part: shard.get(part) }));
        }
        let segments = json!({ "items": shard.get("segments") });
        let rows: Vec<_> = items(&segments)
            .iter()
            .map(|segment| {
                [
                    "segment",
                    "events",
                    "first",
                    "last",
                    "sealed",
                    "compacted",
                    "resolved",
                    "bytes",
                    "log_bytes",
                    "pending",
                    "problem",
                ]
                .map(|field| cell(segment, field))
            })
            .collect();
        output.table(
            [
                "SEGMENT",
                "EVENTS",
                "FIRST",
                "LAST",
                "SEALED",
                "COMPACTED",
                "RESOLVED",
                "BYTES",
                "LOG",
                "PENDING",
                "PROBLEM",
            ],
            &rows,
        );
        for (list, what) in [
            ("quarantined", "put aside"),
            ("unknown", "not of this store"),
        ] {
            let files = json!({ "items": shard.get(list) });
            for file in items(&files) {
                output.line(format!("{what}: {}", file.as_str().unwrap_or_default()));
            }
        }
    }
}
