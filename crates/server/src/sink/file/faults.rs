//! Tests of the file sink: the contract, and every way a disk or a person can spoil the file.

use std::fs;
use std::future::ready;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::FileSink;
use super::config::FileConfig;
use super::lines::{AppendError, Backing, Lines, open_regular};
use crate::sink::contract::{Received, Rig, a_dead_destination_gives_not_executed, exercise};
use crate::sink::{BoxFuture, Sink};

const LARGE: u64 = 64 * 1024 * 1024;

fn config(path: &Path, rotate_bytes: u64) -> FileConfig {
    FileConfig {
        path: path.to_owned(),
        rotate_bytes,
    }
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.ndjson");
    (folder, path)
}

struct FileRig {
    sink: FileSink,
    path: PathBuf,
}

impl Rig for FileRig {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn received(&self, _at_least: usize) -> BoxFuture<'_, Option<Vec<Received>>> {
        let text = fs::read_to_string(&self.path).unwrap();
        Box::pin(ready(Some(
            text.lines().map(Received::of_structured).collect(),
        )))
    }
}

#[tokio::test]
async fn it_keeps_the_contract() {
    let (_folder, path) = folder();
    let sink = FileSink::start(&config(&path, LARGE), 128).unwrap();
    assert!(sink.probe().await.is_ok());
    exercise(&FileRig { sink, path }).await;
}

#[tokio::test]
async fn a_missing_directory_is_a_dead_destination() {
    let (folder, _) = folder();
    let path = folder.path().join("absent/out.ndjson");
    let sink = FileSink::start(&config(&path, LARGE), 128).unwrap();
    assert!(sink.probe().await.is_err());
    a_dead_destination_gives_not_executed(&sink).await;
}

#[test]
fn a_torn_last_line_is_cut_off_at_open_however_long_it_is() {
    for torn in ["", "{\"half\":", &"x".repeat(200_000)] {
        let (_folder, path) = folder();
        fs::write(&path, format!("{{}}\n{{}}\n{torn}")).unwrap();
        Lines::new(config(&path, LARGE)).append(b"new\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}\n{}\nnew\n");
    }
    let (_folder, path) = folder();
    fs::write(&path, "no line break at all").unwrap();
    Lines::new(config(&path, LARGE)).append(b"new\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
}

#[test]
fn a_full_file_is_renamed_to_the_next_number_and_lines_are_never_split() {
    let (folder, path) = folder();
    fs::write(folder.path().join("out.ndjson.7"), "old\n").unwrap();
    fs::write(folder.path().join("out.ndjson.bak"), "foreign\n").unwrap();
    let mut lines = Lines::new(config(&path, 10));
    for text in ["12345\n", "6789\n", "this one alone is larger\n", "x\n"] {
        lines.append(text.as_bytes()).unwrap();
    }
    // A later process goes on with the numbers.
    drop(lines);
    Lines::new(config(&path, 10))
        .append(b"123456789\n")
        .unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("out.ndjson.8"), "12345\n");
    assert_eq!(read("out.ndjson.9"), "6789\n");
    assert_eq!(read("out.ndjson.10"), "this one alone is larger\n");
    assert_eq!(read("out.ndjson.11"), "x\n");
    assert_eq!(read("out.ndjson"), "123456789\n");
    assert_eq!(read("out.ndjson.bak"), "foreign\n");
}

#[test]
fn a_file_that_was_moved_or_removed_is_begun_anew() {
    let (folder, path) = folder();
    let mut lines = Lines::new(config(&path, LARGE));
    lines.append(b"1\n").unwrap();
    fs::rename(&path, folder.path().join("taken")).unwrap();
    lines.append(b"2\n").unwrap();
    fs::remove_file(&path).unwrap();
    lines.append(b"3\n").unwrap();
    assert_eq!(
        fs::read_to_string(folder.path().join("taken")).unwrap(),
        "1\n"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "3\n");
}

#[test]
fn two_sinks_never_share_a_file() {
    let (_folder, path) = folder();
    let mut first = Lines::new(config(&path, LARGE));
    first.append(b"1\n").unwrap();
    let second = Lines::new(config(&path, LARGE)).append(b"2\n");
    assert!(
        matches!(second, Err(AppendError::NotWritten(_))),
        "{second:?}"
    );
    first.append(b"3\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "1\n3\n");
}

/// A real file whose next writes, syncs or cuts fail.
struct Faulty {
    file: Box<dyn Backing>,
    faults: Arc<Faults>,
}

/// How many of each still fail; a failing write leaves half of its bytes behind.
#[derive(Default)]
struct Faults {
    appends: AtomicU32,
    syncs: AtomicU32,
    cuts: AtomicU32,
}

fn strikes(left: &AtomicU32) -> io::Result<()> {
    let struck = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    if struck.is_ok() {
        Err(io::Error::other("injected"))
    } else {
        Ok(())
    }
}

impl Backing for Faulty {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = strikes(&self.faults.appends) {
            self.file.append(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.file.append(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        strikes(&self.faults.syncs)?;
        self.file.sync()
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        strikes(&self.faults.cuts)?;
        self.file.cut(length)
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        self.file.identity()
    }
}

fn faulty(path: &Path) -> (Lines, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let given = Arc::clone(&faults);
    let opener = move |path: &Path| {
        let (file, length) = open_regular(path)?;
        let faults = Arc::clone(&given);
        Ok((
            Box::new(Faulty { file, faults }) as Box<dyn Backing>,
            length,
        ))
    };
    (
        Lines::with_opener(config(path, LARGE), Box::new(opener)),
        faults,
    )
}

#[test]
fn a_failed_write_is_cut_back_and_the_file_goes_on() {
    let (_folder, path) = folder();
    let (mut lines, faults) = faulty(&path);
    lines.append(b"good\n").unwrap();
    faults.appends.store(1, Ordering::SeqCst);
    assert!(matches!(
        lines.append(b"lost half\n"),
        Err(AppendError::NotWritten(_))
    ));
    lines.append(b"next\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "good\nnext\n");
}

#[test]
fn after_a_failed_sync_the_file_is_set_aside_and_never_written_again() {
    let (folder, path) = folder();
    let (mut lines, faults) = faulty(&path);
    lines.append(b"good\n").unwrap();
    faults.syncs.store(1, Ordering::SeqCst);
    assert!(matches!(
        lines.append(b"doubtful\n"),
        Err(AppendError::Doubtful(_))
    ));
    lines.append(b"doubtful\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "doubtful\n");
    let aside = fs::read_to_string(folder.path().join("out.ndjson.1")).unwrap();
    assert_eq!(aside, "good\ndoubtful\n");
}

#[test]
fn a_write_that_cannot_be_cut_back_is_doubtful_and_the_file_is_set_aside() {
    for (cuts, syncs) in [(1, 0), (0, 1)] {
        let (folder, path) = folder();
        let (mut lines, faults) = faulty(&path);
        lines.append(b"good\n").unwrap();
        faults.appends.store(1, Ordering::SeqCst);
        faults.cuts.store(cuts, Ordering::SeqCst);
        faults.syncs.store(syncs, Ordering::SeqCst);
        assert!(matches!(
            lines.append(b"torn\n"),
            Err(AppendError::Doubtful(_))
        ));
        lines.append(b"next\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "next\n");
        assert!(folder.path().join("out.ndjson.1").exists());
    }
}

#[tokio::test]
async fn stopping_a_sink_twice_is_harmless() {
    let (_folder, path) = folder();
    let sink = FileSink::start(&config(&path, LARGE), 1).unwrap();
    sink.stop(Duration::from_secs(5)).await;
    sink.stop(Duration::from_secs(5)).await;
}
