//! A checkpoint (C2SP `tlog-checkpoint`): whose tree, how many records, which root. Signed, it is the
//! promise that nothing before it will ever change.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::canonical::INTEGER_END;
use super::hash::Hash;
use super::note::{Note, SigningNoteKey, VerifierKey};
use super::proof::Head;

/// The body of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Name of the tree, the same for good.
    pub origin: String,
    /// Size and root.
    pub head: Head,
    /// Lines that others added; kept so that the signature still fits.
    pub extensions: Vec<String>,
}

/// A text that is no checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a checkpoint; expected lines with origin, size in decimal digits, and root in base64")]
pub struct InvalidCheckpoint;

impl Checkpoint {
    /// Signs it.
    pub fn sign(&self, key: &SigningNoteKey) -> Note {
        let text = self.to_string();
        Note {
            signatures: vec![key.sign(&text)],
            text,
        }
    }

    /// Reads what one of `keys` signed.
    ///
    /// # Errors
    ///
    /// No checkpoint, or none of the keys has signed it under the tree's name.
    pub fn open<'k>(
        note: &Note,
        keys: impl IntoIterator<Item = &'k VerifierKey>,
    ) -> Result<(Self, &'k VerifierKey), NotOpened> {
        let checkpoint: Self = note.text.parse()?;
        let key = keys
            .into_iter()
            .find(|key| key.name() == checkpoint.origin && note.is_signed_by(key))
            .ok_or(NotOpened::Unsigned)?;
        Ok((checkpoint, key))
    }
}

/// Why a note was not taken for a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotOpened {
    /// Its text is none.
    #[error(transparent)]
    Invalid(#[from] InvalidCheckpoint),
    /// No signature that counts.
    #[error("no signature by a known key of its origin fits")]
    Unsigned,
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Head { size, root } = &self.head;
        writeln!(f, "{}\n{size}\n{}", self.origin, root.to_base64())?;
        self.extensions
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl FromStr for Checkpoint {
    type Err = InvalidCheckpoint;

    fn from_str(text: &str) -> Result<Self, InvalidCheckpoint> {
        let mut lines = text
            .strip_suffix('\n')
            .ok_or(InvalidCheckpoint)?
            .split('\n');
        let mut line = || lines.next().ok_or(InvalidCheckpoint);
        let origin = line()?.to_owned();
        let size = decimal(line()?).filter(|size| *size < INTEGER_END);
        let size = size.ok_or(InvalidCheckpoint)?;
        let root = Hash::from_base64(line()?).map_err(|_| InvalidCheckpoint)?;
        let extensions: Vec<String> = lines.map(str::to_owned).collect();
        if origin.is_empty() || extensions.iter().any(String::is_empty) {
            return Err(InvalidCheckpoint);
        }
        Ok(Self {
            origin,
            head: Head { size, root },
            extensions,
        })
    }
}

/// A number that has one way to be written: no sign, no zero in front.
pub(super) fn decimal(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::super::note::tests::published_key;
    use super::*;

    const ROOT: &str = "c4cb4867a1a214f253c95b76ff12e92a3c5055e7b6b95eef532786eaaf79298d";

    const PUBLISHED: &str = "ledger.example/demo\n3\nxMtIZ6GiFPJTyVt2/xLpKjxQVee2uV7vUyeG6q95KY0=\n\n\
         \u{2014} ledger.example/demo e4SI0Qqa2qIEvaKKKm2BqWwcwPB4Y/XDhmBAyv/tsBeIR6icvdZLKQ+qhsneSSM1djXKyFWiICRuiUJ+W1QdkYwvxAo=\n";

    fn published() -> Checkpoint {
        Checkpoint {
            origin: "ledger.example/demo".into(),
            head: Head {
                size: 3,
                root: ROOT.parse().unwrap(),
            },
            extensions: Vec::new(),
        }
    }

    #[test]
    fn the_published_checkpoint_is_signed_byte_for_byte_and_opened() {
        let key = published_key();
        assert_eq!(published().sign(&key).to_string(), PUBLISHED);
        let note: Note = PUBLISHED.parse().unwrap();
        let (opened, by) = Checkpoint::open(&note, [key.public()]).unwrap();
        assert_eq!((opened, by), (published(), key.public()));
    }

    #[test]
    fn a_checkpoint_of_another_origin_or_key_is_not_opened() {
        let key = published_key();
        let other = Checkpoint {
            origin: "ledger.example/other".into(),
            ..published()
        };
        let opened = Checkpoint::open(&other.sign(&key), [key.public()]);
        assert_eq!(opened, Err(NotOpened::Unsigned));
        let opened = Checkpoint::open(&published().sign(&key), []);
        assert_eq!(opened, Err(NotOpened::Unsigned));
    }

    #[test]
    fn a_text_that_is_no_checkpoint_is_refused_and_extensions_are_kept() {
        let good = published().to_string();
        let extended: Checkpoint = format!("{good}more\n").parse().unwrap();
        assert_eq!(extended.extensions, ["more"]);
        for text in [
            good.trim_end().to_owned(),
            good.replace("\n3\n", "\n03\n"),
            good.replace("\n3\n", "\n+3\n"),
            good.replace("\n3\n", "\n-3\n"),
            good.replace("\n3\n", "\n9007199254740992\n"),
            good.replace("KY0=", "KY0"),
            good.replace("ledger.example/demo", ""),
            format!("{good}\n"),
            "ledger.example/demo\n3\n".to_owned(),
        ] {
            assert_eq!(
                text.parse::<Checkpoint>(),
                Err(InvalidCheckpoint),
                "{text:?}"
            );
        }
    }
}
