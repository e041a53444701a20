//! The ledger, table `[ledger]`: its name, how long its records are kept, and second places for its checkpoints.

use std::path::PathBuf;
use std::time::Duration;

use rusty_s3::{Bucket, UrlStyle};
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

/// Where buckets are that nobody names a region for; servers of one's own mostly ask for this one.
const REGION: &str = "us-east-1";

/// Longest name of a region.
const REGION_BYTES_MAX: usize = 64;

/// Longest beginning of objects' names: S3 takes 1,024 bytes for the whole.
const PREFIX_BYTES_MAX: usize = 512;

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
    /// A bucket of S3, or of a server that speaks like it.
    S3(S3Place),
}

/// A bucket, and who may put into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Place {
    /// Where it is.
    pub bucket: Bucket,
    /// What the name of each object begins with: empty, or ending in `/`.
    pub prefix: String,
    /// Who.
    pub access_key_id: Secret,
    /// Signs every request, and is never sent.
    pub secret_access_key: Secret,
    /// Sent with credentials that were lent for a while.
    pub session_token: Option<Secret>,
}

impl AnchorPlace {
    /// Whether it is reached by TLS.
    pub fn is_https(&self) -> bool {
        match self {
            Self::Folder(_) => false,
            Self::Http { url, .. } => url.scheme() == "https",
            Self::S3(place) => place.bucket.object_url("").scheme() == "https",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Folder,
    Http,
    S3,
}

impl Choice for Kind {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("folder", Self::Folder),
        ("http", Self::Http),
        ("s3", Self::S3),
    ];
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
            let url = address(section, "url", &url?);
            Some(AnchorPlace::Http {
                url: url?,
                authorization,
            })
        }
        Kind::S3 => read_s3(section).map(AnchorPlace::S3),
    }
}

/// An address without anything beside its path, or a problem.
fn address(section: &mut Section<'_, '_, '_>, key: &str, text: &str) -> Option<Url> {
    let url = Url::parse(text).ok().filter(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    });
    if url.is_none() {
        section.problem(
            key,
            "expected http:// or https://, a host and a path, without user, query and fragment",
        );
    }
    url
}

fn read_s3(section: &mut Section<'_, '_, '_>) -> Option<S3Place> {
    let name: Option<String> = section.require("bucket", "\"ledger-checkpoints\"");
    let name = name.filter(|name| {
        let is_bucket = is_bucket(name);
        if !is_bucket {
            section.problem(
                "bucket",
                "expected 3 to 63 of a-z, 0-9, `.` and `-`, with a letter or digit at both ends",
            );
        }
        is_bucket
    });
    let region: String = section.get("region", REGION.to_owned());
    let is_region = (1..=REGION_BYTES_MAX).contains(&region.len())
        && region
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !is_region {
        section.problem("region", "expected a region such as \"eu-central-1\"");
    }
    let elsewhere: Option<String> = section.find("endpoint");
    // A server of one's own seldom has a name for each bucket.
    let path_style = section.get("path_style", elsewhere.is_some());
    let prefix: String = section.get("prefix", String::new());
    let is_prefix = prefix.is_empty() || is_prefix(&prefix);
    if !is_prefix {
        section.problem(
            "prefix",
            format!(
                "expected at most {PREFIX_BYTES_MAX} of letters, digits, `-`, `_`, `.` and `/`, with `/` at the end and \
                 not in front, such as \"ledger/orders/\""
            ),
        );
    }
    let access_key_id = section.require_reference("access_key_id");
    let secret_access_key = section.require_reference("secret_access_key");
    let session_token = section.find_reference("session_token");
    let endpoint = elsewhere.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let endpoint = address(section, "endpoint", &endpoint)?;
    let (true, true, name) = (is_region, is_prefix, name?) else {
        return None;
    };
    let style = match path_style {
        true => UrlStyle::Path,
        false => UrlStyle::VirtualHost,
    };
    let Ok(bucket) = Bucket::new(endpoint, style, name, region) else {
        section.problem(
            "path_style",
            "expected true, since the endpoint has no name that the bucket's could stand in front of",
        );
        return None;
    };
    Some(S3Place {
        bucket,
        prefix,
        access_key_id: access_key_id?,
        secret_access_key: secret_access_key?,
        session_token,
    })
}

fn is_bucket(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (3..=63).contains(&name.len())
        && name
            .bytes()
            .all(|byte| is_plain(byte) || matches!(byte, b'.' | b'-'))
        && !name.contains("..")
        && name.bytes().next().is_some_and(is_plain)
        && name.bytes().next_back().is_some_and(is_plain)
}

/// Whether every part of it means the same in an object's name and in an address.
fn is_prefix(prefix: &str) -> bool {
    let Some(parts) = prefix.strip_suffix('/') else {
        return false;
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    prefix.len() <= PREFIX_BYTES_MAX
        && parts
            .split('/')
            .all(|part| !matches!(part, "" | "." | "..") && part.bytes().all(is_plain))
}
