//! What somebody proposes: read from JSON, every field known, everything bounded.

use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;
use wayhold_model::Timestamp;
use wayhold_model::command::CommandId;
use wayhold_model::ledger::canonical;

/// Largest arguments, in bytes of canonical JSON: they are an event's data and are read with every look at the command.
pub const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;

/// Largest input, in bytes: a transcript, kept beside the ledger.
pub const INPUT_BYTES_MAX: usize = 256 * 1024;

/// Longest summary of a rationale, in characters: it stands in the record itself.
pub const SUMMARY_CHARS_MAX: usize = 2_000;

/// Most references of one kind: evidence, events, commands that must come first.
pub const REFERENCES_MAX: usize = 64;

/// Longest reference or name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// Largest account of the model, in bytes of JSON: names, versions and digests.
pub const MODEL_BYTES_MAX: usize = 8 * 1024;

/// A proposal that makes no sense as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {expected}")]
pub struct InvalidProposal {
    /// The field.
    pub field: String,
    /// What was expected of it.
    pub expected: String,
}

impl InvalidProposal {
    /// A field, and what was expected of it.
    pub fn new(field: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            expected: expected.into(),
        }
    }
}

/// An event that gave the occasion.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRef {
    /// Its source.
    pub source: String,
    /// Its id.
    pub id: String,
}

/// What gave the occasion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// Events.
    #[serde(default)]
    pub events: Vec<EventRef>,
}

/// Why it is proposed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Rationale {
    /// In a few words.
    Summary(String),
    /// With what it rests on.
    Whole {
        /// In a few words.
        summary: String,
        /// What it rests on.
        #[serde(default)]
        evidence: Vec<String>,
    },
}

impl Rationale {
    /// In a few words.
    pub fn summary(&self) -> &str {
        match self {
            Self::Summary(summary) | Self::Whole { summary, .. } => summary,
        }
    }

    /// What it rests on.
    pub fn evidence(&self) -> &[String] {
        match self {
            Self::Summary(_) => &[],
            Self::Whole { evidence, .. } => evidence,
        }
    }
}

/// What the proposer went by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The text itself; kept where it can be erased.
    Held(Vec<u8>),
    /// Its SHA-256 alone: whoever has it can show that it is the one.
    NotHeld(String),
}

/// A command as somebody wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Its id, where it follows from what gave the occasion; drawn otherwise.
    pub id: Option<CommandId>,
    /// Its kind.
    pub kind: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// For whom it is proposed.
    pub on_behalf_of: Option<String>,
    /// What gave the occasion.
    pub trigger: Trigger,
    /// What the proposer went by.
    pub input: Option<Input>,
    /// The model that thought of it: names, versions, digests.
    pub model: Option<Map<String, Value>>,
    /// Why it is proposed.
    pub rationale: Option<Rationale>,
    /// Not sent for the first time after this.
    pub expires_at: Option<Timestamp>,
    /// Commands that must have succeeded before.
    pub depends_on: Vec<CommandId>,
    /// What all records of one case share.
    pub correlation_id: Option<String>,
    /// The command that it makes up for.
    pub compensates: Option<CommandId>,
    /// The command that it does again.
    pub replays: Option<CommandId>,
}

/// The fields of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    kind: String,
    on_behalf_of: Option<String>,
    #[serde(default)]
    trigger: Trigger,
    input: Option<Value>,
    model: Option<Map<String, Value>>,
    rationale: Option<Rationale>,
    expires_at: Option<String>,
    #[serde(default)]
    depends_on: Vec<String>,
    correlation_id: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

impl Proposal {
    /// A command of a kind with its arguments, and nothing else said.
    pub fn of(kind: impl Into<String>, arguments: Map<String, Value>) -> Self {
        Self {
            id: None,
            kind: kind.into(),
            arguments,
            on_behalf_of: None,
            trigger: Trigger::default(),
            input: None,
            model: None,
            rationale: None,
            expires_at: None,
            depends_on: Vec::new(),
            correlation_id: None,
            compensates: None,
            replays: None,
        }
    }

    /// Takes the arguments out of the body of a request: they are most of it, and are read as they are.
    ///
    /// # Errors
    /// They are no JSON object.
    pub fn take_arguments(body: &mut Value) -> Result<Map<String, Value>, InvalidProposal> {
        let arguments = body
            .as_object_mut()
            .and_then(|body| body.remove("arguments"));
        match arguments {
            None => Ok(Map::new()),
            Some(Value::Object(arguments)) => Ok(arguments),
            Some(_) => Err(InvalidProposal::new("arguments", "expected a JSON object")),
        }
    }

    /// Reads the rest of the body, and whether only the verdict is asked for.
    ///
    /// # Errors
    /// Names the field and what was expected.
    pub fn read(
        rest: Value,
        arguments: Map<String, Value>,
    ) -> Result<(Self, bool), InvalidProposal> {
        let fields: Fields = serde_path_to_error::deserialize(rest).map_err(|error| {
            let field = match error.path().iter().next() {
                Some(_) => error.path().to_string(),
                None => "body".to_owned(),
            };
            InvalidProposal::new(field, error.inner().to_string())
        })?;
        let expires_at = fields.expires_at.as_deref().map(read_time).transpose()?;
        let id = |(index, text): (usize, &String)| {
            text.parse::<CommandId>().map_err(|error| {
                InvalidProposal::new(format!("depends_on[{index}]"), error.to_string())
            })
        };
        let mut depends_on = fields
            .depends_on
            .iter()
            .enumerate()
            .map(id)
            .collect::<Result<Vec<_>, _>>()?;
        depends_on.sort_unstable();
        depends_on.dedup();
        let proposal = Self {
            on_behalf_of: fields.on_behalf_of,
            trigger: fields.trigger,
            input: fields.input.map(read_input).transpose()?,
            model: fields.model,
            rationale: fields.rationale,
            expires_at,
            depends_on,
            correlation_id: fields.correlation_id,
            ..Self::of(fields.kind, arguments)
        };
        proposal.check()?;
        Ok((proposal, fields.dry_run))
    }

    /// Whether it keeps every bound.
    fn check(&self) -> Result<(), InvalidProposal> {
        let names = [
            ("on_behalf_of", &self.on_behalf_of),
            ("correlation_id", &self.correlation_id),
        ];
        for (field, name) in names {
            if name.as_ref().is_some_and(|name| !is_name(name)) {
                return Err(InvalidProposal::new(field, name_expected()));
            }
        }
        let evidence = self.rationale.as_ref().map_or(&[][..], Rationale::evidence);
        let counts = [
            ("trigger.events", self.trigger.events.len()),
            ("depends_on", self.depends_on.len()),
            ("rationale.evidence", evidence.len()),
        ];
        for (field, count) in counts {
            if count > REFERENCES_MAX {
                let expected = format!("expected at most {REFERENCES_MAX}, not {count}");
                return Err(InvalidProposal::new(field, expected));
            }
        }
        for (index, event) in self.trigger.events.iter().enumerate() {
            if !is_name(&event.source) || !is_name(&event.id) {
                let field = format!("trigger.events[{index}]");
                return Err(InvalidProposal::new(field, name_expected()));
            }
        }
        for (index, reference) in evidence.iter().enumerate() {
            if !is_name(reference) {
                let field = format!("rationale.evidence[{index}]");
                return Err(InvalidProposal::new(field, name_expected()));
            }
        }
        if let Some(rationale) = &self.rationale
            && rationale.summary().chars().count() > SUMMARY_CHARS_MAX
        {
            let expected = format!("expected at most {SUMMARY_CHARS_MAX} characters");
            return Err(InvalidProposal::new("rationale.summary", expected));
        }
        if let Some(model) = &self.model {
            let said = canonical::to_vec(&Value::Object(model.clone()))
                .map_err(|error| InvalidProposal::new("model", error.to_string()))?;
            if said.len() > MODEL_BYTES_MAX {
                let expected = format!("expected at most {MODEL_BYTES_MAX} bytes");
                return Err(InvalidProposal::new("model", expected));
            }
        }
        Ok(())
    }

    /// What the model calls itself, for policies; empty where nobody said.
    pub fn model_name(&self) -> &str {
        let said = |name: &str| self.model.as_ref()?.get(name)?.as_str();
        said("returned")
            .or_else(|| said("requested"))
            .unwrap_or_default()
    }
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn name_expected() -> String {
    format!("expected 1 to {NAME_BYTES_MAX} bytes without control characters")
}

/// An RFC 3339 time.
pub(super) fn read_time(text: &str) -> Result<Timestamp, InvalidProposal> {
    let expected = || InvalidProposal::new("expires_at", "expected an RFC 3339 time");
    let time: jiff::Timestamp = text.parse().map_err(|_| expected())?;
    let micros = u64::try_from(time.as_microsecond()).map_err(|_| expected())?;
    Ok(Timestamp::from_micros(micros))
}

/// A text as it is, `{"sha256": ...}` for one that is not held here, and anything else as its canonical JSON.
fn read_input(input: Value) -> Result<Input, InvalidProposal> {
    let bytes = match input {
        Value::String(text) => text.into_bytes(),
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("sha256") => {
            let digest = fields.get("sha256").and_then(Value::as_str);
            let is_digest = |text: &&str| {
                text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            };
            let digest = digest.filter(is_digest).ok_or_else(|| {
                InvalidProposal::new("input.sha256", "expected 64 lower-case hexadecimal digits")
            })?;
            return Ok(Input::NotHeld(digest.to_owned()));
        }
        other => canonical::of_foreign(&other)
            .map_err(|error| InvalidProposal::new("input", error.to_string()))?,
    };
    if bytes.len() > INPUT_BYTES_MAX {
        let expected = format!(
            "expected at most {INPUT_BYTES_MAX} bytes; keep it elsewhere and give {{\"sha256\": ...}}"
        );
        return Err(InvalidProposal::new("input", expected));
    }
    Ok(Input::Held(bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(mut body: Value) -> Result<(Proposal, bool), InvalidProposal> {
        let arguments = Proposal::take_arguments(&mut body)?;
        Proposal::read(body, arguments)
    }

    #[test]
    fn every_field_is_read_and_what_is_not_said_is_empty() {
        let id = CommandId::from_bytes([7; 16]).to_string();
        let (proposal, dry_run) = read(json!({
            "kind": "po_create", "arguments": {"sku": "1", "amount": 12.5}, "on_behalf_of": "planner",
            "trigger": {"events": [{"source": "/shop", "id": "e1"}]}, "input": "stock is 0",
            "model": {"provider": "x", "requested": "m-1", "usage": {"input_tokens": 12}},
            "rationale": {"summary": "out of stock", "evidence": ["/shop#e1"]},
            "expires_at": "2026-12-01T00:00:00Z", "depends_on": [id, id], "correlation_id": "case-1", "dry_run": true,
        }))
        .unwrap();
        assert!(dry_run);
        assert_eq!(proposal.input, Some(Input::Held(b"stock is 0".to_vec())));
        assert_eq!(proposal.depends_on.len(), 1);
        assert_eq!(proposal.model_name(), "m-1");
        assert_eq!(
            proposal.expires_at.unwrap().to_string(),
            "2026-12-01T00:00:00.000000Z"
        );
        let (least, dry_run) = read(json!({"kind": "k"})).unwrap();
        assert_eq!((least, dry_run), (Proposal::of("k", Map::new()), false));
        let (short, _) =
            read(json!({"kind": "k", "rationale": "since", "input": {"a": 1}})).unwrap();
        assert_eq!(short.rationale.unwrap().summary(), "since");
        assert_eq!(short.input, Some(Input::Held(br#"{"a":1}"#.to_vec())));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let many: Vec<_> = (0..=REFERENCES_MAX).map(|n| n.to_string()).collect();
        for (body, field) in [
            (json!([]), "body"),
            (json!({}), "body"),
            (json!({"kind": 7}), "kind"),
            (json!({"kind": "k", "arguments": []}), "arguments"),
            (json!({"kind": "k", "colour": 1}), "colour"),
            (json!({"kind": "k", "on_behalf_of": ""}), "on_behalf_of"),
            (
                json!({"kind": "k", "correlation_id": long}),
                "correlation_id",
            ),
            (json!({"kind": "k", "expires_at": "soon"}), "expires_at"),
            (
                json!({"kind": "k", "depends_on": ["po-1"]}),
                "depends_on[0]",
            ),
            (
                json!({"kind": "k", "input": {"sha256": "AB"}}),
                "input.sha256",
            ),
            (
                json!({"kind": "k", "input": "x".repeat(INPUT_BYTES_MAX + 1)}),
                "input",
            ),
            (
                json!({"kind": "k", "rationale": "y".repeat(2_001)}),
                "rationale.summary",
            ),
            (
                json!({"kind": "k", "rationale": {"summary": "", "evidence": many}}),
                "rationale.evidence",
            ),
            (json!({"kind": "k", "model": {"temperature": 0.7}}), "model"),
            (
                json!({"kind": "k", "trigger": {"events": [{"source": "/s", "id": ""}]}}),
                "trigger.events[0]",
            ),
        ] {
            let refused = read(body.clone()).unwrap_err();
            assert_eq!(refused.field, field, "{body}: {refused}");
        }
    }
}
