//! The examination of an export that lies in a directory: the rules are `wayhold_model::ledger::examine`'s, the order and
//! the files are those of `docs/ledger-format.md`. Nothing but the export and what is handed in is looked at, so a
//! verdict is the same on every machine.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use wayhold_model::ledger::commitment::commit;
use wayhold_model::ledger::cosignature::cosigned_at;
use wayhold_model::ledger::examine::{Examination, Examined, Finding, Problem};
use wayhold_model::ledger::export::{self, Keys};
use wayhold_model::ledger::note::{NOTE_BYTES_MAX, Note, VerifierKey};
use wayhold_model::ledger::record::RECORD_BYTES_MAX;
use wayhold_model::ledger::{Checkpoint, Hash, Salt};

/// Most bytes of `keys.json`: a key a day for twenty years.
const KEYS_BYTES_MAX: u64 = 1_024 * 1_024;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 * 1_024;

/// What somebody has from elsewhere, and trusts.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    /// Keys; with none, those that the export brings count.
    pub keys: Vec<VerifierKey>,
    /// The text of a checkpoint that was kept outside.
    pub checkpoint: Option<Vec<u8>>,
    /// Keys of witnesses, each of which must have cosigned that checkpoint, or the export's where there is none.
    pub witnesses: Vec<VerifierKey>,
}

/// What was proven of a good export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Name of the ledger.
    pub origin: String,
    /// Number of records that the checkpoint covers.
    pub size: u64,
    /// Root of their tree.
    pub root: Hash,
    /// The key that signed.
    pub key: String,
    /// Whether the key came from outside.
    pub key_is_trusted: bool,
    /// The first record that is held.
    pub first: u64,
    /// Payloads that are there and are the ones that records name.
    pub payloads: u64,
    /// Payloads that records say were erased.
    pub erased: u64,
    /// Records that the checkpoint from outside covers.
    pub outside: Option<u64>,
    /// Names of the witnesses that cosigned, with the time that each gave, in seconds since the epoch.
    pub witnessed: Vec<(String, u64)>,
}

impl Verified {
    /// What the export does not show, in sentences.
    pub fn not_proven(&self) -> Vec<String> {
        let mut words = vec![
            "that a record is true, that everything that happened has one, and that the clock was right"
                .to_owned(),
        ];
        words.push(match self.outside {
            None => "that no later records were cut off and no other history was shown to others: give a checkpoint \
                     that was kept elsewhere (--checkpoint FILE)"
                .to_owned(),
            Some(size) => format!(
                "that the records from {size} on, which the checkpoint from outside does not cover, are the only \
                 ones that were signed"
            ),
        });
        if !self.key_is_trusted {
            words.push(
                "whose ledger it is: the key came with the export (--key KEY takes one that you know)"
                    .to_owned(),
            );
        }
        if self.first > 0 {
            words.push(format!(
                "what the {} records before {} said: they are older than the retention, and only their hashes \
                 are held",
                self.first, self.first
            ));
        }
        if self.erased > 0 {
            words.push(format!("what {} erased payloads said", self.erased));
        }
        words
    }
}

/// Examines the export in a directory.
///
/// # Errors
///
/// The first thing that is wrong with it.
pub fn verify(dir: &Path, trusted: &Trusted) -> Result<Verified, Finding> {
    let listed = read_keys(dir)?;
    let key_is_trusted = !trusted.keys.is_empty();
    let keys = if key_is_trusted {
        &trusted.keys
    } else {
        &listed.keys
    };

    let note = read_limited(&dir.join(export::CHECKPOINT), NOTE_BYTES_MAX as u64);
    let note = note.map_err(|error| Finding::of_export(Problem::Checkpoint, error))?;
    let (checkpoint, key) = open(&note, keys, Problem::Checkpoint)?;
    let outside_note = trusted.checkpoint.as_deref();
    let outside = outside_note
        .map(|note| open(note, keys, Problem::Outside))
        .transpose()?;
    if let Some((outside, _)) = &outside
        && outside.origin != checkpoint.origin
    {
        let words = format!("the checkpoint from outside is of {}", outside.origin);
        return Err(Finding::of_export(Problem::Outside, words));
    }

    let witnessed = outside_note.unwrap_or(&note);
    let witnessed = witnesses(witnessed, &trusted.witnesses)?;

    let leaves = read_limited(&dir.join(export::LEAVES), u64::MAX - 1).ok();
    let leaves = leaves.and_then(|bytes| String::from_utf8(bytes).ok());
    let leaves = leaves.and_then(|text| export::read_leaves(&text));
    let mut examination = Examination::new(checkpoint.head, leaves, listed.first);
    examine_records(&dir.join(export::RECORDS), &mut examination)?;
    let examined = examination.end()?;

    examined.check_key(&key.to_string(), checkpoint.head.size)?;
    if let Some((outside, key)) = &outside {
        examined.check_key(&key.to_string(), outside.head.size)?;
        examined.check_outside(outside)?;
    }
    let (payloads, erased) = examine_payloads(&dir.join(export::PAYLOADS), &examined)?;
    Ok(Verified {
        origin: checkpoint.origin,
        size: checkpoint.head.size,
        root: checkpoint.head.root,
        key: key.to_string(),
        key_is_trusted,
        first: examined.first(),
        payloads,
        erased,
        outside: outside.map(|(outside, _)| outside.head.size),
        witnessed,
    })
}

/// Who cosigned a checkpoint that was opened before, and when.
fn witnesses(note: &[u8], keys: &[VerifierKey]) -> Result<Vec<(String, u64)>, Finding> {
    let note = std::str::from_utf8(note)
        .ok()
        .and_then(|text| text.parse::<Note>().ok());
    let cosigned = keys.iter().map(|key| {
        let at = note.as_ref().and_then(|note| cosigned_at(note, key));
        let missing = || {
            let words = format!("the checkpoint is not cosigned by {}", key.name());
            Finding::of_export(Problem::Witness, words)
        };
        Ok((key.name().to_owned(), at.ok_or_else(missing)?))
    });
    cosigned.collect()
}

fn read_keys(dir: &Path) -> Result<Keys, Finding> {
    let path = dir.join(export::KEYS);
    let bad =
        |error: String| Finding::of_export(Problem::Keys, format!("{}: {error}", export::KEYS));
    let text = read_limited(&path, KEYS_BYTES_MAX).map_err(bad)?;
    let text = String::from_utf8(text).map_err(|error| bad(error.to_string()))?;
    text.parse()
        .map_err(|error: export::InvalidKeys| bad(error.to_string()))
}

fn open<'k>(
    note: &[u8],
    keys: &'k [VerifierKey],
    problem: Problem,
) -> Result<(Checkpoint, &'k VerifierKey), Finding> {
    let what = match problem {
        Problem::Outside => "the checkpoint from outside",
        _ => export::CHECKPOINT,
    };
    let bad = |error: String| Finding::of_export(problem, format!("{what}: {error}"));
    let text = std::str::from_utf8(note).map_err(|error| bad(error.to_string()))?;
    let note: Note = text
        .parse()
        .map_err(|error: wayhold_model::ledger::note::InvalidNote| bad(error.to_string()))?;
    Checkpoint::open(&note, keys).map_err(|error| bad(error.to_string()))
}

fn examine_records(path: &Path, examination: &mut Examination) -> Result<(), Finding> {
    let Ok(file) = open_regular(path) else {
        // A file that is not there has no records.
        return Ok(());
    };
    let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
    let mut line = Vec::new();
    loop {
        line.clear();
        // As much as the longest record with its line feed: a longer one shows by the line feed that is missing.
        let read = file
            .by_ref()
            .take(RECORD_BYTES_MAX as u64 + 1)
            .read_until(b'\n', &mut line)
            .map_err(|error| {
                let words = format!("{}: {error}", export::RECORDS);
                Finding::of_record(Problem::Record, examination.next(), words)
            })?;
        if read == 0 {
            return Ok(());
        }
        if line.pop() != Some(b'\n') {
            let words = "the line is too long, or has no line feed at its end";
            return Err(Finding::of_record(
                Problem::Record,
                examination.next(),
                words,
            ));
        }
        examination.record(&line)?;
    }
}

/// How many payloads are there, and how many were erased.
fn examine_payloads(dir: &Path, examined: &Examined) -> Result<(u64, u64), Finding> {
    let is_folder = fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir());
    let mut known = HashSet::new();
    let (mut there, mut erased) = (0, 0);
    for (record, commitment) in examined.payloads() {
        let name = commitment.to_string();
        let salt_name = format!("{name}{}", export::SALT_SUFFIX);
        let bad = |words: &str| {
            let words = format!("its payload {commitment} {words}");
            Err(Finding::of_record(Problem::Payload, *record, words))
        };
        let read = |name: &str| match is_folder {
            true => read_limited(&dir.join(name), u64::MAX - 1).ok(),
            false => None,
        };
        let (payload, salt) = (read(&name), read(&salt_name));
        match (payload, salt) {
            (None, None) if examined.is_erased(*commitment) => erased += 1,
            (None, None) => return bad("is missing, and no record says that it was erased"),
            (Some(_), None) => return bad("has no salt"),
            (None, Some(_)) => return bad("is missing, and its salt is not"),
            (Some(payload), Some(salt)) => {
                let salt = std::str::from_utf8(&salt).ok();
                let salt = salt.and_then(|text| text.strip_suffix('\n')?.parse::<Hash>().ok());
                if salt.is_none_or(|salt| commit(&Salt(salt.0), &payload) != *commitment) {
                    return bad("is not the one that it names");
                }
                there += 1;
            }
        }
        known.insert(name);
        known.insert(salt_name);
    }
    let stray = |name: &str| {
        let words = format!("{}/{name} belongs to no record", export::PAYLOADS);
        Err(Finding::of_export(Problem::Stray, words))
    };
    let entries = is_folder.then(|| fs::read_dir(dir).ok()).flatten();
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !name.to_str().is_some_and(|name| known.contains(name)) {
            return stray(&name.to_string_lossy());
        }
    }
    Ok((there, erased))
}

/// Opens what is a file itself: a verdict must not hang on what lies outside the export, nor wait for a pipe.
fn open_regular(path: &Path) -> io::Result<File> {
    if fs::symlink_metadata(path)?.is_file() {
        File::open(path)
    } else {
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "not a regular file",
        ))
    }
}

/// The bytes of a file that may not be longer.
fn read_limited(path: &Path, max: u64) -> Result<Vec<u8>, String> {
    let file = open_regular(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > max {
        return Err(format!("longer than {max} bytes"));
    }
    Ok(bytes)
}
