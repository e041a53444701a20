//! A stream of lines (NDJSON), each an independent event. Lines are stored in slices, one after the
//! other, so that memory stays bounded and order is kept. What was stored stays stored, whatever
//! becomes of later lines, and of lines of other shards.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

use memchr::memchr;
use wayhold_model::admission::Fill;

use super::accept::{Accept, Accepted, Admitted};
use super::{Refusal, Refused, trace};

/// What became of one line.
pub(crate) type LineResult = Result<Accepted, Refusal>;

/// Takes a stream's bytes and gives a result for each line, in order. Blank lines have none.
pub(crate) struct Stream {
    accept: Accept,
    trace: Option<trace::Context>,
    admit_until: Fill,
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    /// Whether the line under way is too long: the rest of it is skipped.
    skipping: bool,
    /// Lines seen, blank ones included.
    lines: usize,
    slice: Vec<(usize, Result<Admitted, Refusal>)>,
    slice_bytes: usize,
    /// Set once the store had no room: whatever comes later is refused alike, because it must not
    /// overtake what the producer has to send again.
    refused: Option<Refusal>,
    held: HeldKeys,
}

/// Ordering keys of lines that a limit refused: a later line of such a key must not overtake what the
/// producer has to send again. Others go on, because limits concern some events and not others. Holds a
/// hash for each, so at most eight bytes for each line that a stream may have; a line that is refused for
/// the hash of another key only comes later.
#[derive(Default)]
struct HeldKeys {
    hashes: HashSet<u64>,
    hasher: RandomState,
    refusal: Option<Refusal>,
}

impl Stream {
    pub(crate) fn new(accept: Accept, trace: Option<trace::Context>, admit_until: Fill) -> Self {
        Self {
            accept,
            trace,
            admit_until,
            partial: Vec::new(),
            skipping: false,
            lines: 0,
            slice: Vec::new(),
            slice_bytes: 0,
            refused: None,
            held: HeldKeys::default(),
        }
    }

    /// Takes the next bytes; `each` gets the number (from 1) and result of every line that was decided.
    ///
    /// # Errors
    /// When the stream has more lines than a request may; none of the lines beyond is stored.
    pub(crate) async fn feed(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(usize, LineResult),
    ) -> Result<(), Refusal> {
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            self.take(line, true)?;
            rest = after.get(1..).unwrap_or_default();
            if self.slice_is_full() {
                self.flush(&mut each).await;
            }
        }
        self.take(rest, false)
    }

    /// The stream has ended: decides what is left.
    ///
    /// # Errors
    /// As `feed`.
    pub(crate) async fn finish(
        &mut self,
        mut each: impl FnMut(usize, LineResult),
    ) -> Result<(), Refusal> {
        let last = match self.partial.is_empty() && !self.skipping {
            true => Ok(()),
            false => self.take(b"", true),
        };
        self.flush(&mut each).await;
        last
    }

    /// The stream broke off: the lines that were whole are decided, the one under way is not.
    pub(crate) async fn cut(&mut self, mut each: impl FnMut(usize, LineResult)) {
        self.flush(&mut each).await;
    }

    fn take(&mut self, piece: &[u8], ends: bool) -> Result<(), Refusal> {
        let limit = self.accept.limits().slice_bytes;
        if self.partial.len() + piece.len() > limit {
            self.skipping = true;
            self.partial.clear();
        }
        if !ends {
            if !self.skipping {
                self.partial.extend_from_slice(piece);
            }
            return Ok(());
        }
        let lines_max = self.accept.limits().ndjson_lines;
        if self.lines == lines_max {
            return Err(Refusal::TooLarge {
                what: "the number of lines",
                limit: lines_max,
            });
        }
        self.lines += 1;
        if std::mem::take(&mut self.skipping) {
            let what = "the number of bytes of the line";
            self.push(Err(Refusal::TooLarge { what, limit }), 0);
            return Ok(());
        }
        if self.partial.is_empty() {
            self.read(piece);
        } else {
            let mut line = std::mem::take(&mut self.partial);
            line.extend_from_slice(piece);
            self.read(&line);
            line.clear();
            self.partial = line;
        }
        Ok(())
    }

    fn read(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let result = match &self.refused {
            Some(refusal) => Err(refusal.clone()),
            None => self.accept.read_line(line, self.trace.as_ref()),
        };
        self.push(result, line.len());
    }

    fn push(&mut self, result: Result<Admitted, Refusal>, bytes: usize) {
        self.slice.push((self.lines, result));
        self.slice_bytes += bytes;
    }

    fn slice_is_full(&self) -> bool {
        let limits = self.accept.limits();
        self.slice.len() >= limits.slice_lines || self.slice_bytes >= limits.slice_bytes
    }

    /// Stores the slice and gives its lines' results, in order.
    async fn flush(&mut self, each: &mut impl FnMut(usize, LineResult)) {
        self.slice_bytes = 0;
        let mut numbers = Vec::with_capacity(self.slice.len());
        let mut admitted = Vec::with_capacity(self.slice.len());
        let mut slice = std::mem::take(&mut self.slice);
        for (line, result) in slice.drain(..) {
            let result = match result {
                Ok(mut event) => self.let_in(&mut event).await.map(|()| event),
                Err(refusal) => Err(refusal),
            };
            numbers.push((line, result.map(|event| admitted.push(event))));
        }
        // Kept for its room.
        self.slice = slice;
        let mut stored = self.store_each(&admitted).await.into_iter();
        for (line, read) in numbers {
            let result = match read {
                Ok(()) => stored.next().unwrap_or(Err(Refusal::Cut)),
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = &result {
                self.accept.count_refused(refusal);
            }
            each(line, result);
        }
    }

    /// Lets a line in, or says which limit is in its way.
    async fn let_in(&mut self, admitted: &mut Admitted) -> Result<(), Refusal> {
        let is_open = self.accept.is_open(self.admit_until);
        if is_open && self.held.refusal.is_none() {
            return Ok(());
        }
        let decided = match self.held.of(admitted) {
            Some(refusal) => Err(refusal),
            None => self.accept.decide(admitted, self.admit_until),
        };
        let Err(refusal) = decided else {
            return Ok(());
        };
        let let_in = Box::pin(self.accept.unless_known(admitted, refusal)).await;
        let_in.inspect_err(|refusal| self.held.hold(admitted, refusal))
    }

    /// Stores events that are independent but must keep their order. The store takes all or none, so
    /// what stands before a conflict is stored first, then the conflict stands first and is refused.
    async fn store_each(&mut self, admitted: &[Admitted]) -> Vec<LineResult> {
        let mut results = Vec::with_capacity(admitted.len());
        let mut rest = admitted;
        let mut take = rest.len();
        while let Some((now, later)) = rest.split_at_checked(take)
            && !rest.is_empty()
        {
            match self.accept.store_all(now).await {
                Ok(accepted) => {
                    results.extend(accepted.into_iter().map(Ok));
                    rest = later;
                }
                Err(Refused {
                    index: Some(0),
                    refusal,
                }) => {
                    results.push(Err(refusal));
                    rest = rest.get(1..).unwrap_or_default();
                }
                Err(Refused {
                    index: Some(index), ..
                }) => {
                    take = index;
                    continue;
                }
                Err(Refused {
                    refusal: Refusal::Partly { accepted, cause },
                    ..
                }) => {
                    let refused = || Err((*cause).clone());
                    let stored = accepted.into_iter();
                    results.extend(stored.map(|one| one.map_or_else(refused, Ok)));
                    results.extend(later.iter().map(|_| refused()));
                    self.refused = Some(*cause);
                    break;
                }
                Err(Refused {
                    index: None,
                    refusal,
                }) => {
                    results.extend(rest.iter().map(|_| Err(refusal.clone())));
                    self.refused = Some(refusal).filter(Refusal::is_temporary);
                    break;
                }
            }
            take = rest.len();
        }
        results
    }
}

impl HeldKeys {
    /// Why a line has to wait for an earlier one of its key.
    fn of(&self, admitted: &Admitted) -> Option<Refusal> {
        let refusal = self.refusal.as_ref()?;
        let hash = self.hasher.hash_one(admitted.event.key()?);
        self.hashes.contains(&hash).then(|| refusal.clone())
    }

    /// Later lines of this one's key wait.
    fn hold(&mut self, admitted: &Admitted, refusal: &Refusal) {
        if let (Refusal::Full(_), Some(key)) = (refusal, admitted.event.key()) {
            self.hashes.insert(self.hasher.hash_one(key));
            self.refusal = Some(refusal.clone());
        }
    }
}
