//! Cosignatures (C2SP `tlog-cosignature`): a witness who has seen a checkpoint, and that it continues the ones seen
//! before, signs it together with the time.

use super::note::{Algorithm, Note, Signature, SigningNoteKey, VerifierKey};

/// Bytes of the time in front of the signature.
const TIME_BYTES: usize = 8;

/// A witness' line under a note's text, at that time in seconds since the epoch.
pub fn cosign(witness: &SigningNoteKey, text: &str, seconds: u64) -> Signature {
    let mut bytes = seconds.to_be_bytes().to_vec();
    bytes.extend_from_slice(&witness.sign_bytes(message(text, seconds).as_bytes()));
    Signature {
        name: witness.public().name().to_owned(),
        id: witness.public().id(),
        bytes,
    }
}

/// When `witness`, a key of [`Algorithm::Cosignature`], signed the note; `None` where it did not.
pub fn cosigned_at(note: &Note, witness: &VerifierKey) -> Option<u64> {
    if witness.algorithm() != Algorithm::Cosignature {
        return None;
    }
    note.signatures
        .iter()
        .filter(|line| line.name == witness.name() && line.id == witness.id())
        .find_map(|line| {
            let (time, signature) = line.bytes.split_first_chunk::<TIME_BYTES>()?;
            let seconds = u64::from_be_bytes(*time);
            witness
                .has_signed(message(&note.text, seconds).as_bytes(), signature)
                .then_some(seconds)
        })
}

fn message(text: &str, seconds: u64) -> String {
    format!("cosignature/v1\ntime {seconds}\n{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the C2SP page.
    const PUBLISHED: &str = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n\
        \u{2014} example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n\
        \u{2014} witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==\n";

    #[test]
    fn the_published_example_holds_a_time_and_a_signature() {
        let note: Note = PUBLISHED.parse().unwrap();
        assert_eq!(note.to_string(), PUBLISHED);
        let witness = note.signatures.last().unwrap();
        assert_eq!(witness.id.to_string(), "8d66cf3f");
        assert_eq!(witness.bytes.len(), TIME_BYTES + 64);
        let (time, _) = witness.bytes.split_first_chunk::<TIME_BYTES>().unwrap();
        assert_eq!(u64::from_be_bytes(*time), 1_679_315_147);
    }

    #[test]
    fn a_cosignature_says_when_and_counts_for_its_text_time_and_key_alone() {
        let key = |algorithm, seed| SigningNoteKey::new("witness", algorithm, &[seed; 32]).unwrap();
        let witness = key(Algorithm::Cosignature, 1);
        let mut note = Note {
            text: "a\n1\nroot\n".into(),
            signatures: vec![cosign(&witness, "a\n1\nroot\n", 77)],
        };
        assert_eq!(cosigned_at(&note, witness.public()), Some(77));
        let (other, plain) = (key(Algorithm::Cosignature, 2), key(Algorithm::Ed25519, 1));
        assert_eq!(cosigned_at(&note, other.public()), None);
        assert_eq!(cosigned_at(&note, plain.public()), None);
        assert!(!note.is_signed_by(witness.public()));
        note.signatures[0].bytes[7] += 1;
        assert_eq!(cosigned_at(&note, witness.public()), None);
        note.signatures[0].bytes[7] -= 1;
        note.text.push('x');
        assert_eq!(cosigned_at(&note, witness.public()), None);
    }
}
