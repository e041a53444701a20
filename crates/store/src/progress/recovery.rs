//! Finding the newest whole state file at open. Losing all of them costs repeats, never pending events;
//! of a damaged one the dead letters are saved as far as they can be read, and it is kept aside.

use std::path::{Path, PathBuf};

use crate::connection::{ConnectionError, Fault};
use crate::disk::{self, Disk};
use crate::error::OpenError;
use crate::progress::batch_rows;
use crate::progress::carry::{Carried, carry};
use crate::progress::file::{Contents, StateFile};
use crate::progress::handle::ProgressOptions;
use crate::progress::letter::LetterPlace;
use crate::progress::memory::{Loaded, Memory};

/// What was found.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) file: StateFile,
    pub(super) number: u64,
    pub(super) memory: Memory,
    pub(super) findings: Vec<String>,
    /// Whether nothing of an earlier run was there.
    pub(super) is_fresh: bool,
    /// Letters saved from a damaged file.
    pub(super) saved: Carried,
}

/// Opens the newest whole file of the shard, or makes one.
pub(super) fn recover(options: &ProgressOptions) -> Result<Recovered, OpenError> {
    let (present, highest) = numbers(options.disk.as_ref(), &options.directory)
        .map_err(|error| unusable(&options.directory, &error))?;
    let mut candidates = present.into_iter().rev();
    let mut damaged = None;
    let mut recovered = None;
    for number in candidates.by_ref() {
        match try_open(options, number)? {
            Tried::Whole(file, contents) => {
                recovered = Some(Recovered {
                    file,
                    number,
                    memory: Memory::load(contents.loaded),
                    findings: contents.findings,
                    is_fresh: false,
                    saved: Carried::default(),
                });
                break;
            }
            Tried::Unfinished => {}
            Tried::Damaged(file, reason) => {
                damaged = Some((number, file, reason));
                break;
            }
        }
    }
    let mut recovered = match recovered {
        Some(recovered) => recovered,
        None => start_anew(options, highest + 1, damaged)?,
    };
    for number in candidates {
        let path = path_of(&options.directory, number);
        let finding = set_aside(options, &path).map_err(|error| unusable(&path, &error))?;
        recovered.findings.push(finding);
    }
    Ok(recovered)
}

/// What a file that was found is good for.
enum Tried {
    Whole(StateFile, Contents),
    /// Its making was cut off before anything was promised of it; it is gone now.
    Unfinished,
    /// Open as far as that goes, and what is wrong with it.
    Damaged(Option<StateFile>, String),
}

fn try_open(options: &ProgressOptions, number: u64) -> Result<Tried, OpenError> {
    let path = path_of(&options.directory, number);
    let renewed = disk::renew_log(options.disk.as_ref(), &path).map_err(ConnectionError::Make);
    let open = |()| StateFile::open(&path, options.vfs.as_deref(), options.seed_and_owner());
    match renewed.and_then(open) {
        Ok(None) => {
            disk::unlink_database(options.disk.as_ref(), &path)
                .map_err(|error| unusable(&path, &error))?;
            Ok(Tried::Unfinished)
        }
        Ok(Some(file)) => Ok(match file.read() {
            Ok(contents) => Tried::Whole(file, contents),
            Err(error) => Tried::Damaged(Some(file), error.to_string()),
        }),
        Err(ConnectionError::Newer { found, known }) => Err(OpenError::Newer {
            file: path,
            found,
            known,
        }),
        Err(error) if error.fault() == Fault::NoSpace => Err(unusable(&path, &error)),
        Err(error) => Ok(Tried::Damaged(None, error.to_string())),
    }
}

/// Makes the file of that number, with the letters of a damaged one as far as they can be read.
fn start_anew(
    options: &ProgressOptions,
    number: u64,
    damaged: Option<(u64, Option<StateFile>, String)>,
) -> Result<Recovered, OpenError> {
    let path = path_of(&options.directory, number);
    let failed = |error: &dyn std::fmt::Display| unusable(&path, error);
    let mut memory = Memory::load(Loaded {
        // Letters of lost files had numbers too; none of them may come back.
        next_letter: (number - 1) << 32,
        ..Loaded::default()
    });
    let old = damaged.as_ref().and_then(|(_, file, _)| file.as_ref());
    let mut saved = Carried::default();
    let file = StateFile::create(
        &path,
        options.vfs.as_deref(),
        options.seed_and_owner(),
        |new| {
            if let Some(old) = old {
                saved = carry(old.reader(), new)?;
                new.execute("DELETE FROM retries", [])?;
            }
            for letter in &saved.letters {
                let place = LetterPlace {
                    lane: letter.lane,
                    referred: letter.referred.then_some(letter.sequence),
                };
                memory.take_over_letter(place, letter.sequence, letter.redriving);
            }
            batch_rows::fill(new, &memory.take(), options.hash_seed)
        },
    )
    .map_err(|error| failed(&error))?;
    options
        .disk
        .sync_directory(&options.directory)
        .map_err(|error| failed(&error))?;
    let is_fresh = damaged.is_none();
    let mut findings = Vec::new();
    if let Some((number, old, reason)) = damaged {
        drop(old);
        let path = path_of(&options.directory, number);
        let aside = set_aside(options, &path).map_err(|error| unusable(&path, &error))?;
        findings.push(format!(
            "{aside}, because it is damaged ({reason}); deliveries may be repeated, {} dead letters \
             were saved{}",
            saved.letters.len(),
            if saved.whole { "" } else { ", others may be lost" },
        ));
    }
    // Letters under redrive are found by reading the new file like any other.
    let contents = file.read().map_err(|error| failed(&error))?;
    Ok(Recovered {
        file,
        number,
        memory: Memory::load(contents.loaded),
        findings,
        is_fresh,
        saved,
    })
}

/// Keeps a file that is not used any more, and says so. That one is left over without damage where the
/// server was killed between making a new file and removing the old.
fn set_aside(options: &ProgressOptions, path: &Path) -> std::io::Result<String> {
    let aside = disk::quarantine_database(options.disk.as_ref(), path)?;
    Ok(format!(
        "{}: replaced and kept as {}",
        path.display(),
        aside.display()
    ))
}

/// The directory takes no file. Mend it, then open again.
fn unusable(path: &Path, reason: &dyn std::fmt::Display) -> OpenError {
    OpenError::Unusable {
        path: path.to_owned(),
        reason: format!("cannot keep progress: {reason}"),
    }
}

/// Where the file of that number lies.
pub(super) fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("state-{number}.db"))
}

/// Numbers of the state files that are there, ascending, and the highest that any name ever told.
fn numbers(disk: &dyn Disk, directory: &Path) -> std::io::Result<(Vec<u64>, u64)> {
    let mut present = Vec::new();
    let mut highest = 0;
    for name in disk.list(directory)? {
        let Some((number, rest)) = name
            .to_str()
            .and_then(|name| name.strip_prefix("state-"))
            .and_then(|rest| rest.split_once('.'))
        else {
            continue;
        };
        let Ok(number) = number.parse() else {
            continue;
        };
        highest = u64::max(highest, number);
        if rest == "db" {
            present.push(number);
        }
    }
    present.sort_unstable();
    Ok((present, highest))
}
