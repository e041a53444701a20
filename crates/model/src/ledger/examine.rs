//! The examination of an export, record by record: what `ledger verify` says. Files are handed in, so that the
//! rules can be tested one by one; their order is part of the format (`docs/ledger-format.md`), so that two
//! verifiers name the same first bad record.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::Value;

use super::canonical;
use super::checkpoint::Checkpoint;
use super::export::commitments;
use super::hash::Hash;
use super::proof::Head;
use super::record::RECORD_VERSION;
use super::tree::{Frontier, root_of};

/// What is wrong with an export. The names are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// `keys.json` is missing or unreadable.
    Keys,
    /// The checkpoint is missing, unreadable, or not signed by a known key.
    Checkpoint,
    /// The checkpoint from outside is unreadable or not signed by a known key.
    Outside,
    /// A witness that counts has not cosigned the checkpoint.
    Witness,
    /// A line is no record in canonical form.
    Record,
    /// A record does not have the place that is next.
    Order,
    /// A record lies beyond those that the checkpoint covers.
    Beyond,
    /// A record is not the one that was signed.
    Changed,
    /// A record does not follow the one before it in its stream.
    Chain,
    /// Records are missing that the checkpoint covers.
    Missing,
    /// The records are the signed ones, and the file of leaf hashes is not theirs.
    Leaves,
    /// The records do not give the signed root, and nothing tells which of them is bad.
    Root,
    /// The checkpoint is signed with a key that no record introduces, or that was retired before.
    Key,
    /// The checkpoint from outside covers records that are missing here.
    Truncated,
    /// The checkpoint from outside is of another history.
    Forked,
    /// A payload that a record names is missing, or is not the one that it names.
    Payload,
    /// A file among the payloads that no record names.
    Stray,
}

impl Problem {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Checkpoint => "checkpoint",
            Self::Outside => "outside",
            Self::Witness => "witness",
            Self::Record => "record",
            Self::Order => "order",
            Self::Beyond => "beyond",
            Self::Changed => "changed",
            Self::Chain => "chain",
            Self::Missing => "missing",
            Self::Leaves => "leaves",
            Self::Root => "root",
            Self::Key => "key",
            Self::Truncated => "truncated",
            Self::Forked => "forked",
            Self::Payload => "payload",
            Self::Stray => "stray",
        }
    }
}

/// The first thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing.
    pub problem: Problem,
    /// The first bad record, or the first that is missing; `None` where the fault is in no record.
    pub record: Option<u64>,
    /// What was found, for a person.
    pub detail: String,
}

impl Finding {
    /// One that concerns no record.
    pub fn of_export(problem: Problem, detail: impl Into<String>) -> Self {
        Self {
            problem,
            record: None,
            detail: detail.into(),
        }
    }

    /// One of a record.
    pub fn of_record(problem: Problem, record: u64, detail: impl Into<String>) -> Self {
        Self {
            problem,
            record: Some(record),
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.record {
            Some(record) => write!(f, "record {record}: {}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

/// An examination under way.
#[derive(Debug)]
pub struct Examination {
    head: Head,
    /// Leaf hashes that give the signed root; without them a changed record cannot always be told.
    leaves: Option<Vec<Hash>>,
    /// The tree of the records read, where there are no such leaf hashes.
    frontier: Frontier,
    first: u64,
    next: u64,
    /// By stream: how many records, and the leaf hash of the last.
    streams: HashMap<String, (u64, Hash)>,
    kept: Kept,
}

/// What records say about the ledger itself.
#[derive(Debug, Default)]
struct Kept {
    /// First record that is held, as the last retention says.
    first: u64,
    /// By verifier key: the record that introduced it.
    added: HashMap<String, u64>,
    retired: HashMap<String, u64>,
    /// Payloads, with the record that names each.
    named: Vec<(u64, Hash)>,
    erased: HashSet<Hash>,
}

/// Records that hold together; what is left to look at are keys, a checkpoint from outside, and payloads.
#[derive(Debug)]
pub struct Examined {
    head: Head,
    leaves: Vec<Hash>,
    first: u64,
    kept: Kept,
}

/// What an examination needs of a record.
struct Fields<'a> {
    idx: u64,
    sseq: u64,
    stream: &'a str,
    prev: Hash,
    kind: &'a str,
    body: &'a Value,
}

impl<'a> Fields<'a> {
    fn of(record: &'a Value) -> Option<Self> {
        let text = |name| record.get(name).and_then(Value::as_str);
        let number = |name| record.get(name).and_then(Value::as_u64);
        let body = record.get("body").filter(|body| body.is_object());
        if number("v") != Some(RECORD_VERSION) || text("ts").is_none() {
            return None;
        }
        Some(Self {
            idx: number("idx")?,
            sseq: number("sseq")?,
            stream: text("stream")?,
            prev: text("prev")?.parse().ok()?,
            kind: text("type")?,
            body: body?,
        })
    }
}

impl Examination {
    /// Begins, with the signed head, the leaf hashes of the export (`None` where they are missing or unreadable) and
    /// the first record that is said to be held.
    pub fn new(head: Head, leaves: Option<Vec<Hash>>, first: u64) -> Self {
        let leaves = leaves.filter(|leaves| {
            u64::try_from(leaves.len()) == Ok(head.size) && root_of(leaves) == head.root
        });
        Self {
            head,
            leaves,
            frontier: Frontier::new(),
            first,
            next: first,
            streams: HashMap::new(),
            kept: Kept::default(),
        }
    }

    /// The record that comes next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Takes the next line, without its line break.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong with it.
    pub fn record(&mut self, line: &[u8]) -> Result<(), Finding> {
        let expected = self.next;
        let bad = |problem, detail: String| Err(Finding::of_record(problem, expected, detail));
        let record = match canonical::read(line) {
            Ok(record) => record,
            Err(error) => return bad(Problem::Record, error.to_string()),
        };
        let Some(fields) = Fields::of(&record) else {
            let words = "a field is missing or of another type than a record's";
            return bad(Problem::Record, words.to_owned());
        };
        if fields.idx != expected {
            let words = format!("a record with idx {} lies in its place", fields.idx);
            return bad(Problem::Order, words);
        }
        if expected >= self.head.size {
            let words = format!("the checkpoint covers {} records only", self.head.size);
            return bad(Problem::Beyond, words);
        }
        let leaf = Hash::of_leaf(line);
        match &self.leaves {
            Some(leaves) => {
                let at = usize::try_from(expected).unwrap_or(usize::MAX);
                if leaves.get(at) != Some(&leaf) {
                    let words = "it is not the record that was signed";
                    return bad(Problem::Changed, words.to_owned());
                }
            }
            None => self.frontier.push(leaf),
        }
        if let Err(words) = self.follow(&fields, leaf) {
            return bad(Problem::Chain, words);
        }
        self.kept.take(&fields);
        self.next += 1;
        Ok(())
    }

    /// Every record follows the one before it in its stream. What a stream had before the first record that is held
    /// is not known here.
    fn follow(&mut self, fields: &Fields<'_>, leaf: Hash) -> Result<(), String> {
        match self.streams.get_mut(fields.stream) {
            Some((next, last)) => {
                if (fields.sseq, fields.prev) != (*next, *last) {
                    return Err(format!(
                        "sseq {} and prev do not follow record {} of its stream",
                        fields.sseq,
                        *next - 1
                    ));
                }
                *next += 1;
                *last = leaf;
            }
            None => {
                let begins = fields.sseq == 0 && fields.prev == Hash::ZERO;
                let goes_on = fields.sseq > 0 && self.first > 0;
                if !begins && !goes_on {
                    return Err("its stream does not begin with it".to_owned());
                }
                self.streams
                    .insert(fields.stream.to_owned(), (fields.sseq + 1, leaf));
            }
        }
        Ok(())
    }

    /// Ends: all lines were taken.
    ///
    /// # Errors
    ///
    /// Records are missing, or they do not give the signed root.
    pub fn end(self) -> Result<Examined, Finding> {
        let Head { size, root } = self.head;
        if self.next < size {
            let words = format!("it is missing, as are all up to {}", size - 1);
            return Err(Finding::of_record(Problem::Missing, self.next, words));
        }
        if self.kept.first != self.first {
            let (from, to) = (self.first, self.kept.first);
            let words = format!("the export begins at {from}, where records say {to}");
            return Err(Finding::of_record(Problem::Missing, from.min(to), words));
        }
        let Some(leaves) = self.leaves else {
            if self.first == 0 && self.frontier.root() == root {
                let words = "the file of leaf hashes is missing or not that of these records, which \
                             are the signed ones";
                return Err(Finding::of_export(Problem::Leaves, words));
            }
            let words = "the records do not give the signed root; without the leaf hashes nothing \
                         tells which of them was changed";
            return Err(Finding::of_export(Problem::Root, words));
        };
        Ok(Examined {
            head: self.head,
            leaves,
            first: self.first,
            kept: self.kept,
        })
    }
}

impl Kept {
    fn take(&mut self, fields: &Fields<'_>) {
        let text = |name| fields.body.get(name).and_then(Value::as_str);
        match fields.kind {
            "key.added" => {
                if let Some(key) = text("verifier") {
                    self.added.entry(key.to_owned()).or_insert(fields.idx);
                }
            }
            "key.retired" => {
                if let Some(key) = text("verifier") {
                    self.retired.entry(key.to_owned()).or_insert(fields.idx);
                }
            }
            "retention.applied" => self.retain(fields),
            "redaction.applied" => {
                self.erased
                    .extend(text("erased").and_then(|hex| hex.parse::<Hash>().ok()));
            }
            _ => {}
        }
        let idx = fields.idx;
        commitments(fields.body, &mut |commit| self.named.push((idx, commit)));
    }

    /// What introduced the keys may be removed with it, so the record that says so names them again.
    fn retain(&mut self, fields: &Fields<'_>) {
        if let Some(first) = fields.body.get("first").and_then(Value::as_u64) {
            self.first = first;
        }
        let keys = fields.body.get("keys").and_then(Value::as_array);
        for key in keys.into_iter().flatten().filter_map(Value::as_str) {
            self.added.insert(key.to_owned(), 0);
        }
    }
}

impl Examined {
    /// How many records are held.
    pub fn records(&self) -> u64 {
        self.head.size - self.first
    }

    /// The first record that is held.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Checks that records introduce the key that signed a checkpoint, before the checkpoint, and do not retire it
    /// before.
    ///
    /// # Errors
    ///
    /// They do not.
    pub fn check_key(&self, verifier: &str, size: u64) -> Result<(), Finding> {
        let before = |records: &HashMap<String, u64>| {
            records.get(verifier).is_some_and(|record| *record < size)
        };
        if before(&self.kept.added) && !before(&self.kept.retired) {
            return Ok(());
        }
        let words = format!("no record introduces the key {verifier}, or one retires it before");
        Err(Finding::of_export(Problem::Key, words))
    }

    /// Checks that the records continue what a checkpoint from outside covers.
    ///
    /// # Errors
    ///
    /// Records are missing, or the history is another one.
    pub fn check_outside(&self, outside: &Checkpoint) -> Result<(), Finding> {
        let Head { size, root } = outside.head;
        if size > self.head.size {
            let words = format!("it is missing: the checkpoint from outside covers {size} records");
            return Err(Finding::of_record(
                Problem::Truncated,
                self.head.size,
                words,
            ));
        }
        let same = usize::try_from(size)
            .ok()
            .and_then(|size| self.leaves.get(..size))
            .is_some_and(|leaves| root_of(leaves) == root);
        if same {
            return Ok(());
        }
        let words = format!(
            "the first {size} records are not those that the checkpoint from outside covers: one of \
             the two histories is forged"
        );
        Err(Finding::of_export(Problem::Forked, words))
    }

    /// Payloads that records name, with the record, by record.
    pub fn payloads(&self) -> &[(u64, Hash)] {
        &self.kept.named
    }

    /// Whether a record says that a payload was erased, so that it need not be there.
    pub fn is_erased(&self, commit: Hash) -> bool {
        self.kept.erased.contains(&commit)
    }
}

#[cfg(test)]
mod tests;
