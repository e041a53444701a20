//! What has to happen at times in a run that is to say anything.

use std::fmt;
use std::path::Path;

use crate::disk::{Fate, Model};
use crate::workload::{Seen, data_below};

/// How often each happened.
#[derive(Clone, Debug, Default)]
pub(super) struct Sometimes {
    pub(super) points: u64,
    pub(super) in_recovery: u64,
    torn_logs: u64,
    index_files_in_part: u64,
    marks: u64,
    progress: u64,
    checkpoints: u64,
    catalogues: u64,
    names: u64,
    leaving: u64,
    commands: u64,
    begun_again: u64,
    seen: Seen,
}

impl Sometimes {
    /// Notes what fate had to decide.
    pub(super) fn look_at(&mut self, model: &Model, fate: Fate) {
        let ends = |path: &Path, end: &str| path.to_string_lossy().ends_with(end);
        let last = model.last_written();
        let torn = matches!(fate, Fate::Torn(_));
        self.torn_logs += u64::from(torn && last.is_some_and(|path| ends(path, ".db-wal")));
        let over = model.last_written_over();
        self.begun_again += u64::from(over.is_some_and(|path| ends(path, "commands.db-wal")));
        self.names += u64::from(model.has_unsynced_names());
        let mut names = model.names();
        self.leaving += u64::from(names.any(|path| ends(path, ".db.gone")));
        let of_the_store = |path: &&Path| path.starts_with(data_below(Path::new("")));
        for path in model.unsynced_files().filter(of_the_store) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            self.index_files_in_part += u64::from(name.ends_with(".idx.tmp"));
            self.marks += u64::from(name == "mark");
            self.progress += u64::from(name.starts_with("state-"));
            self.catalogues += u64::from(name.starts_with("catalog.db"));
            self.commands += u64::from(name.starts_with("commands.db"));
            self.checkpoints += u64::from(name.ends_with(".db") && !name.starts_with("state-"));
        }
    }

    /// Notes what a store found.
    pub(super) fn saw(&mut self, seen: &Seen) {
        self.seen.add(seen);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.points += other.points;
        self.in_recovery += other.in_recovery;
        self.torn_logs += other.torn_logs;
        self.index_files_in_part += other.index_files_in_part;
        self.marks += other.marks;
        self.progress += other.progress;
        self.checkpoints += other.checkpoints;
        self.catalogues += other.catalogues;
        self.names += other.names;
        self.leaving += other.leaving;
        self.commands += other.commands;
        self.begun_again += other.begun_again;
        self.seen.add(&other.seen);
    }

    fn counted(&self) -> [(&'static str, u64); 23] {
        [
            ("a power failure in a recovery", self.in_recovery),
            ("a torn frame of a log", self.torn_logs),
            ("an index file in part", self.index_files_in_part),
            ("a mark that is not synced", self.marks),
            ("progress that is not synced", self.progress),
            ("a checkpoint in part", self.checkpoints),
            (
                "a change of the catalogue that is not synced",
                self.catalogues,
            ),
            ("a name that is not synced", self.names),
            ("a segment on its way out", self.leaving),
            ("a change of commands that is not synced", self.commands),
            ("a log of commands that is begun again", self.begun_again),
            ("unproven rows copied", self.seen.unproven),
            (
                "an event found that was not acknowledged",
                self.seen.unacknowledged,
            ),
            (
                "a settlement gone that was not acknowledged",
                self.seen.forgotten,
            ),
            ("an event of which the trace is left", self.seen.traces),
            ("a dead letter", self.seen.letters),
            ("a redrive under way", self.seen.redriving),
            (
                "another number of shards that was not acknowledged",
                self.seen.resharding,
            ),
            ("several generations of shards", self.seen.generations),
            ("a command", self.seen.commands),
            (
                "a command further than was acknowledged",
                self.seen.commands_further,
            ),
            ("a backup restored", self.seen.restored),
            ("a backup cut off", self.seen.cut_off),
        ]
    }

    /// The first that never happened.
    pub(super) fn never(&self) -> Option<&'static str> {
        let mut counted = self.counted().into_iter();
        counted.find_map(|(what, count)| (count == 0).then_some(what))
    }
}

impl fmt::Display for Sometimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in self.counted() {
            writeln!(f, "  {count:>9}  {what}")?;
        }
        Ok(())
    }
}
