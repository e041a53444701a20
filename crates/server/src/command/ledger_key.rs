//! The key that signs the ledger's checkpoints: made at the first start that has a ledger, and kept in `ledger.key` in the data
//! directory, readable by the server's user alone. It lies there, and not in `commands.db`, so that it is in no backup and no
//! export: whoever holds a copy of the ledger must not be able to sign another one.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;
use wayhold_model::ledger::note::{Algorithm, SigningNoteKey, VerifierKey};

/// Name of the file in the data directory.
pub const FILE: &str = "ledger.key";

/// What the file begins with, as other tools of signed notes write private keys.
const START: &str = "PRIVATE+KEY+";

/// The byte of Ed25519.
const ED25519: u8 = 0x01;

/// Most rights that the file may have: its owner may read and write it.
const MODE: u32 = 0o600;

/// Why there is no key to sign with.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file cannot be read or made.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// What it holds is no key.
    #[error(
        "{path}: expected PRIVATE+KEY+NAME+ID+KEY on one line; restore the file, or move it away to begin \
         with a new key",
        path = path.display()
    )]
    Unfit {
        /// The file.
        path: PathBuf,
    },
    /// Others than the server's user may read it.
    #[error(
        "{path}: other users may read it (mode {mode:03o}); `chmod 600` it, and move it away to begin with a new key \
         if somebody may have read it",
        path = path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its rights.
        mode: u32,
    },
    /// A name that no key may have.
    #[error("ledger.origin: expected a name without spaces and plus signs")]
    Name,
}

/// The key in a data directory; `None` where there is no such file.
///
/// # Errors
/// It cannot be used.
pub fn load(data: &Path) -> Result<Option<SigningNoteKey>, KeyError> {
    let path = data.join(FILE);
    let failed = |error| KeyError::Io {
        path: path.clone(),
        error,
    };
    let mode = match fs::metadata(&path) {
        Ok(metadata) => metadata.permissions().mode() & 0o777,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if mode & !MODE != 0 {
        return Err(KeyError::Open { path, mode });
    }
    let text = fs::read_to_string(&path).map_err(failed)?;
    parse(&text).map(Some).ok_or(KeyError::Unfit { path })
}

/// Makes a key of that name, from 32 random bytes, and keeps it.
///
/// # Errors
/// The file is there already, or cannot be written.
pub fn make(data: &Path, name: &str, seed: &[u8; 32]) -> Result<SigningNoteKey, KeyError> {
    let key = SigningNoteKey::new(name, Algorithm::Ed25519, seed).ok_or(KeyError::Name)?;
    let path = data.join(FILE);
    let write = || -> io::Result<()> {
        // Written aside first: half a key must never lie under its name.
        let aside = data.join(format!("{FILE}.new"));
        if let Err(error) = fs::remove_file(&aside)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(&aside)?;
        writeln!(file, "{}", private_text(key.public(), seed))?;
        file.sync_all()?;
        fs::hard_link(&aside, &path)?;
        fs::remove_file(&aside)?;
        File::open(data)?.sync_all()
    };
    write().map_err(|error| KeyError::Io { path, error })?;
    Ok(key)
}

fn private_text(public: &VerifierKey, seed: &[u8; 32]) -> String {
    let secret = [&[ED25519], seed.as_slice()].concat();
    format!(
        "{START}{}+{}+{}",
        public.name(),
        public.id(),
        STANDARD.encode(secret)
    )
}

fn parse(text: &str) -> Option<SigningNoteKey> {
    let rest = text.trim_end().strip_prefix(START)?;
    let mut parts = rest.splitn(3, '+');
    let (name, id, secret) = (parts.next()?, parts.next()?, parts.next()?);
    let secret = STANDARD.decode(secret).ok()?;
    let seed: &[u8; 32] = secret.strip_prefix(&[ED25519])?.try_into().ok()?;
    SigningNoteKey::new(name, Algorithm::Ed25519, seed)
        .filter(|key| key.public().id().to_string() == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_made_and_its_file_is_the_owners_alone() {
        let data = tempfile::tempdir().unwrap();
        assert!(load(data.path()).unwrap().is_none());
        let made = make(data.path(), "ledger.example/demo", &[7; 32]).unwrap();
        let path = data.path().join(FILE);
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let read = load(data.path()).unwrap().unwrap();
        assert_eq!(read.public(), made.public());
        let again = make(data.path(), "ledger.example/demo", &[8; 32]);
        assert!(matches!(again, Err(KeyError::Io { .. })));
        assert_eq!(load(data.path()).unwrap().unwrap().public(), made.public());
        assert!(matches!(
            make(data.path(), "a b", &[7; 32]),
            Err(KeyError::Name)
        ));
    }

    #[test]
    fn a_key_that_others_may_read_or_that_is_none_is_refused() {
        let data = tempfile::tempdir().unwrap();
        make(data.path(), "ledger.example/demo", &[7; 32]).unwrap();
        let path = data.path().join(FILE);
        let good = fs::read_to_string(&path).unwrap();
        for text in [
            "",
            "PRIVATE+KEY+a",
            &good.replace("demo", "other"),
            &good.replace("AQ", "AA"),
        ] {
            fs::write(&path, text).unwrap();
            let error = load(data.path()).unwrap_err();
            assert!(matches!(error, KeyError::Unfit { .. }), "{text}");
            assert!(!error.to_string().contains("BwcH"), "it shows the key");
        }
        fs::write(&path, good).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(
            load(data.path()),
            Err(KeyError::Open { mode: 0o640, .. })
        ));
    }
}
