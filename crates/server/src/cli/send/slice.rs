//! Slices: as many lines as the server stores in one transaction, so that a request is either taken
//! whole or, for want of room, not at all, and order survives the repeat.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::envelope;
use super::map::Map;
use super::record::{self, Arrays, Format, Origin, Record};

/// Most lines of a slice: what a server stores at once of a stream of lines.
const SLICE_LINES_MAX: usize = 1000;

/// Most bytes of a slice, likewise. A single line may be longer; it then travels alone.
const SLICE_BYTES_MAX: usize = 1024 * 1024;

/// Lines to send together, and records that became none.
#[derive(Debug, Default)]
pub struct Slice {
    /// Events, one per line, in order.
    pub lines: Vec<Line>,
    /// Records between them that are no events.
    pub refused: Vec<Refusal>,
    bytes: usize,
}

/// One event as a line, without its line break.
#[derive(Debug)]
pub struct Line {
    /// The record it came from.
    pub origin: Origin,
    /// The line.
    pub text: Vec<u8>,
}

/// A record that was not stored, and why.
#[derive(Debug)]
pub struct Refusal {
    /// The record.
    pub origin: Origin,
    /// One sentence.
    pub reason: String,
}

/// Packs the records of files into slices and hands each over when it is full.
pub struct Packer<'a, F> {
    map: Option<&'a Map>,
    slice: Slice,
    hand_over: F,
}

impl<'a, F: FnMut(Slice) -> bool> Packer<'a, F> {
    /// A packer whose `hand_over` says whether anybody still wants slices.
    pub fn new(map: Option<&'a Map>, hand_over: F) -> Self {
        Self {
            map,
            slice: Slice::default(),
            hand_over,
        }
    }

    /// Packs one file, counting the bytes read of it; false when nobody wants more.
    pub fn file(&mut self, path: &Path, format: Format, read: &Arc<AtomicU64>) -> bool {
        let arrays = match self.map {
            Some(_) => Arrays::Whole,
            None => Arrays::Split,
        };
        let records = match record::records(path, format, arrays, Arc::clone(read)) {
            Ok(records) => records,
            Err(error) => {
                self.slice.refused.push(Refusal {
                    origin: Origin::new(path, 1),
                    reason: error.to_string(),
                });
                return true;
            }
        };
        for record in records {
            match record {
                Ok(record) => self.record(record),
                Err(unreadable) => self.slice.refused.push(Refusal {
                    origin: unreadable.origin,
                    reason: unreadable.reason,
                }),
            }
            let full = self.slice.lines.len() >= SLICE_LINES_MAX
                || self.slice.refused.len() >= SLICE_LINES_MAX;
            if full && !self.hand_over() {
                return false;
            }
        }
        true
    }

    /// Hands over what is left.
    pub fn finish(mut self) {
        self.hand_over();
    }

    fn record(&mut self, record: Record) {
        let text = match self.map {
            Some(map) => map
                .apply(&record)
                .map(|event| event.line())
                .map_err(|error| error.to_string()),
            None => envelope::event_line(&record.data).map_err(|error| error.to_string()),
        };
        let origin = record.origin;
        match text {
            Ok(text) => {
                if self.slice.bytes + text.len() + 1 > SLICE_BYTES_MAX {
                    self.hand_over();
                }
                self.slice.bytes += text.len() + 1;
                self.slice.lines.push(Line { origin, text });
            }
            Err(reason) => self.slice.refused.push(Refusal { origin, reason }),
        }
    }

    fn hand_over(&mut self) -> bool {
        (self.hand_over)(std::mem::take(&mut self.slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_within_what_one_transaction_takes_and_keep_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ndjson");
        let long = "x".repeat(700 * 1024);
        let short: String = (0..2500).map(|n| format!("{{\"n\":{n}}}\n")).collect();
        let content =
            format!("{short}{{\"n\":2500,\"x\":\"{long}\"}}\n{{\"n\":2501,\"x\":\"{long}\"}}\n[\n");
        std::fs::write(&path, content).unwrap();
        let map = Map::parse("type = 't'\nsource = '/s'\nid = '{/n}'").unwrap();
        let read = Arc::new(AtomicU64::new(0));
        let mut slices = Vec::new();
        let mut packer = Packer::new(Some(&map), |slice| {
            slices.push(slice);
            true
        });
        assert!(packer.file(&path, Format::Ndjson, &read));
        packer.finish();
        let sizes: Vec<_> = slices.iter().map(|slice| slice.lines.len()).collect();
        assert_eq!(sizes, [1000, 1000, 501, 1]);
        let lines: Vec<_> = slices
            .iter()
            .flat_map(|slice| &slice.lines)
            .map(|line| line.origin.line)
            .collect();
        assert!(lines.is_sorted());
        assert_eq!(slices[3].refused[0].origin.line, 2503);
    }
}
