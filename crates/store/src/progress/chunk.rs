//! A chunk: 4,096 consecutive sequences of a lane, one bit each, set when the delivery is resolved (or, in
//! the other set of chunks that a lane has, when a dead letter refers to its event).

use std::collections::BTreeSet;

use wayhold_model::Sequence;

/// Sequences per chunk, as a power of two: a chunk is 512 bytes, so several fit a page, and a flush of a
/// lane that settles in order rewrites one or two.
const BITS: u32 = 12;

/// Bytes of a chunk on disk.
pub(super) const BYTES: usize = 1 << (BITS - 3);

const WORDS: usize = BYTES / 8;

/// Which of 4,096 sequences are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk([u64; WORDS]);

/// Number of the chunk that holds a sequence.
pub(super) fn number_of(sequence: u64) -> u64 {
    sequence >> BITS
}

/// The last sequence of the chunk that holds this one.
pub(super) fn end_of(sequence: u64) -> u64 {
    sequence | ((1 << BITS) - 1)
}

impl Chunk {
    pub(super) fn new() -> Self {
        Self([0; WORDS])
    }

    /// Marks a sequence of this chunk as resolved; whether it was not before.
    pub(super) fn set(&mut self, sequence: u64) -> bool {
        let (word, mask) = place(sequence);
        let Some(word) = self.0.get_mut(word) else {
            return false;
        };
        let is_new = *word & mask == 0;
        *word |= mask;
        is_new
    }

    /// Unmarks a sequence of this chunk; whether it was marked.
    pub(super) fn clear(&mut self, sequence: u64) -> bool {
        let (word, mask) = place(sequence);
        let Some(word) = self.0.get_mut(word) else {
            return false;
        };
        let was_set = *word & mask != 0;
        *word &= !mask;
        was_set
    }

    /// Whether nothing of this chunk is marked.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Whether a sequence of this chunk is resolved.
    pub(super) fn contains(&self, sequence: u64) -> bool {
        let (word, mask) = place(sequence);
        self.0.get(word).is_some_and(|word| word & mask != 0)
    }

    /// How many of the chunk's sequences in `first..=last` are resolved. Both lie in this chunk.
    pub(super) fn count(&self, first: u64, last: u64) -> u64 {
        let ((first_word, first_mask), (last_word, last_mask)) = (place(first), place(last));
        // All bits from the first on, and all up to the last.
        let (from, through) = (!(first_mask - 1), last_mask | (last_mask - 1));
        let words = self
            .0
            .iter()
            .enumerate()
            .take(last_word + 1)
            .skip(first_word);
        words
            .map(|(at, word)| {
                let from = if at == first_word { from } else { u64::MAX };
                let through = if at == last_word { through } else { u64::MAX };
                u64::from((word & from & through).count_ones())
            })
            .sum()
    }

    /// The highest resolved sequence of this chunk, whose number is `number`.
    pub(super) fn highest(&self, number: u64) -> Option<u64> {
        let (at, word) = self
            .0
            .iter()
            .enumerate()
            .rev()
            .find(|(_, word)| **word != 0)?;
        let bit = u64::from(63 - word.leading_zeros());
        Some((number << BITS) + at as u64 * 64 + bit)
    }

    /// Disk form: sequence `n` of the chunk is bit `n % 8` of byte `n / 8`.
    pub(super) fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From the disk form.
    pub(super) fn from_bytes(bytes: &[u8; BYTES]) -> Self {
        let mut words = [0; WORDS];
        for (word, place) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*place);
        }
        Self(words)
    }
}

/// Where something was resolved, in any lane: as exact as chunks are, so that finding resolved segments
/// costs as much as changed and not as much as is held.
#[derive(Debug, Default)]
pub(crate) struct Touched(BTreeSet<u64>);

impl Touched {
    /// Something was resolved in chunks of these numbers.
    pub(super) fn extend(&mut self, numbers: impl Iterator<Item = u64>) {
        self.0.extend(numbers);
    }

    /// Whether something was resolved.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether something may have been resolved in `first..=last`.
    pub(crate) fn meets(&self, first: Sequence, last: Sequence) -> bool {
        let chunks = number_of(first.0)..=number_of(last.0);
        self.0.range(chunks).next().is_some()
    }
}

fn place(sequence: u64) -> (usize, u64) {
    let word = (sequence >> 6) as usize % WORDS;
    (word, 1 << (sequence % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_new_once_and_lies_where_the_format_says() {
        for sequence in [0, 1, 9, 4095, 4096 * 7 + 9, u64::MAX] {
            let mut chunk = Chunk::new();
            assert!(!chunk.contains(sequence));
            assert!(chunk.set(sequence));
            assert!(!chunk.set(sequence));
            assert!(chunk.clear(sequence) && !chunk.clear(sequence) && chunk.is_empty());
            assert!(chunk.set(sequence) && !chunk.is_empty());
            assert!(chunk.contains(sequence));
            let bytes = chunk.to_bytes();
            let within = usize::try_from(sequence % 4096).unwrap();
            assert_eq!(bytes[within / 8], 1 << (within % 8), "{sequence}");
            assert_eq!(Chunk::from_bytes(&bytes), chunk);
        }
    }

    #[test]
    fn a_count_over_a_span_is_the_sum_of_its_sequences() {
        let base = 7 << BITS;
        let mut chunk = Chunk::new();
        for sequence in (0..4096).filter(|sequence| sequence % 3 == 0 || sequence % 64 == 63) {
            chunk.set(base + sequence);
        }
        for (first, last) in [
            (0, 4095),
            (0, 0),
            (3, 3),
            (1, 2),
            (63, 64),
            (62, 130),
            (4090, 4095),
        ] {
            let (first, last) = (base + first, base + last);
            let expected = (first..=last)
                .filter(|sequence| chunk.contains(*sequence))
                .count() as u64;
            assert_eq!(chunk.count(first, last), expected, "{first} {last}");
        }
        assert_eq!(chunk.highest(7), Some(base + 4095));
        assert_eq!(Chunk::new().highest(7), None);
    }
}
