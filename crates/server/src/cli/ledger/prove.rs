//! `wayhold ledger prove`: proofs of a running server's ledger, checked here before they are believed, for whoever keeps
//! checkpoints and needs no export.

use std::path::PathBuf;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use wayhold_model::ledger::note::{Note, VerifierKey};
use wayhold_model::ledger::proof::check_consistency;
use wayhold_model::ledger::tlog_proof::TlogProof;
use wayhold_model::ledger::{Checkpoint, Hash, canonical};

use crate::cli::client::{Client, ServerArguments, refusal};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{Output, items};

/// Prove that a record is in the ledger as the newest checkpoint signs it, or that the ledger continues a checkpoint that
/// was kept elsewhere. The proof is checked here; that of a record is printed, to be kept.
#[derive(Debug, clap::Args)]
pub(super) struct Prove {
    #[command(flatten)]
    server: ServerArguments,
    /// The place of a record.
    #[arg(required_unless_present = "since", conflicts_with = "since")]
    idx: Option<u64>,
    /// A checkpoint that was kept elsewhere.
    #[arg(long, value_name = "FILE")]
    since: Option<PathBuf>,
    /// A public key that you know to be the ledger's, instead of those that the server names; may be repeated.
    #[arg(long, value_name = "KEY")]
    key: Vec<String>,
}

impl Prove {
    /// Asks the server, and checks what it says.
    ///
    /// # Errors
    /// When no server answers, it refuses, or what it says proves nothing.
    pub(super) async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut client = Client::new(&self.server)?;
        let keys = self.keys(&mut client).await?;
        match (&self.since, self.idx) {
            (Some(since), _) => {
                let kept = std::fs::read_to_string(since).map_err(|error| {
                    Failure::usage(format!("--since {}: {error}", since.display()))
                })?;
                continues(&mut client, &kept, &keys, output).await
            }
            (None, idx) => contains(&mut client, idx.unwrap_or(0), &keys, output).await,
        }
    }

    async fn keys(&self, client: &mut Client) -> Result<Vec<VerifierKey>, Failure> {
        let named = match self.key.is_empty() {
            false => self.key.clone(),
            true => {
                let answer = client.get("/v1/ledger/keys").await?;
                let verifier = |key: &Value| key.get("verifier")?.as_str().map(str::to_owned);
                items(&answer).iter().filter_map(verifier).collect()
            }
        };
        let read = |text: &String| {
            let key = text.parse::<VerifierKey>();
            key.map_err(|error| Failure::usage(format!("--key {text}: {error}")))
        };
        named.iter().map(read).collect()
    }
}

/// A record is in the tree of the newest checkpoint.
async fn contains(
    client: &mut Client,
    idx: u64,
    keys: &[VerifierKey],
    output: &mut Output,
) -> Result<(), Failure> {
    let shown = client.get(&format!("/v1/ledger/{idx}")).await?;
    let record = shown.get("record").unwrap_or(&Value::Null);
    let record = canonical::to_vec(record).map_err(|error| unproven(&error))?;
    let text = text(client, &format!("/v1/ledger/{idx}/proof")).await?;
    let proof: TlogProof = text.parse().map_err(|error| unproven(&error))?;
    if proof.index != idx {
        return Err(unproven(&format!("it is of record {}", proof.index)));
    }
    let checkpoint = proof.check(&record, keys);
    let checkpoint = checkpoint.map_err(|error| unproven(&error))?;
    output.json(&json!({ "idx": idx, "size": checkpoint.head.size, "proof": text }));
    text.lines().for_each(|line| output.line(line));
    output.note(format!(
        "record {idx} is one of the {} that {} signed",
        checkpoint.head.size, checkpoint.origin
    ));
    Ok(())
}

/// The tree of the newest checkpoint begins with that of an older one.
async fn continues(
    client: &mut Client,
    kept: &str,
    keys: &[VerifierKey],
    output: &mut Output,
) -> Result<(), Failure> {
    let old = opened(kept, keys).map_err(|why| Failure::usage(format!("--since: {why}")))?;
    let newest = text(client, "/v1/ledger/checkpoint").await?;
    let new = opened(&newest, keys).map_err(|why| unproven(&why))?;
    let (from, to) = (old.head.size, new.head.size);
    if from > to {
        let words = format!(
            "the server's newest checkpoint covers {to} records, and this one {from}: some were cut off"
        );
        return Err(Failure::new(Exit::Failed, words));
    }
    let asked = format!("/v1/ledger/consistency?old={from}&new={to}");
    let path = match from {
        // Every tree continues the empty one.
        0 => Vec::new(),
        _ => hashes(&client.get(&asked).await?).ok_or_else(|| unproven(&"no hashes came"))?,
    };
    if from > 0 {
        check_consistency(old.head, new.head, &path).map_err(|error| unproven(&error))?;
    }
    output.json(&json!({ "old": from, "new": to, "hashes": path.iter().map(|hash| hash.to_base64()).collect::<Vec<_>>() }));
    output.line(format!(
        "the {to} records of {} continue the {from} of the checkpoint that was kept",
        new.origin
    ));
    Ok(())
}

fn opened(text: &str, keys: &[VerifierKey]) -> Result<Checkpoint, String> {
    let note: Note = text
        .parse()
        .map_err(|error: wayhold_model::ledger::note::InvalidNote| error.to_string())?;
    let opened = Checkpoint::open(&note, keys).map_err(|error| error.to_string());
    opened.map(|(checkpoint, _)| checkpoint)
}

fn hashes(answer: &Value) -> Option<Vec<Hash>> {
    let hashes = answer.get("hashes")?.as_array()?.iter();
    hashes
        .map(|hash| Hash::from_base64(hash.as_str()?).ok())
        .collect()
}

/// A text of the server's.
async fn text(client: &mut Client, path: &str) -> Result<String, Failure> {
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = path
        .parse()
        .map_err(|_| Failure::usage(format!("cannot ask for {path}: not a path")))?;
    let answer = client.request(request).await?;
    if !answer.status().is_success() {
        return Err(refusal(answer.status(), answer.body()));
    }
    String::from_utf8(answer.into_body().to_vec()).map_err(|error| unproven(&error))
}

fn unproven(why: &dyn std::fmt::Display) -> Failure {
    let words = format!("what the server says is no proof: {why}");
    Failure::new(Exit::Failed, words)
}
