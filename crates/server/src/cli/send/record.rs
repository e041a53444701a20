//! Records in files: what `send` reads, one at a time, in bounded memory.
//!
//! A JSON file is one record (or, as CloudEvents, one record per element of an array); a file of
//! lines is one record per line; a CSV file is one record per row, as a JSON object of its columns in
//! header order, all of them strings.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::value::RawValue;
use thiserror::Error;

/// Largest JSON document read whole, in bytes: as much as one request may hold.
const DOCUMENT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Longest line or row, in bytes: far above what a server accepts as one event, and small enough to
/// hold a file without line breaks off.
const LINE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// One record: JSON bytes and where they came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it stands.
    pub origin: Origin,
    /// The record, as JSON.
    pub data: Vec<u8>,
}

/// File and line (from 1) of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    path: Arc<Path>,
    /// Line on which the record begins; the number of the element for one of an array.
    pub line: u64,
}

/// How a file holds its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One JSON document.
    Json,
    /// One JSON document per line (NDJSON, JSON Lines).
    Ndjson,
    /// Rows of columns, the first row their names.
    Csv,
}

/// Whether an array in a JSON file is one record or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrays {
    /// A document of a map: one record, whatever it holds.
    Whole,
    /// A batch of CloudEvents: one record per element.
    Split,
}

/// Why a record, or all that follows it in its file, could not be read.
#[derive(Debug, Error)]
#[error("{origin}: {reason}")]
pub struct Unreadable {
    /// Where.
    pub origin: Origin,
    /// Why.
    pub reason: String,
}

/// Records of one file, in order.
pub type Records = Box<dyn Iterator<Item = Result<Record, Unreadable>>>;

impl Origin {
    /// A place in a file.
    pub fn new(path: &Path, line: u64) -> Self {
        Self {
            path: Arc::from(path),
            line,
        }
    }

    fn at(&self, line: u64) -> Self {
        Self {
            path: Arc::clone(&self.path),
            line,
        }
    }

    fn unreadable(&self, reason: impl fmt::Display) -> Unreadable {
        Unreadable {
            origin: self.clone(),
            reason: reason.to_string(),
        }
    }

    /// Name of the folder that holds the file.
    pub fn directory(&self) -> Option<String> {
        let parent = self.path.parent()?;
        if let Some(name) = parent.file_name() {
            return Some(name.to_string_lossy().into_owned());
        }
        // "ping.json" alone lies in the current folder, which has a name too.
        let parent = self.path.canonicalize().ok()?;
        Some(parent.parent()?.file_name()?.to_string_lossy().into_owned())
    }

    /// Name of the file without its ending.
    pub fn stem(&self) -> Option<String> {
        Some(self.path.file_stem()?.to_string_lossy().into_owned())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

impl Format {
    /// The format that a file's ending names.
    pub fn of(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        match ending.as_str() {
            "json" | "jsonld" => Some(Self::Json),
            "ndjson" | "jsonl" => Some(Self::Ndjson),
            "csv" => Some(Self::Csv),
            _ => None,
        }
    }
}

/// Opens a file and gives its records; `read` counts the bytes taken from it.
///
/// # Errors
/// When the file cannot be opened.
pub fn records(
    path: &Path,
    format: Format,
    arrays: Arrays,
    read: Arc<AtomicU64>,
) -> io::Result<Records> {
    let origin = Origin::new(path, 1);
    let file = Counted {
        file: File::open(path)?,
        read,
    };
    Ok(match format {
        Format::Json => documents(file, origin, arrays),
        Format::Ndjson => Box::new(Lines {
            reader: BufReader::with_capacity(256 * 1024, file),
            origin,
            line: 0,
            ended: false,
        }),
        Format::Csv => rows(file, origin),
    })
}

/// The files behind the given paths: a file is itself, a folder is everything below it whose ending
/// names a format, in order of names. What was left out is listed beside.
///
/// # Errors
/// When a path does not exist, a folder cannot be read, or a named file has no known ending.
pub fn collect(paths: &[PathBuf], forced: Option<Format>) -> io::Result<Collected> {
    let mut collected = Collected::default();
    for path in paths {
        let size = std::fs::metadata(path).map_err(|error| named(path, &error))?;
        if size.is_dir() {
            collected.folder(path, forced)?;
            continue;
        }
        let Some(format) = forced.or_else(|| Format::of(path)) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{}: expected a file that ends in .json, .jsonld, .ndjson, .jsonl or .csv, or --format",
                    path.display()
                ),
            ));
        };
        collected.files.push((path.clone(), format));
        collected.bytes += size.len();
    }
    Ok(collected)
}

/// What `collect` found.
#[derive(Debug, Default)]
pub struct Collected {
    /// Files to send, in order.
    pub files: Vec<(PathBuf, Format)>,
    /// Their bytes together.
    pub bytes: u64,
    /// Files left out, since their ending names no format.
    pub skipped: u64,
}

impl Collected {
    fn folder(&mut self, folder: &Path, forced: Option<Format>) -> io::Result<()> {
        let mut entries = std::fs::read_dir(folder)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(|error| named(folder, &error))?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            // A link is neither: following one may never end.
            let kind = entry.file_type().map_err(|error| named(&path, &error))?;
            if kind.is_dir() {
                self.folder(&path, forced)?;
            } else if let (true, Some(format)) = (kind.is_file(), Format::of(&path)) {
                self.bytes += entry
                    .metadata()
                    .map_err(|error| named(&path, &error))?
                    .len();
                self.files.push((path, forced.unwrap_or(format)));
            } else {
                self.skipped += 1;
            }
        }
        Ok(())
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A file that counts what is read of it.
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

fn documents(file: Counted, origin: Origin, arrays: Arrays) -> Records {
    let mut data = Vec::new();
    match file.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut data) {
        Err(error) => return Box::new(std::iter::once(Err(origin.unreadable(error)))),
        Ok(read) if read as u64 > DOCUMENT_BYTES_MAX => {
            let reason =
                format!("expected at most {DOCUMENT_BYTES_MAX} bytes; use lines (.ndjson)");
            return Box::new(std::iter::once(Err(origin.unreadable(reason))));
        }
        Ok(_) => {}
    }
    if arrays == Arrays::Split && data.trim_ascii_start().starts_with(b"[") {
        return match serde_json::from_slice::<Vec<Box<RawValue>>>(&data) {
            Err(error) => Box::new(std::iter::once(Err(
                origin.unreadable(format!("not JSON: {error}"))
            ))),
            Ok(elements) => Box::new((1..).zip(elements).map(move |(number, element)| {
                Ok(Record {
                    origin: origin.at(number),
                    data: String::from(Box::<str>::from(element)).into_bytes(),
                })
            })),
        };
    }
    Box::new(std::iter::once(Ok(Record { origin, data })))
}

struct Lines {
    reader: BufReader<Counted>,
    origin: Origin,
    line: u64,
    ended: bool,
}

impl Iterator for Lines {
    type Item = Result<Record, Unreadable>;

    /// The next line that is not blank.
    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            self.line += 1;
            let origin = self.origin.at(self.line);
            let mut data = Vec::new();
            match (&mut self.reader)
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut data)
            {
                Err(error) => {
                    self.ended = true;
                    return Some(Err(origin.unreadable(error)));
                }
                Ok(0) => return None,
                Ok(read) if read as u64 == LINE_BYTES_MAX && !data.ends_with(b"\n") => {
                    self.ended = true;
                    let reason = format!("expected a line of at most {LINE_BYTES_MAX} bytes");
                    return Some(Err(origin.unreadable(reason)));
                }
                Ok(_) => {}
            }
            let data = data.trim_ascii();
            if !data.is_empty() {
                return Some(Ok(Record {
                    origin,
                    data: data.to_vec(),
                }));
            }
        }
        None
    }
}

fn rows(file: Counted, origin: Origin) -> Records {
    let mut reader = csv::ReaderBuilder::new()
        .buffer_capacity(256 * 1024)
        .from_reader(file);
    let header = match reader.headers() {
        Ok(header) => header.clone(),
        Err(error) => return Box::new(std::iter::once(Err(origin.unreadable(error)))),
    };
    Box::new(reader.into_records().map(move |row| {
        let row = row.map_err(|error| {
            let line = error.position().map_or(origin.line, csv::Position::line);
            origin.at(line).unreadable(error)
        })?;
        let origin = origin.at(row.position().map_or(0, csv::Position::line));
        let mut data = Vec::with_capacity(row.as_slice().len() + 16 * header.len());
        data.push(b'{');
        for (column, (name, value)) in header.iter().zip(&row).enumerate() {
            if column > 0 {
                data.push(b',');
            }
            for (text, after) in [(name, Some(b':')), (value, None)] {
                serde_json::to_writer(&mut data, text).expect("a string is written to memory");
                data.extend(after);
            }
        }
        data.push(b'}');
        Ok(Record { origin, data })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, content: &str, arrays: Arrays) -> Vec<Result<(u64, String), String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let format = Format::of(&path).unwrap();
        records(&path, format, arrays, Arc::default())
            .unwrap()
            .map(|record| match record {
                Ok(record) => Ok((record.origin.line, String::from_utf8(record.data).unwrap())),
                Err(error) => Err(error.reason),
            })
            .collect()
    }

    fn ok(line: u64, data: &str) -> Result<(u64, String), String> {
        Ok((line, data.to_owned()))
    }

    #[test]
    fn a_row_is_an_object_of_its_columns_in_header_order_and_all_strings() {
        assert_eq!(
            read(
                "a.csv",
                "z:1,a,b\n1.0,\"x, \"\"y\"\"\", \n2,,é\n",
                Arrays::Whole
            ),
            [
                ok(2, r#"{"z:1":"1.0","a":"x, \"y\"","b":" "}"#),
                ok(3, r#"{"z:1":"2","a":"","b":"é"}"#),
            ]
        );
    }

    #[test]
    fn a_row_of_the_wrong_length_is_named_and_the_next_is_read() {
        let rows = read("a.csv", "a,b\n1\n2,3\n", Arrays::Whole);
        assert!(rows[0].is_err());
        assert_eq!(rows[1], ok(3, r#"{"a":"2","b":"3"}"#));
    }

    #[test]
    fn lines_are_records_and_blank_ones_are_not() {
        assert_eq!(
            read("a.ndjson", "{\"a\":1}\r\n\n {\"b\":2}", Arrays::Whole),
            [ok(1, r#"{"a":1}"#), ok(3, r#"{"b":2}"#)]
        );
    }

    #[test]
    fn a_document_keeps_every_byte_and_an_array_of_events_is_split() {
        let text = "[ {\"a\" :1},\n 2 ]\n";
        assert_eq!(read("a.json", text, Arrays::Whole), [ok(1, text)]);
        assert_eq!(
            read("a.json", text, Arrays::Split),
            [ok(1, "{\"a\" :1}"), ok(2, "2")]
        );
    }

    #[test]
    fn folders_are_walked_in_order_and_other_files_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        for name in ["c.json", "a.csv", "b/x.jsonl", "b/notes.txt"] {
            std::fs::write(folder.path().join(name), "{}").unwrap();
        }
        let collected = collect(&[folder.path().to_owned()], None).unwrap();
        let names: Vec<_> = collected
            .files
            .iter()
            .map(|(path, _)| path.strip_prefix(folder.path()).unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["a.csv", "b/x.jsonl", "c.json"]);
        assert_eq!((collected.bytes, collected.skipped), (6, 1));
        assert!(collect(&[folder.path().join("b/notes.txt")], None).is_err());
        assert!(collect(&[folder.path().join("absent.json")], None).is_err());
    }
}
