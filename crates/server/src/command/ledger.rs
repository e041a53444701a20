//! The ledger as a service: its key, its checkpoints, erasure and retention. What others do to commands is recorded by them, in
//! the change that it speaks of; here is what the ledger does to itself.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::Mutex;
use wayhold_model::Clock;
use wayhold_model::command::State;
use wayhold_model::ledger::note::{Note, SigningNoteKey};
use wayhold_model::ledger::{Actor, Checkpoint, Draft, Hash, NotCanonical, Trace};
use wayhold_store::commands::{Change, Commands, CommandsError, Erasing};
use wayhold_store::{CatalogError, OpenError, Store};

use super::ledger_key::{self, KeyError};
use super::standing::{Signed, Signing, Standing};
use crate::blocking::{Interrupted, blocking};

/// Stream of who took the ledger out.
const EXPORTS_STREAM: &str = "ledger:exports";

/// Stream of what is removed by age.
const RETENTION_STREAM: &str = "ledger:retention";

/// What is refused, or failed.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// The file of commands.
    #[error(transparent)]
    Commands(#[from] CommandsError),
    /// The audit trail.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key in the data directory signs no more.
    #[error(
        "ledger.key holds the key {0}, which was retired; move the file away to begin with a new one"
    )]
    Retired(String),
    /// The file of commands cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No record can be made of what was given.
    #[error(transparent)]
    Unfit(#[from] NotCanonical),
    /// There is no such payload.
    #[error("record {idx} holds no payload {commitment}; it may have been erased before")]
    NoPayload {
        /// The record.
        idx: u64,
        /// Its commitment.
        commitment: Hash,
    },
    /// The command of the record needs what is to be erased. Cancel it, or wait for its end.
    #[error("the command is {}; what it says can be erased once it has ended", .0.name())]
    NotEnded(State),
    /// Whoever asks speaks of another ledger than this server's.
    #[error("this server's ledger has no key {0}; ask the server of the data directory")]
    OtherLedger(String),
    /// The system gives no randomness.
    #[error("no random bytes for a key: {0}")]
    Random(std::io::Error),
    /// The work did not end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Why a payload is erased.
#[derive(Clone, Debug)]
pub struct Erasure {
    /// The record that names it.
    pub idx: u64,
    /// Its commitment.
    pub commitment: Hash,
    /// In the words of whoever asks.
    pub reason: String,
    /// The rule that asks for it, where there is one.
    pub legal_basis: Option<String>,
}

/// The ledger of one store.
pub struct Ledger {
    store: Store,
    data: PathBuf,
    origin: Option<String>,
    /// The key once it is introduced; held while it is being looked for.
    key: Mutex<Option<SigningNoteKey>>,
    signing: Signing,
    stopped: AtomicBool,
}

impl Ledger {
    /// The ledger of a store in that data directory. `origin` names it where it has no name yet.
    pub fn new(store: Store, data: PathBuf, origin: Option<String>) -> Self {
        Self {
            store,
            data,
            origin,
            key: Mutex::default(),
            signing: Signing::default(),
            stopped: AtomicBool::new(false),
        }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Commands, where there ever were some.
    pub fn commands(&self) -> Option<Commands> {
        self.store.commands_if_any()
    }

    /// Signs a last checkpoint; none is signed after it.
    pub async fn stop(&self) {
        if !self.stopped.swap(true, Ordering::AcqRel)
            && let Err(error) = self.checkpoint().await
        {
            tracing::warn!(%error, "no checkpoint was signed at stop");
        }
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Makes sure that there is a ledger, with a key that a record introduces.
    ///
    /// # Errors
    /// There is none to sign with; nothing can be proven until that is mended.
    pub async fn begin(&self) -> Result<(), LedgerError> {
        let store = self.store.clone();
        let commands = blocking(move || store.commands()).await??;
        self.key_of(&commands).await?;
        let kept = blocking(move || commands.read(|view| view.checkpoint())).await??;
        if let Some((size, at, _)) = kept {
            self.signing.signed(Signed { size, at });
        }
        self.follow_destinations().await
    }

    /// How it stands; `None` where there is none. Blocking, for a moment.
    pub fn standing(&self) -> Option<Standing> {
        let commands = self.commands()?;
        Some(Standing {
            records: *commands.ledger().borrow(),
            bytes: commands.bytes(),
            signed: self.signing.newest(),
        })
    }

    /// What is not as it should be, in sentences.
    pub fn findings(&self) -> Option<String> {
        let why = self.signing.failure()?;
        Some(format!("ledger: no checkpoint was signed: {why}"))
    }

    /// Signs a checkpoint over every record; the one before where nothing came since. `None` without any record.
    ///
    /// # Errors
    /// It cannot be signed or kept.
    pub async fn checkpoint(&self) -> Result<Option<Note>, LedgerError> {
        let signed = self.sign().await;
        if let Err(error) = &signed {
            self.signing.failed(error.to_string());
        }
        signed
    }

    async fn sign(&self) -> Result<Option<Note>, LedgerError> {
        let Some(commands) = self.commands() else {
            return Ok(None);
        };
        let key = self.key_of(&commands).await?;
        let reader = commands.clone();
        let (head, kept) = blocking(move || {
            reader.read(|view| Ok::<_, CommandsError>((view.ledger_head()?, view.checkpoint()?)))
        })
        .await??;
        if let Some((size, at, note)) = kept
            && size == head.size
            && let Ok(note) = note.parse::<Note>()
            && note.is_signed_by(key.public())
        {
            self.signing.signed(Signed { size, at });
            return Ok(Some(note));
        }
        wayhold_store::failpoint!("commands.ledger-before-checkpoint");
        let checkpoint = Checkpoint {
            origin: key.public().name().to_owned(),
            head,
            extensions: Vec::new(),
        };
        let note = checkpoint.sign(&key);
        let text = note.to_string();
        let kept = commands.change(move |change| {
            change.keep_checkpoint(head.size, &text)?;
            Ok::<_, CommandsError>(change.now())
        });
        let (size, at) = (head.size, kept.await?);
        wayhold_store::failpoint!("commands.ledger-checkpoint-kept");
        self.signing.signed(Signed { size, at });
        Ok(Some(note))
    }

    /// Records that somebody takes the ledger out, before they do; the record's place. `verifier` is a key of the
    /// ledger that is taken.
    ///
    /// # Errors
    /// That is another ledger than this one, or nothing can be recorded.
    pub async fn export(&self, by: Actor, verifier: String) -> Result<u64, LedgerError> {
        let Some(commands) = self.commands() else {
            return Err(LedgerError::OtherLedger(verifier));
        };
        commands
            .change(move |change| {
                let known = change.ledger_keys()?;
                if known.iter().all(|key| key.verifier != verifier) {
                    return Err(LedgerError::OtherLedger(verifier));
                }
                let body = json!({ "size": change.ledger_size()? });
                let (stream, trace) = (EXPORTS_STREAM.to_owned(), Trace::default());
                let draft = Draft::new(stream, "export.created", &by, &trace, &body)?;
                Ok(change.append(&draft)?)
            })
            .await
    }

    /// Erases a payload and its salt, and records who asked and why. No hash changes.
    ///
    /// # Errors
    /// There is no such payload, or it cannot be recorded.
    pub async fn erase(&self, by: Actor, erasure: Erasure) -> Result<u64, LedgerError> {
        let Erasure {
            idx, commitment, ..
        } = erasure;
        let missing = LedgerError::NoPayload { idx, commitment };
        let commands = self.commands().ok_or(missing)?;
        let body = json!({
            "target": idx,
            "erased": commitment.to_string(),
            "reason": erasure.reason,
            "legal_basis": erasure.legal_basis,
            "by": by.id,
        });
        commands
            .change(move |change| {
                let stream = stream_of(change, idx)?;
                match change.erase(idx, commitment)? {
                    Erasing::Erased => {}
                    Erasing::NotHeld => return Err(LedgerError::NoPayload { idx, commitment }),
                    Erasing::NotEnded(state) => return Err(LedgerError::NotEnded(state)),
                }
                wayhold_store::failpoint!("commands.erasure-before-record");
                let draft = Draft::new(stream, "redaction.applied", &by, &Trace::default(), &body)?;
                let idx = change.append(&draft)?;
                wayhold_store::failpoint!("commands.erasure-recorded");
                Ok(idx)
            })
            .await
    }

    /// Removes records and payloads that are older than `keep`, in small steps, each of them recorded. How many.
    ///
    /// # Errors
    /// The file takes no change.
    pub async fn retain(&self, keep: Duration, clock: &dyn Clock) -> Result<u64, LedgerError> {
        let Some(commands) = self.commands() else {
            return Ok(0);
        };
        let before = clock.now().before(keep);
        let reader = commands.clone();
        let (end, keys) = blocking(move || {
            reader
                .read(|view| Ok::<_, CommandsError>((view.removable(before)?, view.ledger_keys()?)))
        })
        .await??;
        let keys: Vec<String> = keys
            .into_iter()
            .filter(|key| !key.is_retired)
            .map(|key| key.verifier)
            .collect();
        let mut removed = 0;
        loop {
            let keys = keys.clone();
            let step = commands.change(move |change| {
                let step = change.remove_records(end)?;
                if let Some(step) = step {
                    wayhold_store::failpoint!("commands.retention-before-record");
                    let body =
                        json!({ "first": step.first, "before": before.to_string(), "keys": keys });
                    append(change, RETENTION_STREAM, "retention.applied", &body)?;
                    wayhold_store::failpoint!("commands.retention-recorded");
                }
                Ok::<_, LedgerError>(step)
            });
            match step.await? {
                Some(step) => removed += step.removed,
                None => return Ok(removed),
            }
        }
    }

    /// The key, made where there is none, and introduced by a record where none has done so.
    async fn key_of(&self, commands: &Commands) -> Result<SigningNoteKey, LedgerError> {
        let mut held = self.key.lock().await;
        if let Some(key) = held.as_ref() {
            return Ok(key.clone());
        }
        let (data, configured) = (self.data.clone(), self.origin.clone());
        let reader = commands.clone();
        let key = blocking(move || -> Result<SigningNoteKey, LedgerError> {
            if let Some(key) = ledger_key::load(&data)? {
                return Ok(key);
            }
            let known = reader.read(|view| view.ledger_keys())?;
            // A ledger has one name for good, whatever key signs it.
            let known = known.last().and_then(|key| key.verifier.split('+').next());
            let (mut seed, mut name) = ([0; 32], [0; 6]);
            getrandom::fill(&mut seed).map_err(|error| LedgerError::Random(error.into()))?;
            getrandom::fill(&mut name).map_err(|error| LedgerError::Random(error.into()))?;
            let random = || format!("wayhold.{}", hex(&name));
            let origin = known
                .map(str::to_owned)
                .or(configured)
                .unwrap_or_else(random);
            Ok(ledger_key::make(&data, &origin, &seed)?)
        })
        .await??;
        let verifier = key.public().to_string();
        let stream = format!("key:{}", key.public().id());
        commands
            .change(move |change| introduce(change, &verifier, &stream))
            .await?;
        *held = Some(key.clone());
        Ok(key)
    }
}

/// Records that a key signs from now on, and that those before it do not, unless that is known.
fn introduce(change: &mut Change<'_>, verifier: &str, stream: &str) -> Result<(), LedgerError> {
    let known = change.ledger_keys()?;
    match known.iter().find(|key| key.verifier == verifier) {
        Some(key) if key.is_retired => return Err(LedgerError::Retired(verifier.to_owned())),
        Some(_) => return Ok(()),
        None => {}
    }
    change.add_ledger_key(verifier)?;
    append(
        change,
        stream,
        "key.added",
        &json!({ "verifier": verifier }),
    )?;
    for before in known.iter().filter(|key| !key.is_retired) {
        change.retire_ledger_key(&before.verifier)?;
        let body = json!({ "verifier": before.verifier });
        let id = before.verifier.split('+').nth(1).unwrap_or_default();
        append(change, &format!("key:{id}"), "key.retired", &body)?;
    }
    Ok(())
}

fn append(
    change: &mut Change<'_>,
    stream: &str,
    kind: &'static str,
    body: &Value,
) -> Result<u64, LedgerError> {
    let (actor, trace) = (Actor::system("ledger"), Trace::default());
    let draft = Draft::new(stream.to_owned(), kind, &actor, &trace, body)?;
    Ok(change.append(&draft)?)
}

/// The stream of a record, so that what is done to it is found beside it.
fn stream_of(change: &Change<'_>, idx: u64) -> Result<String, LedgerError> {
    let record = change
        .records(idx, 1)?
        .into_iter()
        .find(|row| row.idx == idx);
    let record = record.and_then(|row| serde_json::from_slice::<Value>(&row.record).ok());
    let stream = record
        .as_ref()
        .and_then(|record| record.get("stream")?.as_str());
    Ok(stream.unwrap_or("ledger:redaction").to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
