//! A proof to carry (C2SP `tlog-proof`): place, path and signed checkpoint in one text, which with the record
//! and a verifier key is all that an offline check needs.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::checkpoint::{Checkpoint, NotOpened, decimal};
use super::hash::Hash;
use super::note::{InvalidNote, Note, VerifierKey};
use super::proof::{self, NotProven};

/// First line.
const VERSION: &str = "c2sp.org/tlog-proof@v1";

/// Most hashes on a path: one per level of a tree of 2^63 records.
const PATH_MAX: usize = 63;

/// That a record is in the tree of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlogProof {
    /// Place of the record.
    pub index: u64,
    /// From its sibling up.
    pub path: Vec<Hash>,
    /// The signed checkpoint.
    pub checkpoint: Note,
}

/// A text that is no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidTlogProof {
    /// Not the expected lines.
    #[error("expected {VERSION}, the index, hashes in base64, an empty line and a checkpoint")]
    Shape,
    /// What follows the hashes is no note.
    #[error(transparent)]
    Note(#[from] InvalidNote),
}

/// Why a record was not proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unproven {
    /// The checkpoint does not count.
    #[error(transparent)]
    Checkpoint(#[from] NotOpened),
    /// The path does not lead to its root.
    #[error(transparent)]
    Path(#[from] NotProven),
}

impl TlogProof {
    /// Checks that `record`, in canonical form, lies at the index of the tree that one of `keys` signed.
    ///
    /// # Errors
    ///
    /// Says what does not fit.
    pub fn check<'k>(
        &self,
        record: &[u8],
        keys: impl IntoIterator<Item = &'k VerifierKey>,
    ) -> Result<Checkpoint, Unproven> {
        let (checkpoint, _) = Checkpoint::open(&self.checkpoint, keys)?;
        let head = checkpoint.head;
        let leaf = Hash::of_leaf(record);
        proof::check_inclusion(leaf, self.index, head.size, head.root, &self.path)?;
        Ok(checkpoint)
    }
}

impl fmt::Display for TlogProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{VERSION}\nindex {}", self.index)?;
        for hash in &self.path {
            writeln!(f, "{}", hash.to_base64())?;
        }
        write!(f, "\n{}", self.checkpoint)
    }
}

impl FromStr for TlogProof {
    type Err = InvalidTlogProof;

    /// A line `extra` of others is allowed and left out.
    fn from_str(text: &str) -> Result<Self, InvalidTlogProof> {
        let (head, note) = text.split_once("\n\n").ok_or(InvalidTlogProof::Shape)?;
        let mut lines = head.split('\n').peekable();
        if lines.next() != Some(VERSION) {
            return Err(InvalidTlogProof::Shape);
        }
        lines.next_if(|line| line.starts_with("extra "));
        let index = lines
            .next()
            .and_then(|line| decimal(line.strip_prefix("index ")?))
            .ok_or(InvalidTlogProof::Shape)?;
        let path: Vec<Hash> = lines
            .take(PATH_MAX + 1)
            .map(|line| Hash::from_base64(line).map_err(|_| InvalidTlogProof::Shape))
            .collect::<Result<_, _>>()?;
        if path.len() > PATH_MAX {
            return Err(InvalidTlogProof::Shape);
        }
        Ok(Self {
            index,
            path,
            checkpoint: note.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::note::tests::published_key;
    use super::*;

    const PUBLISHED: &str = "c2sp.org/tlog-proof@v1\nindex 1\nARODLMWIVJC0C9ofk27Q3VUCsSxM+3VHUpx3tIfq8CM=\n\
        Zmp3X4sqZRfleiZY/eJqKhuMqCV/tHYlgYYslxHqbJM=\n\nledger.example/demo\n3\n\
        xMtIZ6GiFPJTyVt2/xLpKjxQVee2uV7vUyeG6q95KY0=\n\n\
        \u{2014} ledger.example/demo e4SI0Qqa2qIEvaKKKm2BqWwcwPB4Y/XDhmBAyv/tsBeIR6icvdZLKQ+qhsneSSM1djXKyFWiICRuiUJ+W1QdkYwvxAo=\n";

    const RECORD: &str = r#"{"actor":{"id":"policy","type":"system"},"body":{"approval_id":"apr_1","bound_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","reason":"库存不足 > 500"},"idx":1,"prev":"0113832cc5885490b40bda1f936ed0dd5502b12c4cfb7547529c77b487eaf023","sseq":1,"stream":"cmd:01J00000000000000000000001","ts":"2026-07-28T00:00:01.000000Z","type":"approval.requested","v":1}"#;

    #[test]
    fn the_published_proof_is_read_written_and_holds() {
        let proof: TlogProof = PUBLISHED.parse().unwrap();
        assert_eq!(proof.to_string(), PUBLISHED);
        let key = published_key();
        let checked = proof.check(RECORD.as_bytes(), [key.public()]).unwrap();
        assert_eq!(checked.head.size, 3);
        let changed = RECORD.replace("500", "501");
        assert_eq!(
            proof.check(changed.as_bytes(), [key.public()]),
            Err(Unproven::Path(NotProven))
        );
        let moved = TlogProof { index: 0, ..proof };
        assert!(moved.check(RECORD.as_bytes(), [key.public()]).is_err());
    }

    #[test]
    fn an_extra_line_is_left_out_and_what_is_no_proof_is_refused() {
        let extra = PUBLISHED.replace("@v1\n", "@v1\nextra AAAA\n");
        assert_eq!(extra.parse::<TlogProof>(), PUBLISHED.parse());
        for text in [
            PUBLISHED.replace("@v1", "@v2"),
            PUBLISHED.replace("index 1", "index 01"),
            PUBLISHED.replace("ARODL", "AROD"),
            PUBLISHED.replace("index 1\n", ""),
            PUBLISHED.replace("\n\n", "\n"),
        ] {
            assert!(text.parse::<TlogProof>().is_err(), "{text}");
        }
    }
}
