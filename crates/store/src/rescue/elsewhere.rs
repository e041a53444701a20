//! Which segments of a stopped shard count for nothing, because what they hold is counted elsewhere: those that
//! were compacted and not removed yet, and a compacted one that its sources were not exchanged for yet. A start
//! finishes either.

use std::collections::BTreeSet;

use super::files::{Kind, ShardFiles};
use super::segment::{Database, Index};
use crate::disk::Disk;
use crate::progress::Examined;
use crate::shard::replaced::is_within;

/// What this needs to know of a segment.
struct Known {
    number: u64,
    span: (u64, u64),
    is_compacted: bool,
    held: Held,
}

/// What there is of a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Database,
    /// Its database is gone, and nobody said that it may go.
    IndexOnly,
    /// Everything of it is resolved, whether its database is there or not.
    Resolved,
}

impl Known {
    fn of(
        disk: &dyn Disk,
        files: &ShardFiles,
        state: Option<&Examined>,
        number: u64,
    ) -> Option<Self> {
        let database = files.database(number);
        let (span, is_compacted, is_noted) = match Index::open(disk, files, number) {
            Index::Open(index) => (
                (index.first, index.last),
                index.identity.covers.is_some(),
                index.resolved_at != 0,
            ),
            // A compacted one says in its database as well what it covers.
            Index::Absent | Index::Unusable(_) => {
                let database = Database::open(database.as_ref()?).ok()?;
                (database.identity.covers?, true, false)
            }
        };
        Some(Self {
            number,
            span,
            is_compacted,
            held: match database {
                _ if is_noted || state.is_some_and(|state| state.is_counted(number)) => {
                    Held::Resolved
                }
                Some(_) => Held::Database,
                None => Held::IndexOnly,
            },
        })
    }
}

/// Numbers of segments that count for nothing.
pub(super) fn elsewhere(
    disk: &dyn Disk,
    files: &ShardFiles,
    state: Option<&Examined>,
) -> BTreeSet<u64> {
    let numbers = files.segments().into_iter();
    let known: Vec<Known> = numbers
        .filter_map(|number| Known::of(disk, files, state, number))
        .collect();
    let mut elsewhere = BTreeSet::new();
    // Ascending, so that a source of a source is found before.
    for by in known.iter().filter(|one| one.is_compacted) {
        // One whose database is lost took nothing over.
        if by.held == Held::IndexOnly {
            continue;
        }
        let sources: Vec<&Known> = known
            .iter()
            .filter(|one| is_within((by.number, by.span), (one.number, one.span)))
            .filter(|one| one.held != Held::Resolved && !elsewhere.contains(&one.number))
            .collect();
        let is_exchanged = by.held == Held::Resolved
            || state.is_some_and(|state| state.has_compacted(by.number))
            || !sources.iter().any(|source| source.held == Held::Database);
        match is_exchanged {
            true => elsewhere.extend(sources.iter().map(|source| source.number)),
            false => drop(elsewhere.insert(by.number)),
        }
    }
    elsewhere
}

impl ShardFiles {
    /// Where the database of a segment lies. A compacted one has its name only some moments after it counts.
    pub(super) fn database(&self, number: u64) -> Option<std::path::PathBuf> {
        let path = crate::shard::segment::database_path(&self.dir, number);
        if self.has(Kind::Segment(number)) {
            return Some(path);
        }
        let made = crate::disk::making(&path);
        let name = made.file_name()?.to_str()?;
        let is_made = self.names.iter().any(|(other, _)| other == name);
        (is_made && self.has(Kind::Index(number))).then_some(made)
    }
}
