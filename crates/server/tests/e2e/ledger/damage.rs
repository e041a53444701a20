//! Two hundred damaged exports. What each verifier has to say is known from what was done.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use wayhold::command::verify::{Trusted, verify};
use wayhold_model::ledger::note::{Algorithm, SigningNoteKey};
use wayhold_model::ledger::{Actor, Hash};

use super::example::{Entry, Example, key};

/// Damaged exports, at least.
const EXPORTS: usize = 200;

/// The verdict: a problem, and the first bad record.
type Verdict = (&'static str, Option<usize>);

/// An export on disk that is being damaged.
struct Export {
    dir: PathBuf,
    example: Example,
    records: Vec<Vec<u8>>,
    /// A checkpoint that was kept outside.
    outside: Option<String>,
}

impl Export {
    fn new(root: &Path, number: usize) -> Self {
        let dir = root.join(number.to_string());
        let example = Example::new();
        example.write(&dir);
        let records = example.records();
        Self {
            dir,
            example,
            records,
            outside: None,
        }
    }

    fn size(&self) -> usize {
        self.records.len()
    }

    fn text(&self, at: usize) -> String {
        String::from_utf8(self.records[at].clone()).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn edit(&self, name: &str, edit: impl FnOnce(String) -> String) {
        let before = fs::read_to_string(self.path(name)).unwrap();
        let after = edit(before.clone());
        assert_ne!(before, after, "{name} was not damaged");
        fs::write(self.path(name), after).unwrap();
    }

    fn write_records(&self) {
        let mut bytes = self.records.join(&b'\n');
        if !bytes.is_empty() {
            bytes.push(b'\n');
        }
        assert_ne!(
            fs::read(self.path("records.jsonl")).unwrap(),
            bytes,
            "not damaged"
        );
        fs::write(self.path("records.jsonl"), bytes).unwrap();
    }

    fn replace(&mut self, at: usize, from: &str, to: &str) {
        let text = self.text(at);
        assert!(text.contains(from), "{text} has no {from}");
        self.records[at] = text.replacen(from, to, 1).into_bytes();
        self.write_records();
    }

    /// The payload files of a record, and the record, for those whose payload is there.
    fn payload(&self, nth: usize) -> (PathBuf, PathBuf, usize) {
        let (commitment, _, _) = &self.example.payloads[nth % self.example.payloads.len()];
        let named = commitment.to_string();
        let by = |record: &Vec<u8>| String::from_utf8_lossy(record).contains(&named);
        let record = self.records.iter().position(by).unwrap();
        let path = self.path("payloads").join(&named);
        (path.clone(), path.with_extension("salt"), record)
    }

    /// A later record of the same stream.
    fn successor(&self, at: usize) -> Option<usize> {
        let stream = &self.example.entries[at].stream;
        let mut later = self.example.entries.iter().enumerate().skip(at + 1);
        later
            .find(|(_, entry)| entry.stream == *stream)
            .map(|(record, _)| record)
    }

    /// Writes everything but `keys.json` as `example` has it, cut after `size` records and signed by `key`.
    fn rewrite(&mut self, example: &Example, size: usize, key: &SigningNoteKey) {
        let lines = |lines: Vec<String>| lines.join("\n") + "\n";
        self.records = example.records()[..size].to_vec();
        self.write_records_anyway();
        let leaves = example.leaves()[..size]
            .iter()
            .map(Hash::to_string)
            .collect();
        fs::write(self.path("leaves"), lines(leaves)).unwrap();
        fs::write(
            self.path("checkpoint"),
            example.checkpoint(size, key).to_string(),
        )
        .unwrap();
    }

    fn write_records_anyway(&self) {
        let bytes = [self.records.join(&b'\n'), b"\n".to_vec()].concat();
        fs::write(self.path("records.jsonl"), bytes).unwrap();
    }

    /// The checkpoint that was kept outside, as a file.
    fn outside_file(&self) -> Option<PathBuf> {
        let outside = self.outside.as_ref()?;
        let file = self.dir.with_extension("outside");
        fs::write(&file, outside).unwrap();
        Some(file)
    }

    fn stranger() -> SigningNoteKey {
        key([9; 32])
    }
}

type Damage = (&'static str, fn(&mut Export, usize) -> Verdict);

/// Each kind of damage, done at a record, payload or hash of that number.
const KINDS: &[Damage] = &[
    ("a letter of a record", |export, at| {
        export.replace(at, "\"tenant\":0", "\"tenant\":1");
        ("changed", Some(at))
    }),
    ("a record's actor", |export, at| {
        export.replace(at, "\"actor\":{\"id\":\"", "\"actor\":{\"id\":\"x");
        ("changed", Some(at))
    }),
    ("a record's time", |export, at| {
        export.replace(at, "\"ts\":\"2026", "\"ts\":\"2025");
        ("changed", Some(at))
    }),
    ("a record's stream", |export, at| {
        export.replace(at, "\"stream\":\"", "\"stream\":\"x");
        ("changed", Some(at))
    }),
    ("a record's idx", |export, at| {
        export.replace(
            at,
            &format!("\"idx\":{at},"),
            &format!("\"idx\":{},", at + 7),
        );
        ("order", Some(at))
    }),
    ("a deleted record", |export, at| {
        export.records.remove(at);
        export.write_records();
        let last = export.example.entries.len() - 1;
        (if at == last { "missing" } else { "order" }, Some(at))
    }),
    ("a record twice", |export, at| {
        let again = export.records[at].clone();
        export.records.insert(at, again);
        export.write_records();
        ("order", Some(at + 1))
    }),
    ("two records swapped", |export, at| {
        let other = (at + 5) % export.size();
        export.records.swap(at, other);
        export.write_records();
        ("order", Some(at.min(other)))
    }),
    ("records in reverse", |export, _| {
        export.records.reverse();
        export.write_records();
        ("order", Some(0))
    }),
    ("records cut off", |export, at| {
        export.records.truncate(at);
        export.write_records();
        ("missing", Some(at))
    }),
    ("a record after the last", |export, at| {
        let size = export.size();
        let last = export
            .text(at)
            .replace(&format!("\"idx\":{at},"), &format!("\"idx\":{size},"));
        export.records.push(last.into_bytes());
        export.write_records();
        ("beyond", Some(size))
    }),
    ("an older checkpoint with its records", |export, at| {
        let size = at.max(30);
        let example = export.example.clone();
        export.outside = Some(fs::read_to_string(export.path("checkpoint")).unwrap());
        export.rewrite(&example, size, &example.keys[1]);
        ("truncated", Some(size))
    }),
    ("another history, signed by the same key", |export, at| {
        export.outside = Some(fs::read_to_string(export.path("checkpoint")).unwrap());
        let mut forged = export.example.clone();
        let Value::Object(body) = &mut forged.entries[at].body else {
            unreachable!()
        };
        body.insert("forged".into(), json!(true));
        let key = forged.keys[1].clone();
        export.rewrite(&forged, forged.entries.len(), &key);
        ("forked", None)
    }),
    (
        "a history with a longer end, signed by the same key",
        |export, at| {
            let example = export.example.clone();
            export.outside = Some(example.checkpoint(30.max(at), &example.keys[1]).to_string());
            let mut forged = example;
            forged.entries.swap(3, 4);
            let entry = Entry {
                stream: "dest:erp".into(),
                kind: "destination.paused",
                actor: Actor::system("x"),
                body: json!({}),
            };
            forged.entries.push(entry);
            let key = forged.keys[1].clone();
            export.rewrite(&forged, forged.entries.len(), &key);
            ("forked", None)
        },
    ),
    ("a checkpoint signed by a stranger", |export, _| {
        let checkpoint = export
            .example
            .checkpoint(export.size(), &Export::stranger());
        fs::write(export.path("checkpoint"), checkpoint.to_string()).unwrap();
        ("checkpoint", None)
    }),
    ("a stranger's checkpoint and keys", |export, _| {
        let stranger = Export::stranger();
        let checkpoint = export.example.checkpoint(export.size(), &stranger);
        fs::write(export.path("checkpoint"), checkpoint.to_string()).unwrap();
        let keys = json!({"first": 0, "keys": [stranger.public().to_string()]});
        fs::write(export.path("keys.json"), keys.to_string()).unwrap();
        ("key", None)
    }),
    ("a checkpoint signed by a retired key", |export, _| {
        let checkpoint = export
            .example
            .checkpoint(export.size(), &export.example.keys[0]);
        fs::write(export.path("checkpoint"), checkpoint.to_string()).unwrap();
        ("key", None)
    }),
    (
        "a checkpoint of another ledger from outside",
        |export, at| {
            let other =
                SigningNoteKey::new("ledger.example/other", Algorithm::Ed25519, &[7; 32]).unwrap();
            export.outside = Some(export.example.checkpoint(at, &other).to_string());
            ("outside", None)
        },
    ),
    (
        "a checkpoint from outside with a changed size",
        |export, at| {
            let note = export
                .example
                .checkpoint(at + 1, &export.example.keys[0])
                .to_string();
            let from = format!("\n{}\n", at + 1);
            export.outside = Some(note.replacen(&from, &format!("\n{}\n", at + 2), 1));
            ("outside", None)
        },
    ),
    ("the checkpoint's size", |export, at| {
        let size = export.size();
        export.edit("checkpoint", |text| {
            text.replacen(&format!("\n{size}\n"), &format!("\n{at}\n"), 1)
        });
        ("checkpoint", None)
    }),
    ("the checkpoint's root", |export, at| {
        let root = export.example.leaves()[at].to_base64();
        export.edit("checkpoint", |text| {
            let mut lines: Vec<&str> = text.split('\n').collect();
            lines[2] = &root;
            lines.join("\n")
        });
        ("checkpoint", None)
    }),
    ("no checkpoint", |export, _| {
        fs::remove_file(export.path("checkpoint")).unwrap();
        ("checkpoint", None)
    }),
    ("a checkpoint without its last line feed", |export, _| {
        export.edit("checkpoint", |text| text.trim_end().to_owned());
        ("checkpoint", None)
    }),
    ("no keys", |export, _| {
        fs::remove_file(export.path("keys.json")).unwrap();
        ("keys", None)
    }),
    ("a key that is changed", |export, _| {
        export.edit("keys.json", |text| text.replacen("demo+7b", "demo+7c", 1));
        ("keys", None)
    }),
    (
        "the first records cut off, and said to be removed",
        |export, at| {
            let first = at.max(1);
            export.records.drain(..first);
            export.write_records();
            export.edit("keys.json", |text| {
                text.replacen("\"first\":0", &format!("\"first\":{first}"), 1)
            });
            // What the records before said is not known, so a stream may go on; the first that is missing is 0.
            ("missing", Some(0))
        },
    ),
    ("a changed payload", |export, at| {
        let (payload, _, record) = export.payload(at);
        let mut bytes = fs::read(&payload).unwrap();
        bytes.push(b' ');
        fs::write(payload, bytes).unwrap();
        ("payload", Some(record))
    }),
    ("two payloads swapped", |export, at| {
        let ((one, _, first), (other, _, second)) = (export.payload(at), export.payload(at + 3));
        let (a, b) = (fs::read(&one).unwrap(), fs::read(&other).unwrap());
        fs::write(one, b).unwrap();
        fs::write(other, a).unwrap();
        ("payload", Some(first.min(second)))
    }),
    ("a payload deleted with its salt", |export, at| {
        let (payload, salt, record) = export.payload(at);
        fs::remove_file(payload).unwrap();
        fs::remove_file(salt).unwrap();
        ("payload", Some(record))
    }),
    ("a payload deleted", |export, at| {
        let (payload, _, record) = export.payload(at);
        fs::remove_file(payload).unwrap();
        ("payload", Some(record))
    }),
    ("a salt deleted", |export, at| {
        let (_, salt, record) = export.payload(at);
        fs::remove_file(salt).unwrap();
        ("payload", Some(record))
    }),
    ("a salt in capitals", |export, at| {
        let (_, salt, record) = export.payload(at);
        let text = fs::read_to_string(&salt).unwrap().to_uppercase();
        fs::write(salt, text).unwrap();
        ("payload", Some(record))
    }),
    ("a payload that no record names", |export, at| {
        let name = Hash::of(&[u8::try_from(at).unwrap()]).to_string();
        fs::write(export.path("payloads").join(name), "x").unwrap();
        ("stray", None)
    }),
    ("a leaf hash", |export, at| {
        let hash = export.example.leaves()[at].to_string();
        export.edit("leaves", |text| {
            text.replacen(&hash, &Hash::ZERO.to_string(), 1)
        });
        ("leaves", None)
    }),
    ("no leaf hashes, and a changed record", |export, at| {
        fs::remove_file(export.path("leaves")).unwrap();
        export.replace(at, "\"tenant\":0", "\"tenant\":1");
        match export.successor(at) {
            Some(successor) => ("chain", Some(successor)),
            None => ("root", None),
        }
    }),
    ("a changed record with its leaf hash", |export, at| {
        let before = export.example.leaves()[at].to_string();
        export.replace(at, "\"tenant\":0", "\"tenant\":1");
        let after = Hash::of_leaf(&export.records[at]).to_string();
        export.edit("leaves", |text| text.replacen(&before, &after, 1));
        match export.successor(at) {
            Some(successor) => ("chain", Some(successor)),
            None => ("root", None),
        }
    }),
    ("a space in a record", |export, at| {
        export.replace(at, "\"tenant\":0", "\"tenant\": 0");
        ("record", Some(at))
    }),
    ("a name twice", |export, at| {
        export.replace(at, "\"tenant\":0", "\"tenant\":0,\"tenant\":0");
        ("record", Some(at))
    }),
    ("names in another order", |export, at| {
        export.replace(at, ",\"v\":1}", "}");
        export.replace(at, "{\"actor\"", "{\"v\":1,\"actor\"");
        ("record", Some(at))
    }),
    ("a number with a fraction", |export, at| {
        export.replace(at, "\"tenant\":0", "\"tenant\":0.0");
        ("record", Some(at))
    }),
    ("a number that a double does not hold", |export, at| {
        export.replace(at, "\"tenant\":0", "\"tenant\":9007199254740992");
        ("record", Some(at))
    }),
    ("an escape too many", |export, at| {
        export.replace(at, "\"type\":\"", "\"type\":\"\\u0061");
        ("record", Some(at))
    }),
    ("a lone surrogate", |export, at| {
        export.replace(at, "\"type\":\"", "\"type\":\"\\ud800");
        ("record", Some(at))
    }),
    ("a byte that is no UTF-8", |export, at| {
        let end = export.records[at].len() - 12;
        export.records[at][end] = 0xff;
        export.write_records();
        ("record", Some(at))
    }),
    ("a record of another version", |export, at| {
        export.replace(at, "\"v\":1}", "\"v\":2}");
        ("record", Some(at))
    }),
    ("an empty line", |export, at| {
        export.records.insert(at, Vec::new());
        export.write_records();
        ("record", Some(at))
    }),
    ("a line that is no record", |export, at| {
        export.records[at] = b"[]".to_vec();
        export.write_records();
        ("record", Some(at))
    }),
    ("carriage returns", |export, at| {
        export.records[at].push(b'\r');
        export.write_records();
        ("record", Some(at))
    }),
    ("no line feed at the end", |export, _| {
        export.edit("records.jsonl", |text| text.trim_end().to_owned());
        ("record", Some(export.size() - 1))
    }),
    ("no records", |export, _| {
        fs::remove_file(export.path("records.jsonl")).unwrap();
        ("missing", Some(0))
    }),
];

/// What the verifier says of it within this process: the verdict's line and the exit code.
fn judged(export: &Export) -> (String, Option<i32>) {
    let trusted = Trusted {
        keys: Vec::new(),
        checkpoint: export.outside.clone().map(String::into_bytes),
        witnesses: Vec::new(),
    };
    match verify(&export.dir, &trusted) {
        Ok(_) => ("ok".to_owned(), Some(0)),
        Err(finding) => (line(finding.problem.name(), finding.record), Some(1)),
    }
}

fn line(problem: &str, record: Option<impl ToString>) -> String {
    let record = record.map_or_else(|| "-".to_owned(), |record| record.to_string());
    format!("bad {problem} {record}")
}

/// What a program says: its first line, and how it ends.
fn said(program: &mut Command, export: &Export) -> (String, Option<i32>) {
    if let Some(file) = export.outside_file() {
        program.arg("--checkpoint").arg(file);
    }
    let output = program.arg(&export.dir).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let first = text.lines().next().unwrap_or(&words).to_owned();
    (first, output.status.code())
}

/// Exit code of `scripts/verify/ledger` when Python or its package cannot be had.
const ABSENT: i32 = 77;

/// What runs the verifier that was written from the documentation alone; `None` where it cannot run here.
fn independent() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/verify/ledger");
    let asked = Command::new(&script).arg("available").output().unwrap();
    if asked.status.success() {
        return Some(script);
    }
    let why = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(ABSENT), "{why}");
    let required = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(!required, "{why}");
    println!("skipped: the second verifier of ledgers: {}", why.trim());
    None
}

/// The tests that come with that verifier.
#[test]
fn the_second_verifier_passes_its_own_tests() {
    if let Some(script) = independent() {
        let tests = Command::new(script).arg("test").output().unwrap();
        let words = String::from_utf8_lossy(&tests.stderr);
        assert!(tests.status.success(), "{words}");
    }
}

/// Every export is judged by both verifiers, ours from the command line too, the other one in a single process.
#[test]
fn two_verifiers_say_of_200_damaged_exports_what_was_done_to_them() {
    let root = tempfile::tempdir().unwrap();
    let size = Example::new().entries.len();
    let mut damaged = Vec::new();
    for number in 0..EXPORTS.next_multiple_of(KINDS.len()) {
        let (kind, damage) = KINDS[number % KINDS.len()];
        // Every turn hits other places: the first record, the last, and ones between.
        let turn = number / KINDS.len();
        let at = [13, 0, size - 1, 22, 37][turn % 5];
        let mut export = Export::new(root.path(), number);
        let (problem, record) = damage(&mut export, at);
        damaged.push((format!("{kind} at {at}"), line(problem, record), export));
    }
    let mut wrong = Vec::new();
    let mut hold = |verifier: &str, what: &str, verdict: &(String, Option<i32>), expected: &str| {
        if *verdict != (expected.to_owned(), Some(1)) {
            wrong.push(format!(
                "{verifier}, {what}: {verdict:?}, expected {expected}"
            ));
        }
    };
    for (what, expected, export) in &damaged {
        hold("verify", what, &judged(export), expected);
        let mut ours = Command::new(env!("CARGO_BIN_EXE_wayhold"));
        let said = said(ours.args(["ledger", "verify"]), export);
        hold("wayhold", what, &said, expected);
    }
    if let Some(python) = independent() {
        let exports = damaged.iter().map(|(_, _, export)| export);
        let verdicts = said_of_many(&python, exports);
        assert_eq!(verdicts.len(), damaged.len(), "{verdicts:?}");
        for ((what, expected, _), verdict) in damaged.iter().zip(verdicts) {
            hold("python", what, &(verdict, Some(1)), expected);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the other verifier says of each, asked in one process.
fn said_of_many<'e>(python: &Path, exports: impl Iterator<Item = &'e Export>) -> Vec<String> {
    let mut asked = String::new();
    for export in exports {
        asked.push_str(export.dir.to_str().unwrap());
        if let Some(outside) = export.outside_file() {
            asked.push('\t');
            asked.push_str(outside.to_str().unwrap());
        }
        asked.push('\n');
    }
    let list = tempfile::NamedTempFile::new().unwrap();
    fs::write(list.path(), asked).unwrap();
    let output = Command::new(python)
        .arg("many")
        .stdin(fs::File::open(list.path()).unwrap())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().map(str::to_owned).collect()
}
