//! The ledger, table `[ledger]`: its name, how long its records are kept, and second places for its checkpoints.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;
use wayhold_model::ledger::note::is_key_name;

use super::secret::Secret;
use super::section::Section;
use super::setting::Choice;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long records are kept where nobody says otherwise: six months, which laws ask for, and a year's audit.
const KEEP: Duration = DAY.saturating_mul(400);

/// Shortest time: six months.
const KEEP_MIN: Duration = DAY.saturating_mul(184);

/// Longest time, a hundred years: "for good".
const KEEP_MAX: Duration = DAY.saturating_mul(36_525);

/// Most second places.
const ANCHORS_MAX: usize = 16;

/// Longest name: a line of a checkpoint.
const ORIGIN_BYTES_MAX: usize = 255;

/// The ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerConfig {
    /// Its name where it has none yet, such as `ledger.example.com/orders`; a random one where absent.
    pub origin: Option<String>,
    /// How long records and payloads are kept.
    pub keep: Duration,
    /// Second places for checkpoints.
    pub anchors: Vec<AnchorConfig>,
}

/// A second place, table `[ledger.anchors.<name>]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorConfig {
    /// What it is called in logs and health.
    pub name: String,
    /// How often a checkpoint is put there, at most.
    pub every: Duration,
    /// Where it is.
    pub place: AnchorPlace,
}

/// Where checkpoints are put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnchorPlace {
    /// A folder, best on another machine's disk.
    Folder(PathBuf),
    /// An address below which each is put with `PUT`.
    Http {
        /// The address.
        url: Url,
        /// The header `Authorization`, where there is one.
        authorization: Option<Secret>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Folder,
    Http,
}

impl Choice for Kind {
    const WORDS: &'static [(&'static str, Self)] =
        &[("folder", Self::Folder), ("http", Self::Http)];
}

impl LedgerConfig {
    pub(super) fn read(section: &mut Section<'_, '_, '_>) -> Self {
        let origin: Option<String> = section.find("origin");
        if let Some(origin) = &origin
            && (!is_key_name(origin) || origin.len() > ORIGIN_BYTES_MAX)
        {
            section.problem(
                "origin",
                format!(
                    "expected 1 to {ORIGIN_BYTES_MAX} bytes without spaces and plus signs, such as \
                     \"ledger.example.com/orders\""
                ),
            );
        }
        Self {
            origin,
            keep: section.within("keep", KEEP, KEEP_MIN, KEEP_MAX),
            anchors: section.table("anchors", read_anchors),
        }
    }
}

fn read_anchors(section: &mut Section<'_, '_, '_>) -> Vec<AnchorConfig> {
    let names = section.keys();
    if names.len() > ANCHORS_MAX {
        section.problem("", format!("expected at most {ANCHORS_MAX} anchors"));
    }
    let mut read = |name: &String| {
        section.table(name, |section| {
            let place = read_place(section);
            let every = section.within(
                "every",
                Duration::from_secs(60),
                Duration::from_secs(1),
                DAY,
            );
            Some(AnchorConfig {
                name: name.clone(),
                every,
                place: place?,
            })
        })
    };
    names
        .iter()
        .take(ANCHORS_MAX)
        .filter_map(&mut read)
        .collect()
}

fn read_place(section: &mut Section<'_, '_, '_>) -> Option<AnchorPlace> {
    match section.require::<Kind>("kind", "\"folder\"")? {
        Kind::Folder => section
            .require::<PathBuf>("path", "\"/mnt/other/ledger\"")
            .map(AnchorPlace::Folder),
        Kind::Http => {
            let url: Option<String> =
                section.require("url", "\"https://notary.example.com/ledger\"");
            let authorization = section.find_reference("authorization");
            let url = Url::parse(&url?).ok().filter(|url| {
                matches!(url.scheme(), "http" | "https")
                    && url.has_host()
                    && url.username().is_empty()
                    && url.password().is_none()
                    && url.query().is_none()
                    && url.fragment().is_none()
            });
            if url.is_none() {
                section.problem(
                    "url",
                    "expected http:// or https://, a host and a path, without user, query and fragment",
                );
            }
            Some(AnchorPlace::Http {
                url: url?,
                authorization,
            })
        }
    }
}
