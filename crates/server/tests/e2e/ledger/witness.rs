//! Witnesses: a checkpoint that one cosigned is told apart from one that it did not.

use std::fs;

use wayhold::command::verify::{Trusted, verify};
use wayhold_model::ledger::cosignature::cosign;
use wayhold_model::ledger::examine::Problem;
use wayhold_model::ledger::note::{Algorithm, Note, SigningNoteKey};

use super::example::Example;
use crate::support::server::{run, stdout};

fn witness(seed: u8) -> SigningNoteKey {
    SigningNoteKey::new("witness.example/w1", Algorithm::Cosignature, &[seed; 32]).unwrap()
}

/// 2026-07-28T00:00:00Z.
const AT: u64 = 1_785_196_800;

#[test]
fn a_checkpoint_counts_as_witnessed_when_every_named_witness_has_cosigned_it() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("export");
    let example = Example::new();
    example.write(&dir);
    let path = dir.join("checkpoint");
    let unseen = fs::read_to_string(&path).unwrap();
    let mut note: Note = unseen.parse().unwrap();
    let trusted = |seed, outside: Option<String>| Trusted {
        checkpoint: outside.map(String::into_bytes),
        witnesses: vec![witness(seed).public().clone()],
        ..Trusted::default()
    };

    // The export's own checkpoint, before and after the witness saw it.
    let refused = verify(&dir, &trusted(1, None)).unwrap_err();
    assert_eq!((refused.problem, refused.record), (Problem::Witness, None));
    let line = cosign(&witness(1), &note.text, AT);
    note.signatures.push(line);
    let outside = note.to_string();
    fs::write(&path, &outside).unwrap();
    let seen = verify(&dir, &trusted(1, None)).unwrap();
    assert_eq!(seen.witnessed, [("witness.example/w1".to_owned(), AT)]);
    assert_eq!(
        verify(&dir, &trusted(2, None)).unwrap_err().problem,
        Problem::Witness
    );

    // One from elsewhere is what a witness has to have seen, where there is one.
    let other = trusted(1, Some(unseen.clone()));
    assert_eq!(verify(&dir, &other).unwrap_err().problem, Problem::Witness);
    fs::write(&path, &unseen).unwrap();
    assert!(verify(&dir, &trusted(1, Some(outside.clone()))).is_ok());
    fs::write(&path, &outside).unwrap();

    // As a person asks.
    let key = witness(1).public().to_string();
    let said = run(
        root.path(),
        &["ledger", "verify", "export", "--witness", &key],
    );
    assert!(
        stdout(&said).contains("witness.example/w1 saw the checkpoint at 2026-07-28T00:00:00"),
        "{}",
        stdout(&said)
    );
    let plain = super::example::key([7; 32]).public().to_string();
    let refused = run(
        root.path(),
        &["ledger", "verify", "export", "--witness", &plain],
    );
    assert_eq!(refused.status.code(), Some(2));
}
