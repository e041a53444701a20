//! What a check of a stopped store finds: what is wrong with a file, what that costs, and what to do about it.

use std::path::PathBuf;

use wayhold_model::DestinationId;

use crate::delivery::LaneTotals;

/// What to do about a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing: it was dealt with, or is no harm.
    Nothing,
    /// The next start deals with it by itself.
    Start,
    /// `store repair` puts these files aside, the databases among them with their logs; the start that follows
    /// makes again what can be made.
    PutAside(Vec<PathBuf>),
    /// `store repair` keeps a copy of this database, then puts the index file aside: the next start takes what
    /// is whole into a new one.
    Salvage {
        /// The database that is damaged in part.
        database: PathBuf,
        /// Its index file.
        index: PathBuf,
    },
    /// `store repair` moves the database, with its log, to where it belongs.
    Move {
        /// Where it lies.
        from: PathBuf,
        /// Where it belongs.
        to: PathBuf,
    },
    /// `store repair` makes the catalogue again from what the shards tell.
    Catalog,
    /// Only a backup brings it back, or a person who knows where it went.
    Restore,
}

impl Remedy {
    /// In words.
    pub fn words(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Start => "start the server: it deals with this by itself",
            Self::PutAside(_) | Self::Salvage { .. } | Self::Move { .. } => {
                "run `wayhold store repair`"
            }
            Self::Catalog => {
                "put it back from a backup; without one `wayhold store repair` makes a new one from the shards"
            }
            Self::Restore => {
                "put it back from a backup, or make an empty directory to go on without it"
            }
        }
    }
}

/// Something that is not as it should be.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub what: String,
    /// What that costs.
    pub costs: String,
    /// What to do.
    pub remedy: Remedy,
}

impl Finding {
    /// Whether it is damage, and not only worth knowing.
    pub fn is_damage(&self) -> bool {
        self.remedy != Remedy::Nothing
    }
}

/// What was checked and what was found.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// Everything that is not as it should be.
    pub findings: Vec<Finding>,
    /// Rows that were held against their checksums.
    pub rows: u64,
    /// Index files that were held against their checksums and rows.
    pub index_files: u64,
    /// Dead letters that were held against their checksums.
    pub dead_letters: u64,
    /// The accounting identity per destination.
    pub accounts: Vec<(DestinationId, LaneTotals)>,
}

impl Verified {
    /// Whether anything is damaged.
    pub fn is_damaged(&self) -> bool {
        self.findings.iter().any(Finding::is_damage)
    }
}
