//! `wayhold ledger verify`: says of an export whether it is what was signed, and what that does not prove.

use std::path::PathBuf;

use serde_json::json;
use wayhold_model::Timestamp;
use wayhold_model::ledger::examine::Finding;
use wayhold_model::ledger::note::{Algorithm, VerifierKey};

use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::command::verify::{Trusted, Verified, verify};

/// Check an export of a ledger: 0 where it is what was signed, 1 with the first bad record or what is
/// missing. Needs no server and looks at nothing but what it is given.
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    /// The directory of the export.
    dir: PathBuf,
    /// A checkpoint of the same ledger that was kept elsewhere: shows that nothing was cut off since, and that
    /// the history is the same.
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// A public key that you know to be the ledger's, instead of those that the export brings; may be
    /// repeated.
    #[arg(long, value_name = "KEY")]
    key: Vec<String>,
    /// The public key of a witness (C2SP tlog-cosignature) that must have cosigned the checkpoint from elsewhere, or the
    /// export's where none is given; may be repeated.
    #[arg(long, value_name = "KEY")]
    witness: Vec<String>,
}

impl Verify {
    /// Examines the export and reports.
    ///
    /// # Errors
    /// The export is not what was signed; usage where something that was named is not there.
    pub(super) fn run(self, output: &mut Output) -> Result<(), Failure> {
        if !self.dir.is_dir() {
            let words = format!(
                "{}: expected the directory of an export",
                self.dir.display()
            );
            return Err(Failure::usage(words));
        }
        match verify(&self.dir, &self.trusted()?) {
            Ok(verified) => {
                report(&verified, output);
                Ok(())
            }
            Err(finding) => Err(refuse(&finding, output)),
        }
    }

    fn trusted(&self) -> Result<Trusted, Failure> {
        let read = |flag: &str, texts: &[String]| {
            let keys = texts.iter().map(|text| {
                let key = text.parse::<VerifierKey>();
                key.map_err(|error| Failure::usage(format!("{flag} {text}: {error}")))
            });
            keys.collect::<Result<Vec<_>, _>>()
        };
        let witnesses = read("--witness", &self.witness)?;
        if let Some(other) = witnesses
            .iter()
            .find(|key| key.algorithm() != Algorithm::Cosignature)
        {
            let words = format!(
                "--witness {other}: expected a key that cosigns, whose bytes begin with 04"
            );
            return Err(Failure::usage(words));
        }
        let checkpoint = self.checkpoint.as_ref().map(|path| {
            std::fs::read(path).map_err(|error| {
                Failure::usage(format!("--checkpoint {}: {error}", path.display()))
            })
        });
        Ok(Trusted {
            keys: read("--key", &self.key)?,
            checkpoint: checkpoint.transpose()?,
            witnesses,
        })
    }
}

fn report(verified: &Verified, output: &mut Output) {
    let not_proven = verified.not_proven();
    output.json(&json!({
        "ok": true,
        "problem": null,
        "record": null,
        "origin": verified.origin,
        "size": verified.size,
        "root": verified.root.to_string(),
        "key": verified.key,
        "first": verified.first,
        "payloads": verified.payloads,
        "erased": verified.erased,
        "outside_size": verified.outside,
        "witnesses": verified.witnessed.iter().map(|(name, at)| json!({ "name": name, "at": at })).collect::<Vec<_>>(),
        "not_proven": not_proven,
    }));
    output.line("ok");
    let held = verified.size - verified.first;
    output.line(format!(
        "{held} records of {} are those that {} signed, in that order; {} payloads are those that they name",
        verified.origin, verified.key, verified.payloads
    ));
    if let Some(size) = verified.outside {
        output.line(format!(
            "they continue the {size} records of the checkpoint from outside"
        ));
    }
    for (name, at) in &verified.witnessed {
        let at = Timestamp::from_micros(at.saturating_mul(1_000_000));
        output.line(format!(
            "{name} saw the checkpoint at {at}, and that it continues those that it saw before"
        ));
    }
    output.line("not proven:");
    for words in not_proven {
        output.line(format!("- {words}"));
    }
}

fn refuse(finding: &Finding, output: &mut Output) -> Failure {
    let problem = finding.problem.name();
    output.json(&json!({
        "ok": false,
        "problem": problem,
        "record": finding.record,
        "detail": finding.detail,
    }));
    let record = finding
        .record
        .map_or_else(|| "-".to_owned(), |record| record.to_string());
    output.line(format!("bad {problem} {record}"));
    Failure::new(Exit::Failed, finding.to_string())
}
