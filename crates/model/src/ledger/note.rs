//! Signed notes (C2SP `signed-note`): a text, an empty line, and lines of signatures, each with the name and
//! the number of its key. Ed25519 alone; lines of other keys are kept and ignored, as the standard asks.

use std::fmt;
use std::str::FromStr;

use data_encoding::{BASE64, HEXLOWER};
use ed25519_dalek::{Signature as Ed25519, Signer as _, SigningKey, Verifier as _, VerifyingKey};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// What a signature line begins with: an em dash and a space.
const LINE_START: &str = "\u{2014} ";

/// Most bytes of a note that is read: a checkpoint with a hundred cosignatures is a fiftieth of it.
pub const NOTE_BYTES_MAX: usize = 1_024 * 1_024;

/// Most signature lines that are read, as the standard suggests.
const SIGNATURES_MAX: usize = 100;

/// What a key is for, the byte of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Ed25519 over the text.
    Ed25519,
    /// Ed25519 of a witness, over the text and a time.
    Cosignature,
}

impl Algorithm {
    const fn byte(self) -> u8 {
        match self {
            Self::Ed25519 => 0x01,
            Self::Cosignature => 0x04,
        }
    }
}

/// Bytes of an Ed25519 public key. Whether they are a point of the curve shows when they are used: others have signed
/// nothing.
type PublicBytes = [u8; 32];

/// Number of a key: the first bytes of the hash of its name, algorithm and public half.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; 4]);

impl KeyId {
    fn of(name: &str, algorithm: Algorithm, key: &PublicBytes) -> Self {
        let digest: [u8; 32] = Sha256::new()
            .chain_update(name)
            .chain_update([b'\n', algorithm.byte()])
            .chain_update(key)
            .finalize()
            .into();
        let [a, b, c, d, ..] = digest;
        Self([a, b, c, d])
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no verifier key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidVerifierKey {
    /// Not three parts.
    #[error("expected NAME+ID+KEY, as ledger keys are shown")]
    Parts,
    /// A name that no key may have.
    #[error("expected a name without spaces and plus signs")]
    Name,
    /// Not a key of a known kind.
    #[error("expected base64 of an Ed25519 key behind its algorithm's byte")]
    Key,
    /// The number does not belong to the rest.
    #[error("the id does not belong to name and key; a part was changed or mistyped")]
    Id,
}

/// The public half of a key, with its name: `name+id+base64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifierKey {
    name: String,
    id: KeyId,
    algorithm: Algorithm,
    key: PublicBytes,
}

impl VerifierKey {
    /// Name of the key, which for a ledger is its origin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// What it signs.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether `signature` is this key's over exactly these bytes.
    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let key = VerifyingKey::from_bytes(&self.key);
        let signature = Ed25519::from_slice(signature);
        key.is_ok_and(|key| signature.is_ok_and(|one| key.verify(message, &one).is_ok()))
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = [&[self.algorithm.byte()], self.key.as_slice()].concat();
        write!(f, "{}+{}+{}", self.name, self.id, BASE64.encode(&key))
    }
}

impl FromStr for VerifierKey {
    type Err = InvalidVerifierKey;

    fn from_str(text: &str) -> Result<Self, InvalidVerifierKey> {
        // Base64 may hold plus signs too, so only the first two divide.
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(InvalidVerifierKey::Parts);
        };
        if !is_key_name(name) {
            return Err(InvalidVerifierKey::Name);
        }
        let bytes = BASE64
            .decode(key.as_bytes())
            .map_err(|_| InvalidVerifierKey::Key)?;
        let (algorithm, key) = bytes.split_first().ok_or(InvalidVerifierKey::Key)?;
        let algorithm = [Algorithm::Ed25519, Algorithm::Cosignature]
            .into_iter()
            .find(|known| known.byte() == *algorithm)
            .ok_or(InvalidVerifierKey::Key)?;
        let key = PublicBytes::try_from(key).map_err(|_| InvalidVerifierKey::Key)?;
        let computed = KeyId::of(name, algorithm, &key);
        if id != computed.to_string() {
            return Err(InvalidVerifierKey::Id);
        }
        Ok(Self {
            name: name.to_owned(),
            id: computed,
            algorithm,
            key,
        })
    }
}

/// Whether a key may have that name: not empty, without white space and plus signs.
pub fn is_key_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c == '+')
}

/// The private half of a ledger's key. Its `Debug` shows its name and number.
#[derive(Clone)]
pub struct SigningNoteKey {
    public: VerifierKey,
    secret: SigningKey,
}

impl SigningNoteKey {
    /// From 32 random bytes. `None` for a name that no key may have.
    pub fn new(name: &str, algorithm: Algorithm, seed: &[u8; 32]) -> Option<Self> {
        let secret = SigningKey::from_bytes(seed);
        let key = secret.verifying_key().to_bytes();
        is_key_name(name).then(|| Self {
            public: VerifierKey {
                name: name.to_owned(),
                id: KeyId::of(name, algorithm, &key),
                algorithm,
                key,
            },
            secret,
        })
    }

    /// The public half.
    pub fn public(&self) -> &VerifierKey {
        &self.public
    }

    /// The signature over exactly these bytes.
    pub(super) fn sign_bytes(&self, message: &[u8]) -> [u8; 64] {
        self.secret.sign(message).to_bytes()
    }

    /// A line that signs a note's text, which ends in a line break.
    pub fn sign(&self, text: &str) -> Signature {
        Signature {
            name: self.public.name.clone(),
            id: self.public.id,
            bytes: self.sign_bytes(text.as_bytes()).to_vec(),
        }
    }
}

impl fmt::Debug for SigningNoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningNoteKey({}+{})", self.public.name, self.public.id)
    }
}

/// A line of a note: who signed, with which key, and the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name of the key.
    pub name: String,
    /// Its number.
    pub id: KeyId,
    /// What the algorithm makes; for Ed25519 64 bytes.
    pub bytes: Vec<u8>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blob = [self.id.0.as_slice(), &self.bytes].concat();
        write!(f, "{LINE_START}{} {}", self.name, BASE64.encode(&blob))
    }
}

/// A text that is no signed note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidNote {
    /// Too long to be one.
    #[error("longer than {NOTE_BYTES_MAX} bytes")]
    Long,
    /// Not a text, an empty line and signatures.
    #[error("expected a text, an empty line, and lines of signatures, each ended by a line break")]
    Shape,
    /// A signature line that is none.
    #[error("expected signature lines of the form: \u{2014} NAME BASE64")]
    Signature,
}

/// A text and who signed it; nothing is said about whether the signatures are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What is signed; ends in a line break.
    pub text: String,
    /// Its signatures, in order.
    pub signatures: Vec<Signature>,
}

impl Note {
    /// Whether `key`, one of [`Algorithm::Ed25519`], has signed it. A line that bears the key's name and number and
    /// does not fit counts against the whole note.
    pub fn is_signed_by(&self, key: &VerifierKey) -> bool {
        let mut lines = self
            .signatures
            .iter()
            .filter(|line| line.name == key.name && line.id == key.id)
            .peekable();
        key.algorithm == Algorithm::Ed25519
            && lines.peek().is_some()
            && lines.all(|line| key.has_signed(self.text.as_bytes(), &line.bytes))
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        self.signatures
            .iter()
            .try_for_each(|signature| writeln!(f, "{signature}"))
    }
}

impl FromStr for Note {
    type Err = InvalidNote;

    fn from_str(note: &str) -> Result<Self, InvalidNote> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(InvalidNote::Long);
        }
        if note.contains(|c: char| c != '\n' && (c < ' ')) {
            return Err(InvalidNote::Shape);
        }
        let (text, lines) = note.rsplit_once("\n\n").ok_or(InvalidNote::Shape)?;
        let lines = lines.strip_suffix('\n').ok_or(InvalidNote::Shape)?;
        let signatures: Vec<Signature> = lines
            .split('\n')
            .take(SIGNATURES_MAX + 1)
            .map(|line| signature(line).ok_or(InvalidNote::Signature))
            .collect::<Result<_, _>>()?;
        if signatures.len() > SIGNATURES_MAX {
            return Err(InvalidNote::Long);
        }
        Ok(Self {
            text: format!("{text}\n"),
            signatures,
        })
    }
}

fn signature(line: &str) -> Option<Signature> {
    let (name, blob) = line.strip_prefix(LINE_START)?.split_once(' ')?;
    let blob = BASE64.decode(blob.as_bytes()).ok()?;
    let (id, bytes) = blob.split_first_chunk::<4>()?;
    (is_key_name(name) && !bytes.is_empty()).then(|| Signature {
        name: name.to_owned(),
        id: KeyId(*id),
        bytes: bytes.to_vec(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The key of the published vectors: its seed is the bytes 0 to 31.
    pub(in super::super) fn published_key() -> SigningNoteKey {
        let seed = std::array::from_fn(|at| u8::try_from(at).unwrap());
        SigningNoteKey::new("ledger.example/demo", Algorithm::Ed25519, &seed).unwrap()
    }

    #[test]
    fn the_published_keys_have_the_published_ids() {
        let text = "ledger.example/demo+7b8488d1+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4";
        assert_eq!(published_key().public().to_string(), text);
        for text in [
            text,
            "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
        ] {
            assert_eq!(text.parse::<VerifierKey>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_key_says_which_part_is_wrong() {
        let good = published_key().public().to_string();
        for (text, error) in [
            ("ledger.example", InvalidVerifierKey::Parts),
            (&good.replace("demo", "de mo"), InvalidVerifierKey::Name),
            (&good.replace("demo", "other"), InvalidVerifierKey::Id),
            (
                &good.replace("7b8488d1", "7B8488D1"),
                InvalidVerifierKey::Id,
            ),
            (&good.replace("AQOh", "AgOh"), InvalidVerifierKey::Key),
            (&good.replace("AQOhB7", ""), InvalidVerifierKey::Key),
        ] {
            assert_eq!(text.parse::<VerifierKey>(), Err(error), "{text}");
        }
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_is_signed_by_its_key_alone() {
        let key = published_key();
        let other = SigningNoteKey::new("other", Algorithm::Ed25519, &[7; 32]).unwrap();
        let same_name =
            SigningNoteKey::new("ledger.example/demo", Algorithm::Ed25519, &[7; 32]).unwrap();
        let text = "a\n\nb\n".to_owned();
        let note = Note {
            signatures: vec![key.sign(&text), other.sign(&text)],
            text,
        };
        let mut read: Note = note.to_string().parse().unwrap();
        assert_eq!(read, note);
        assert!(read.is_signed_by(key.public()) && read.is_signed_by(other.public()));
        assert!(!read.is_signed_by(same_name.public()));
        read.text = "a\n\nc\n".into();
        assert!(!read.is_signed_by(key.public()));
    }

    #[test]
    fn a_false_line_in_a_keys_name_spoils_the_note() {
        let key = published_key();
        let text = "a\n".to_owned();
        let mut note = Note {
            signatures: vec![key.sign(&text), key.sign("b\n")],
            text,
        };
        assert!(!note.is_signed_by(key.public()));
        note.signatures.pop();
        assert!(note.is_signed_by(key.public()));
        note.signatures.pop();
        assert!(!note.is_signed_by(key.public()));
    }

    #[test]
    fn what_is_no_note_is_refused() {
        let key = published_key();
        let note = format!("a\n\n{}\n", key.sign("a\n"));
        assert!(note.parse::<Note>().is_ok());
        for (text, error) in [
            (note.trim_end().to_owned(), InvalidNote::Shape),
            (note.replace("\n\n", "\n"), InvalidNote::Shape),
            (note.replace('\u{2014}', "-"), InvalidNote::Signature),
            (note.replace("demo ", "demo  "), InvalidNote::Signature),
            (note.replace('\n', "\r\n"), InvalidNote::Shape),
            (format!("{note}\n"), InvalidNote::Shape),
            ("a\n\n".to_owned(), InvalidNote::Shape),
            ("x".repeat(NOTE_BYTES_MAX + 1), InvalidNote::Long),
        ] {
            assert_eq!(text.parse::<Note>(), Err(error), "{text:?}");
        }
    }
}
