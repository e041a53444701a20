//! Whether everything in the files of a stopped store is whole: every row, index file and letter against its
//! checksum, index files against their segments, marks against what they mark, and the accounts. Each finding
//! says what is wrong, what it costs and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use wayhold_model::DestinationId;

use super::StoppedStore;
use super::files::{Kind, ShardFiles};
pub use super::finding::{Finding, Remedy, Verified};
use super::segment::{Database, Index};
use super::shard::Shard;
use crate::catalog::CatalogError;
use crate::commands;
use crate::delivery::LaneTotals;
use crate::error::OpenError;
use crate::shard::index_file::{IndexError, IndexFile, Loaded};
use crate::shard::mark::MARK;
use crate::shard::recent::Recent;
use crate::shard::replaced::is_within;
use crate::shard::segment::{database_path, index_path};

/// Most rows that a finding names.
const ROWS_NAMED_MAX: usize = 5;

/// Most sentences of SQLite's own check of one file.
const SENTENCES_MAX: u32 = 3;

impl StoppedStore {
    /// Checks everything; `progress` is told of each file before it is read, with how many are done and how
    /// many there are. Blocking; holds one segment's index in memory at a time.
    ///
    /// # Errors
    /// A directory cannot be read, or a file was written by a newer version.
    pub fn verify(
        &self,
        progress: &mut dyn FnMut(&Path, usize, usize),
    ) -> Result<Verified, OpenError> {
        let shards = self.read_shards()?;
        let mut check = Check {
            store: self,
            found: Verified::default(),
            accounts: BTreeMap::new(),
        };
        check.catalog();
        check.commands();
        let all: usize = self.shards.iter().map(|files| files.segments().len()).sum();
        let mut done = 0;
        for shard in &shards {
            if !shard.files.exists {
                check.finding(
                    &shard.files.dir,
                    "is missing".to_owned(),
                    "whatever it held, and the server does not start".to_owned(),
                    Remedy::Restore,
                );
                continue;
            }
            check.mark(shard);
            check.state(shard)?;
            for number in shard.files.segments() {
                progress(&database_path(&shard.files.dir, number), done, all);
                check.segment(shard, number)?;
                done += 1;
            }
            check.others(shard.files);
        }
        Ok(check.finish())
    }
}

/// A check under way.
struct Check<'a> {
    store: &'a StoppedStore,
    found: Verified,
    accounts: BTreeMap<DestinationId, LaneTotals>,
}

impl Check<'_> {
    fn finding(&mut self, file: &Path, what: String, costs: String, remedy: Remedy) {
        self.found.findings.push(Finding {
            file: file.to_owned(),
            what,
            costs,
            remedy,
        });
    }

    fn catalog(&mut self) {
        let store = self.store;
        let costs =
            "the server does not start; node, tokens, audit trail and the names of destinations";
        match &store.catalog {
            Err(CatalogError::Lost { path }) => {
                self.finding(
                    path,
                    "is missing".to_owned(),
                    costs.to_owned(),
                    Remedy::Catalog,
                );
            }
            Err(error) => {
                let path = store.dir.join("catalog.db");
                self.finding(&path, error.to_string(), costs.to_owned(), Remedy::Catalog);
            }
            Ok(catalog) => {
                for sentence in catalog.unsound.clone() {
                    self.finding(&catalog.path, sentence, costs.to_owned(), Remedy::Catalog);
                }
                if store.has_foreign_catalog {
                    self.finding(
                        &catalog.path,
                        "belongs to another data directory: no segment has its hash seed"
                            .to_owned(),
                        costs.to_owned(),
                        Remedy::Catalog,
                    );
                }
            }
        }
    }

    fn commands(&mut self) {
        let path = self.store.dir.join(commands::FILE);
        let unsound = match &self.store.commands {
            Ok(None) => return,
            Ok(Some(commands)) => commands.unsound.clone(),
            Err(reason) => vec![reason.clone()],
        };
        for sentence in unsound {
            let costs = "commands, their approvals and their ledger; with a file that cannot be read the server does \
                         not start";
            self.finding(&path, sentence, costs.to_owned(), Remedy::Restore);
        }
    }

    fn mark(&mut self, shard: &Shard<'_>) {
        let what = match &shard.mark {
            Ok(_) => return,
            Err(_) if shard.files.segments().is_empty() => return,
            Err(reason) => reason.clone(),
        };
        let costs = "nothing is lost: rows that are not sealed are copied and synced again";
        self.finding(
            &shard.files.dir.join(MARK),
            what,
            costs.to_owned(),
            Remedy::Start,
        );
    }

    fn state(&mut self, shard: &Shard<'_>) -> Result<(), OpenError> {
        let repeats = "deliveries may be repeated, and attempts and dead letters that cannot be read are lost";
        for (path, reason) in &shard.broken_states {
            self.finding(path, reason.clone(), repeats.to_owned(), Remedy::Start);
        }
        let Some(state) = &shard.state else {
            if shard.broken_states.is_empty() && !shard.files.segments().is_empty() {
                let path = shard.files.dir.join("state-1.db");
                let what = "no state file is there".to_owned();
                self.finding(&path, what, repeats.to_owned(), Remedy::Start);
            }
            return Ok(());
        };
        for sentence in state.findings.iter().chain(&state.unsound).cloned() {
            self.finding(&state.path, sentence, repeats.to_owned(), Remedy::Start);
        }
        let (mut letters, mut damaged) = (0, Vec::new());
        let read = state.each_letter(|letter| {
            letters += 1;
            if letter.content.is_none() {
                damaged.push(letter.id);
            }
        });
        self.found.dead_letters += letters;
        if let Err(error) = read {
            let what = format!("dead letters cannot be read: {error}");
            self.finding(&state.path, what, "those letters".to_owned(), Remedy::Start);
        }
        for id in damaged {
            self.finding(
                &state.path,
                format!("the event in dead letter {id} does not match its checksum"),
                "that letter: it can only be discarded".to_owned(),
                Remedy::Start,
            );
        }
        for lane in state.lanes() {
            let totals = state.view(*lane).totals();
            self.add(
                DestinationId(lane.0),
                LaneTotals {
                    accepted: totals.accepted_base,
                    pending: totals.redriving,
                    delivered: totals.delivered,
                    dead: totals.dead,
                    expired: totals.expired,
                    discarded: totals.discarded,
                    redriven: totals.redriven,
                },
            );
        }
        Ok(())
    }

    fn add(&mut self, destination: DestinationId, more: LaneTotals) {
        let account = self.accounts.entry(destination).or_default();
        *account = account.plus(more);
    }

    fn segment(&mut self, shard: &Shard<'_>, number: u64) -> Result<(), OpenError> {
        let (files, disk) = (shard.files, self.store.disk.as_ref());
        let index_at = index_path(&files.dir, number);
        let index = Index::open(disk, files, number);
        let index = match index {
            Index::Unusable(IndexError::Newer(found)) => {
                return Err(OpenError::Newer {
                    file: index_at,
                    found,
                    known: crate::shard::index_file::FORMAT,
                });
            }
            Index::Open(file) if !is_of(&file, files, number) => {
                self.index_finding(&index_at, "belongs to another segment".to_owned());
                None
            }
            Index::Open(file) => Some(*file),
            Index::Unusable(error) => {
                self.index_finding(&index_at, error.to_string());
                None
            }
            Index::Absent => None,
        };
        let Some(path) = files.database(number) else {
            if let Some(index) = &index {
                self.without_database(shard, index, &database_path(&files.dir, number));
            }
            return Ok(());
        };
        match Database::open(&path) {
            Err(crate::shard::segment_file::SegmentError::Newer(found)) => {
                return Err(OpenError::Newer {
                    file: path,
                    found,
                    known: crate::shard::segment_file::FORMAT,
                });
            }
            Err(error) if index.is_none() && is_unborn(shard, number, &error.to_string()) => {}
            Err(error) => self.unreadable(shard, &path, index.as_ref(), error.to_string()),
            Ok(database) if !database.belongs(files, number, self.store.hash_seed) => {
                self.misplaced(shard, &database, index.as_ref());
            }
            Ok(database) => self.database(shard, &database, index.as_ref()),
        }
        Ok(())
    }

    fn index_finding(&mut self, path: &Path, what: String) {
        let costs = "nothing while its segment is there: it is made again; else its ids are not recognised \
                     as duplicates";
        let remedy = Remedy::PutAside(vec![path.to_owned()]);
        self.finding(path, what, costs.to_owned(), remedy);
    }

    /// Only the index file is there: right where everything was resolved.
    fn without_database(&mut self, shard: &Shard<'_>, index: &IndexFile, path: &Path) {
        let number = index.identity.number;
        let is_counted = shard.state.as_ref().is_some_and(|it| it.is_counted(number));
        self.check_index(index, &index_path(&shard.files.dir, number));
        let gone = is_counted || index.resolved_at != 0;
        let pending = self.count_by_index(shard, index);
        if gone || pending == 0 {
            return;
        }
        let what = format!("is missing with {pending} unresolved deliveries");
        let remedy = Remedy::PutAside(self.indexes_of_lost(shard, index));
        let costs = "those deliveries; after a repair their events may be sent again".to_owned();
        self.finding(path, what, costs, remedy);
    }

    /// Index files that know ids of a lost segment: they must not be taken for duplicates, since nothing is left
    /// of them. Of a compacted one those are its own and those of its sources, as far as they are all that is left.
    fn indexes_of_lost(&self, shard: &Shard<'_>, lost: &IndexFile) -> Vec<PathBuf> {
        let (files, disk) = (shard.files, self.store.disk.as_ref());
        let number = lost.identity.number;
        let mut indexes = vec![index_path(&files.dir, number)];
        let Ok(rows) = lost.load(disk) else {
            return indexes;
        };
        let sequences = |rows: &Loaded| -> BTreeSet<u64> {
            let destinations = lost.counts.keys();
            destinations
                .flat_map(|destination| rows.lane_after(*destination, 0).collect::<Vec<_>>())
                .collect()
        };
        let held = sequences(&rows);
        let covers = lost.identity.covers.unwrap_or_default();
        for other in files.segments() {
            if files.database(other).is_some() {
                continue;
            }
            let Index::Open(source) = Index::open(disk, files, other) else {
                continue;
            };
            if !is_within((number, covers), (other, (source.first, source.last))) {
                continue;
            }
            // Others between its sources were resolved, and their ids are known as they were.
            let rows = source.load(disk);
            let is_source = rows.is_ok_and(|rows| !held.is_disjoint(&sequences(&rows)));
            if is_source {
                indexes.push(index_path(&files.dir, other));
            }
        }
        indexes
    }

    fn unreadable(
        &mut self,
        shard: &Shard<'_>,
        path: &Path,
        index: Option<&IndexFile>,
        what: String,
    ) {
        let owed = index.map(|index| self.count_by_index(shard, index));
        let costs = match owed {
            Some(0) => "nothing that is still owed".to_owned(),
            Some(owed) => {
                format!("{owed} deliveries; after a repair their events may be sent again")
            }
            None => "what it held".to_owned(),
        };
        let mut aside = vec![path.to_owned()];
        aside.extend(
            index
                .map(|index| self.indexes_of_lost(shard, index))
                .into_iter()
                .flatten(),
        );
        self.finding(path, what, costs, Remedy::PutAside(aside));
    }

    /// A whole segment under the name of another.
    fn misplaced(&mut self, shard: &Shard<'_>, database: &Database, index: Option<&IndexFile>) {
        let store = self.store;
        let identity = database.identity;
        let ours = store.hash_seed.is_none_or(|seed| seed == database.seed);
        let home = store.shards.iter().find(|files| {
            ours && files.generation.0 == identity.generation && files.shard.0 == identity.shard
        });
        if let Some(index) = index {
            self.count_by_index(shard, index);
        }
        let mut aside = vec![database.path.clone()];
        // Ids that nothing is left of must not be taken for duplicates.
        aside.extend(index.map(|index| index_path(&shard.files.dir, index.identity.number)));
        match home {
            None => self.finding(
                &database.path,
                "was written by another node".to_owned(),
                "nothing of this store, unless it stands in the place of a file that was"
                    .to_owned(),
                Remedy::PutAside(aside),
            ),
            Some(home) => self.finding(
                &database.path,
                format!("is segment {} of {}", identity.number, home.name()),
                "its deliveries wait until it is back in its place".to_owned(),
                Remedy::Move {
                    from: database.path.clone(),
                    to: database_path(&home.dir, identity.number),
                },
            ),
        }
    }

    /// A segment in its place: every row, and the index file against them.
    fn database(&mut self, shard: &Shard<'_>, database: &Database, index: Option<&IndexFile>) {
        let (dir, number) = (&shard.files.dir, database.identity.number);
        let index_at = index_path(dir, number);
        let own = index.filter(|index| index.identity == database.identity);
        if index.is_some() && own.is_none() {
            self.index_finding(&index_at, "is of another file than its segment".to_owned());
        }
        let (recent, mut damaged, error) = database.index(own.map(|index| index.last));
        damaged.retain(|sequence| own.is_none_or(|index| *sequence <= index.last));
        let rows = recent.entries().len();
        self.found.rows += (rows + damaged.len()) as u64;
        self.count(shard, number, &recent);
        let missing = own.map_or(0, |index| index.rows.saturating_sub(rows + damaged.len()));
        let mut wrong: Vec<String> = Vec::new();
        if !damaged.is_empty() {
            let named: Vec<String> = damaged
                .iter()
                .take(ROWS_NAMED_MAX)
                .map(u64::to_string)
                .collect();
            let more = if damaged.len() > named.len() {
                ", ..."
            } else {
                ""
            };
            wrong.push(format!(
                "{} rows do not match their checksums: sequences {}{more}",
                damaged.len(),
                named.join(", "),
            ));
        }
        if missing > 0 {
            wrong.push(format!("{missing} rows that its index file names are gone"));
        }
        wrong.extend(error);
        let unsound = database.reader.check(SENTENCES_MAX);
        if wrong.is_empty() {
            wrong.extend(unsound);
        }
        let marked = shard
            .mark
            .as_ref()
            .ok()
            .and_then(|mark| mark.as_ref()?.reach(number));
        let last = recent.entries().last().map_or(0, |entry| entry.sequence);
        if own.is_none()
            && let Some(reach) = marked
            && last.max(damaged.iter().copied().max().unwrap_or(0)) < reach.last
        {
            wrong.push(format!(
                "its tail is gone: sequences {} to {} were synced",
                last + 1,
                reach.last
            ));
        }
        if !wrong.is_empty() {
            let remedy = match own {
                Some(_) => Remedy::Salvage {
                    database: database.path.clone(),
                    index: index_at.clone(),
                },
                None => Remedy::Start,
            };
            let costs = "those events; after a repair or a start they may be sent again".to_owned();
            self.finding(&database.path, wrong.join("; "), costs, remedy);
        } else if let Some(index) = own {
            self.check_index(index, &index_at);
            if !index.says(&recent) {
                let what = "does not say what the rows of its segment say".to_owned();
                self.index_finding(&index_at, what);
            }
        }
    }

    /// Holds every section of an index file against its checksum.
    fn check_index(&mut self, index: &IndexFile, path: &Path) {
        let disk = self.store.disk.as_ref();
        self.found.index_files += 1;
        let read = index
            .load(disk)
            .map(drop)
            .and_then(|()| index.ids(disk).map(drop));
        if let Err(error) = read {
            self.index_finding(path, error.to_string());
        }
    }

    /// Counts what a segment's rows say that its lanes were and are owed.
    fn count(&mut self, shard: &Shard<'_>, number: u64, recent: &Recent) {
        let is_counted = shard.state.as_ref().is_some_and(|it| it.is_counted(number));
        if is_counted || shard.elsewhere.contains(&number) {
            return;
        }
        for entry in recent.entries() {
            for destination in entry.destinations.ids() {
                let pending = u64::from(shard.owes(*destination, entry.sequence));
                self.add(
                    *destination,
                    LaneTotals {
                        accepted: 1,
                        pending,
                        ..LaneTotals::default()
                    },
                );
            }
        }
    }

    /// The same by an index file, where there are no rows; how many deliveries are still owed.
    fn count_by_index(&mut self, shard: &Shard<'_>, index: &IndexFile) -> u64 {
        let (state, number) = (shard.state.as_ref(), index.identity.number);
        let is_counted = state.is_some_and(|it| it.is_counted(number));
        if is_counted || index.resolved_at != 0 || shard.elsewhere.contains(&number) {
            return 0;
        }
        let mut owed = 0;
        for (destination, count) in &index.counts {
            let pending = shard.unresolved_of(index, *destination, *count);
            owed += pending;
            self.add(
                *destination,
                LaneTotals {
                    accepted: *count,
                    pending,
                    ..LaneTotals::default()
                },
            );
        }
        owed
    }

    /// What is no segment, mark or state.
    fn others(&mut self, files: &ShardFiles) {
        for (name, kind) in &files.names {
            let path = files.dir.join(name);
            let orphan = match kind {
                Kind::SegmentPart(number) => {
                    !files.has(Kind::Segment(*number)) && !files.has(Kind::Index(*number))
                }
                _ => false,
            };
            match kind {
                Kind::Unknown => self.finding(
                    &path,
                    "is not a file of this store".to_owned(),
                    "nothing of this store".to_owned(),
                    Remedy::Start,
                ),
                _ if orphan => self.finding(
                    &path,
                    "is the log of a database that is gone".to_owned(),
                    "what the database held".to_owned(),
                    Remedy::Start,
                ),
                Kind::Quarantined => self.finding(
                    &path,
                    "was put aside earlier".to_owned(),
                    "nothing; `store export` reads what is whole in it".to_owned(),
                    Remedy::Nothing,
                ),
                _ => {}
            }
        }
    }

    fn finish(mut self) -> Verified {
        for (destination, totals) in &self.accounts {
            let ended = totals.delivered + totals.dead + totals.expired + totals.discarded;
            if totals.accepted != ended + totals.pending {
                // What was lost is missing in the counts as well.
                let remedy = match self.found.is_damaged() {
                    true => Remedy::Nothing,
                    false => Remedy::Start,
                };
                self.found.findings.push(Finding {
                    file: self.store.dir.clone(),
                    what: format!(
                        "the accounts of {} do not add up: accepted {} is not delivered {} + pending {} \
                         + dead {} + expired {} + discarded {}",
                        self.store.name_of(*destination),
                        totals.accepted,
                        totals.delivered,
                        totals.pending,
                        totals.dead,
                        totals.expired,
                        totals.discarded,
                    ),
                    costs: "trust in these counts".to_owned(),
                    remedy,
                });
            }
        }
        self.found.accounts = self.accounts.into_iter().collect();
        self.found
    }
}

fn is_of(index: &IndexFile, files: &ShardFiles, number: u64) -> bool {
    let identity = index.identity;
    identity.number == number
        && identity.generation == files.generation.0
        && identity.shard == files.shard.0
}

/// Whether a database without tables is one that was being made when the process ended: no mark names it.
fn is_unborn(shard: &Shard<'_>, number: u64, reason: &str) -> bool {
    let marked = shard.mark.as_ref().ok().and_then(|mark| *mark);
    marked.is_some_and(|mark| number > mark.newest()) && reason.contains("no such table")
}
