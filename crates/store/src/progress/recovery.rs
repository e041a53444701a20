//! Finding the newest whole state file at open. Losing all of them costs repeats, never pending events;
//! of a damaged one the dead letters are saved as far as they can be read, and it is kept aside.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::connection::Fault;
use crate::disk::{self, Disk};
use crate::progress::file::{Carried, StateFile};
use crate::progress::handle::ProgressOptions;
use crate::progress::memory::{Batch, Loaded, Memory};

/// Progress cannot be kept: the directory takes no file. Mend it, then open again.
#[derive(Debug, Error)]
#[error("cannot keep progress in {path}: {reason}")]
pub(crate) struct ProgressUnusable {
    /// The file that was tried.
    pub(crate) path: PathBuf,
    /// What the system said.
    pub(crate) reason: String,
}

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
pub(super) fn recover(options: &ProgressOptions) -> Result<Recovered, ProgressUnusable> {
    let directory = options.directory.as_path();
    let unusable = |path: &Path, reason: &dyn std::fmt::Display| ProgressUnusable {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    let io = |error: std::io::Error| unusable(directory, &error);
    let (present, highest) = numbers(options.disk.as_ref(), directory).map_err(io)?;
    let mut findings = Vec::new();
    let mut candidates = present.into_iter().rev();
    let mut damaged = None;
    for number in candidates.by_ref() {
        let path = path_of(directory, number);
        let tried = StateFile::open(&path, options.vfs.as_deref(), options.hash_seed);
        match tried {
            // Its making was cut off before anything was promised of it.
            Ok(None) => disk::unlink_database(options.disk.as_ref(), &path).map_err(io)?,
            Ok(Some(file)) => match file.read() {
                Ok(contents) => {
                    findings.extend(contents.findings);
                    set_aside(options, candidates, &mut findings).map_err(io)?;
                    return Ok(Recovered {
                        file,
                        number,
                        memory: Memory::load(contents.loaded),
                        findings,
                        is_fresh: false,
                        saved: Carried::default(),
                    });
                }
                Err(error) => {
                    damaged = Some((number, Some(file), error.to_string()));
                    break;
                }
            },
            Err(error) if error.fault() == Fault::NoSpace => return Err(unusable(&path, &error)),
            Err(error) => {
                damaged = Some((number, None, error.to_string()));
                break;
            }
        }
    }
    let number = highest + 1;
    let path = path_of(directory, number);
    let is_fresh = damaged.is_none();
    let old = damaged.as_ref().and_then(|(_, file, _)| file.as_ref());
    let mut memory = Memory::load(Loaded {
        // Letters of lost files had numbers too; none of them may come back.
        next_letter: (number - 1) << 32,
        ..Loaded::default()
    });
    let mut saved = Carried::default();
    let mut batch = Batch::default();
    let file = StateFile::create(&path, options.vfs.as_deref(), options.hash_seed, |new| {
        if let Some(old) = old {
            saved = old.carry_into(new)?;
            new.execute("DELETE FROM retries", [])?;
        }
        for (lane, sequence, redriving) in &saved.letters {
            memory.take_over_letter(*lane, *sequence, *redriving);
        }
        batch = memory.take();
        super::file::write(new, &batch, options.hash_seed)
    })
    .map_err(|error| unusable(&path, &error))?;
    memory.written();
    options.disk.sync_directory(directory).map_err(io)?;
    if let Some((number, file, reason)) = damaged {
        drop(file);
        let path = path_of(directory, number);
        let aside = disk::quarantine_database(options.disk.as_ref(), &path).map_err(io)?;
        findings.push(format!(
            "{}: damaged ({reason}) and kept as {}; deliveries may be repeated, {} dead letters were \
             saved{}",
            path.display(),
            aside.display(),
            saved.letters.len(),
            if saved.whole { "" } else { ", others may be lost" },
        ));
    }
    set_aside(options, candidates, &mut findings).map_err(io)?;
    // Letters under redrive are found by reading the new file as any other.
    let contents = file.read().map_err(|error| unusable(&path, &error))?;
    Ok(Recovered {
        file,
        number,
        memory: Memory::load(contents.loaded),
        findings,
        is_fresh,
        saved,
    })
}

/// Where the file of that number lies.
pub(super) fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("state-{number}.db"))
}

/// An older file is left where the server stopped between making a new one and removing it.
fn set_aside(
    options: &ProgressOptions,
    older: impl Iterator<Item = u64>,
    findings: &mut Vec<String>,
) -> std::io::Result<()> {
    for number in older {
        let path = path_of(&options.directory, number);
        let aside = disk::quarantine_database(options.disk.as_ref(), &path)?;
        findings.push(format!(
            "{}: replaced by a newer file and kept as {}",
            path.display(),
            aside.display()
        ));
    }
    Ok(())
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
