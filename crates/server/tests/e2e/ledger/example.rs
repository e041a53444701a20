//! The export in `docs/ledger-example`, made here from nothing but its seeds: three commands, one of them with an erased
//! input, and a key that is followed by another.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use wayhold::command::export::ExportWriter;
use wayhold::command::verify::{Trusted, verify};
use wayhold_model::Timestamp;
use wayhold_model::ledger::commitment::commit;
use wayhold_model::ledger::export::Keys;
use wayhold_model::ledger::note::{Algorithm, Note, SigningNoteKey};
use wayhold_model::ledger::proof::Head;
use wayhold_model::ledger::tree::root_of;
use wayhold_model::ledger::{Actor, ActorKind, Checkpoint, Draft, Hash, Place, Salt, Trace};

const ORIGIN: &str = "ledger.example/demo";

/// The moment of the first record; each later one is a second later.
const BEGIN: u64 = 1_785_196_800_000_000;

/// One entry of the story, before it has a place.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) stream: String,
    pub(super) kind: &'static str,
    pub(super) actor: Actor,
    pub(super) body: Value,
}

/// A ledger in memory.
#[derive(Clone)]
pub(super) struct Example {
    pub(super) entries: Vec<Entry>,
    pub(super) payloads: Vec<(Hash, Salt, Vec<u8>)>,
    pub(super) keys: Vec<SigningNoteKey>,
}

pub(super) fn key(seed: [u8; 32]) -> SigningNoteKey {
    SigningNoteKey::new(ORIGIN, Algorithm::Ed25519, &seed).unwrap()
}

impl Example {
    pub(super) fn new() -> Self {
        let first = key(std::array::from_fn(|at| u8::try_from(at).unwrap()));
        let second = key([7; 32]);
        let mut example = Self {
            entries: Vec::new(),
            payloads: Vec::new(),
            keys: vec![first, second],
        };
        example.key_event(0, "key.added");
        for number in 1..=3 {
            example.command(number);
            if number == 2 {
                example.key_event(1, "key.added");
                example.key_event(0, "key.retired");
            }
        }
        let (erased, _, _) = example.payloads.remove(0);
        let officer = person("officer@example.com");
        let body = json!({
            "target": 1, "field": "/body/input", "erased": erased.to_string(),
            "reason": "asked for by the person", "legal_basis": "GDPR Art. 17", "by": "officer@example.com"
        });
        example.push(
            "cmd:019e0000-0000-7000-8000-000000000001",
            "redaction.applied",
            officer,
            body,
        );
        example
    }

    fn push(&mut self, stream: &str, kind: &'static str, actor: Actor, body: Value) {
        let stream = stream.to_owned();
        self.entries.push(Entry {
            stream,
            kind,
            actor,
            body,
        });
    }

    fn key_event(&mut self, key: usize, kind: &'static str) {
        let public = self.keys[key].public().clone();
        let body = json!({"verifier": public.to_string()});
        self.push(
            &format!("key:{}", public.id()),
            kind,
            Actor::system("ledger"),
            body,
        );
    }

    fn hold(&mut self, text: &str) -> Value {
        let salt = Salt(Hash::of(text.as_bytes()).0);
        let commitment = commit(&salt, text.as_bytes());
        self.payloads
            .push((commitment, salt, text.as_bytes().to_vec()));
        json!({"commit": commitment.to_string(), "bytes": text.len()})
    }

    /// Twelve records of a command's life.
    fn command(&mut self, number: u64) {
        let id = format!("019e0000-0000-7000-8000-{number:012}");
        let stream = format!("cmd:{id}");
        let amount = 400 * number;
        let args = format!(r#"{{"amount":{amount},"sku":"88000{number}"}}"#);
        let digest = Hash::of(args.as_bytes()).to_string();
        let input = self.hold(&format!("\"Bitte {number} × 库存 nachbestellen 😀\\n\""));
        let held = self.hold(&args);
        let system = Actor::system;
        let model = Actor {
            kind: ActorKind::Model,
            on_behalf_of: Some("planner".into()),
            ..system("assistant")
        };
        let body = json!({
            "command_id": id, "kind": "po_create", "kind_version": 1, "destination": "erp",
            "args": held, "input": input, "risk": "high", "reversibility": "compensatable",
            "rationale": {"summary": "stock is out: \"880004\" \u{1f}", "evidence_refs": []}
        });
        self.push(&stream, "command.accepted", model, body);
        let body =
            json!({"verdict": "require_approval", "reason_codes": ["amount"], "matched_rule": 0});
        self.push(&stream, "policy.evaluated", system("policy"), body);
        let body = json!({"approval_id": number, "bound_sha256": digest, "quorum": 1});
        self.push(&stream, "approval.requested", system("policy"), body);
        let body = json!({"approval_id": number, "decision": "granted", "comment": null});
        self.push(
            &stream,
            "approval.granted",
            person("anna@example.com"),
            body,
        );
        self.push(
            &stream,
            "approval.consumed",
            system("policy"),
            json!({"approval_id": number}),
        );
        let body = json!({"from": "pending_approval", "to": "ready", "reason": "approved"});
        self.push(&stream, "command.state", system("commands"), body);
        let body = json!({"n": 1, "destination": "erp", "method": "POST", "body_sha256": digest});
        self.push(&stream, "attempt.started", system("dispatch"), body);
        let response = self.hold(&format!(r#"{{"po":{number}}}"#));
        let body =
            json!({"n": 1, "outcome": "delivered", "http_status": 201, "response": response});
        self.push(&stream, "attempt.finished", system("dispatch"), body);
        let body = json!({"from": "sending", "to": "succeeded", "reason": "delivered"});
        self.push(&stream, "command.state", system("commands"), body);
        let body = json!({"result": "confirmed", "is_late": false, "drift_ms": -12});
        self.push(&stream, "reconcile.result", system("reconcile"), body);
        let reason = "maintenance";
        self.push(
            "dest:erp",
            "destination.paused",
            person("ops"),
            json!({"reason": reason}),
        );
        self.push(
            "dest:erp",
            "destination.resumed",
            person("ops"),
            json!({"reason": reason}),
        );
    }

    /// The records in canonical form.
    pub(super) fn records(&self) -> Vec<Vec<u8>> {
        let mut streams: HashMap<&str, (u64, Hash)> = HashMap::new();
        (0..)
            .zip(&self.entries)
            .map(|(idx, entry)| {
                let trace = Trace {
                    correlation_id: Some("case-7".into()),
                    ..Trace::default()
                };
                let Entry {
                    stream,
                    kind,
                    actor,
                    body,
                } = entry;
                let draft = Draft::new(stream.clone(), kind, actor, &trace, body).unwrap();
                let (sseq, prev) = streams
                    .get(stream.as_str())
                    .copied()
                    .unwrap_or((0, Hash::ZERO));
                let ts = Timestamp::from_micros(BEGIN + idx * 1_000_000);
                let (bytes, leaf) = draft.seal(&Place {
                    idx,
                    sseq,
                    prev,
                    ts,
                });
                streams.insert(stream, (sseq + 1, leaf));
                bytes
            })
            .collect()
    }

    pub(super) fn leaves(&self) -> Vec<Hash> {
        self.records()
            .iter()
            .map(|record| Hash::of_leaf(record))
            .collect()
    }

    /// A checkpoint over the first `size` records.
    pub(super) fn checkpoint(&self, size: usize, key: &SigningNoteKey) -> Note {
        let head = Head {
            size: size as u64,
            root: root_of(&self.leaves()[..size]),
        };
        let checkpoint = Checkpoint {
            origin: key.public().name().to_owned(),
            head,
            extensions: Vec::new(),
        };
        checkpoint.sign(key)
    }

    pub(super) fn write(&self, dir: &Path) {
        let mut export = ExportWriter::create(dir).unwrap();
        for record in self.records() {
            export.record(&record).unwrap();
            export.leaf(Hash::of_leaf(&record)).unwrap();
        }
        for (commitment, salt, payload) in &self.payloads {
            export.payload(*commitment, salt, payload).unwrap();
        }
        let keys = Keys {
            first: 0,
            keys: self.keys.iter().map(|key| key.public().clone()).collect(),
        };
        let checkpoint = self.checkpoint(self.entries.len(), &self.keys[1]);
        export.finish(&keys, &checkpoint).unwrap();
    }
}

fn person(id: &str) -> Actor {
    Actor {
        kind: ActorKind::Person,
        ..Actor::system(id)
    }
}

fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.push((path, bytes));
            }
        }
    }
    found.sort();
    found
}

/// With WAYHOLD_WRITE_LEDGER_EXAMPLE=1 the example is written anew.
#[test]
fn the_example_in_the_documentation_is_good_and_made_of_this() {
    let shown = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ledger-example");
    if std::env::var_os("WAYHOLD_WRITE_LEDGER_EXAMPLE").is_some() {
        drop(fs::remove_dir_all(&shown));
        Example::new().write(&shown);
    }
    let made = tempfile::tempdir().unwrap();
    let made = made.path().join("export");
    Example::new().write(&made);
    let relative = |root: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        let name = |path: PathBuf| path.strip_prefix(root).unwrap().to_owned();
        files(root)
            .into_iter()
            .map(|(path, bytes)| (name(path), bytes))
            .collect()
    };
    assert_eq!(relative(&shown), relative(&made));
    let verified = verify(&shown, &Trusted::default()).unwrap();
    assert_eq!(
        (verified.size, verified.payloads, verified.erased),
        (40, 8, 1)
    );
}
