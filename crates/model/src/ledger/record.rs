//! One record: who did what to which command, destination, policy or key, and when. Everything that
//! does not depend on the record's place is written down when the draft is made, so that the ledger's
//! one writer only puts numbers between two texts and hashes the whole.

use serde_json::Value;

use super::canonical::{self, NotCanonical, write_integer, write_text};
use super::hash::Hash;
use crate::time::Timestamp;

/// Version of the record's format, its field `v`.
pub const RECORD_VERSION: u64 = 1;

/// Most bytes of a record: bundles of entries count them in two bytes.
pub const RECORD_BYTES_MAX: usize = 65_535;

/// What place and time add to a draft, at most: three numbers of 20 digits, a hash, a time and
/// their names.
const PLACE_BYTES_MAX: usize = 256;

/// What kind of being acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActorKind {
    /// A human.
    Person,
    /// A program with a token of its own.
    Service,
    /// A language model.
    Model,
    /// A configured rule.
    Rule,
    /// Wayhold itself.
    System,
}

impl ActorKind {
    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Service => "service",
            Self::Model => "model",
            Self::Rule => "rule",
            Self::System => "system",
        }
    }
}

/// Who acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// What kind of being.
    pub kind: ActorKind,
    /// Its name.
    pub id: String,
    /// For whom it acts, where that is somebody else.
    pub on_behalf_of: Option<String>,
    /// How it showed who it is; `None` for what is inside the process.
    pub auth: Option<Auth>,
}

/// How an actor showed who it is. Never a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// `token`, `local` and the like.
    pub method: String,
    /// The public prefix of a token.
    pub key_id: Option<String>,
}

impl Actor {
    /// Wayhold's own part of that name.
    pub fn system(part: &str) -> Self {
        Self {
            kind: ActorKind::System,
            id: part.to_owned(),
            on_behalf_of: None,
            auth: None,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        if let Some(auth) = &self.auth {
            out.extend_from_slice(b"\"auth\":{");
            if let Some(key_id) = &auth.key_id {
                write_field(out, "key_id", key_id);
                out.push(b',');
            }
            write_field(out, "method", &auth.method);
            out.extend_from_slice(b"},");
        }
        write_field(out, "id", &self.id);
        out.push(b',');
        if let Some(principal) = &self.on_behalf_of {
            write_field(out, "on_behalf_of", principal);
            out.push(b',');
        }
        write_field(out, "type", self.kind.name());
        out.push(b'}');
    }
}

/// What a record belongs to beyond its stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// What all records of one case share.
    pub correlation_id: Option<String>,
    /// Id of the event or command that caused this.
    pub causation_id: Option<String>,
    /// W3C trace context of the request.
    pub traceparent: Option<String>,
}

impl Trace {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        let fields = [
            ("causation_id", &self.causation_id),
            ("correlation_id", &self.correlation_id),
            ("traceparent", &self.traceparent),
        ];
        let mut first = true;
        for (name, value) in fields {
            if let Some(value) = value {
                if !first {
                    out.push(b',');
                }
                first = false;
                write_field(out, name, value);
            }
        }
        out.push(b'}');
    }
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &str) {
    write_text(out, name);
    out.push(b':');
    write_text(out, value);
}

/// A record that has no place yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    stream: String,
    kind: &'static str,
    /// The record up to its `idx`.
    head: Vec<u8>,
    /// From the name of its `stream` to the start of its `ts`.
    middle: Vec<u8>,
}

/// Where a record comes to lie, given by the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position in the tree, from 0 and without gaps.
    pub idx: u64,
    /// Position in its stream, from 0 and without gaps.
    pub sseq: u64,
    /// Leaf hash of the stream's record before, [`Hash::ZERO`] for the first.
    pub prev: Hash,
    /// When it was written.
    pub ts: Timestamp,
}

impl Draft {
    /// A record of type `kind` (such as `command.accepted`) in a stream (`cmd:<id>`, `dest:<name>`, `policy:<id>`,
    /// `key:<id>`), by `actor`. The body holds digests and commitments, never bulky payloads.
    ///
    /// # Errors
    ///
    /// A body with a number that is no integer below 2^53 in size; more than [`RECORD_BYTES_MAX`].
    pub fn new(
        stream: String,
        kind: &'static str,
        actor: &Actor,
        trace: &Trace,
        body: &Value,
    ) -> Result<Self, NotCanonical> {
        let mut head = Vec::with_capacity(1_024);
        head.extend_from_slice(b"{\"actor\":");
        actor.write(&mut head);
        head.extend_from_slice(b",\"body\":");
        canonical::write(&mut head, body)?;
        head.extend_from_slice(b",\"clock\":{\"source\":\"system\"},\"idx\":");
        let mut middle = Vec::with_capacity(256);
        write_field(&mut middle, "stream", &stream);
        middle.extend_from_slice(b",\"tenant\":0,\"trace\":");
        trace.write(&mut middle);
        middle.extend_from_slice(b",\"ts\":\"");
        let bytes = head.len() + middle.len() + kind.len() + PLACE_BYTES_MAX;
        if bytes > RECORD_BYTES_MAX {
            let max = RECORD_BYTES_MAX;
            return Err(NotCanonical::Long { bytes, max });
        }
        Ok(Self {
            stream,
            kind,
            head,
            middle,
        })
    }

    /// The stream that it belongs to.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// Its type.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The whole record in canonical form, and its leaf hash.
    pub fn seal(&self, place: &Place) -> (Vec<u8>, Hash) {
        let mut out = Vec::with_capacity(self.head.len() + self.middle.len() + PLACE_BYTES_MAX);
        out.extend_from_slice(&self.head);
        write_integer(&mut out, place.idx);
        out.extend_from_slice(b",\"prev\":\"");
        out.extend_from_slice(place.prev.to_string().as_bytes());
        out.extend_from_slice(b"\",\"sseq\":");
        write_integer(&mut out, place.sseq);
        out.push(b',');
        out.extend_from_slice(&self.middle);
        out.extend_from_slice(place.ts.to_string().as_bytes());
        out.extend_from_slice(b"\",");
        write_field(&mut out, "type", self.kind);
        out.extend_from_slice(b",\"v\":");
        write_integer(&mut out, RECORD_VERSION);
        out.push(b'}');
        let leaf = Hash::of_leaf(&out);
        (out, leaf)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ledger::{Frontier, canonical};

    /// Three published records, each with its leaf hash; and the root over them.
    const PUBLISHED: [(&str, &str); 3] = [
        (
            r#"{"actor":{"id":"replenish.v3","type":"rule"},"body":{"args_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","command_id":"01J00000000000000000000001","kind":"purchase_order.create"},"idx":0,"prev":"0000000000000000000000000000000000000000000000000000000000000000","sseq":0,"stream":"cmd:01J00000000000000000000001","ts":"2026-07-28T00:00:00.000000Z","type":"command.accepted","v":1}"#,
            "0113832cc5885490b40bda1f936ed0dd5502b12c4cfb7547529c77b487eaf023",
        ),
        (
            r#"{"actor":{"id":"policy","type":"system"},"body":{"approval_id":"apr_1","bound_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","reason":"库存不足 > 500"},"idx":1,"prev":"0113832cc5885490b40bda1f936ed0dd5502b12c4cfb7547529c77b487eaf023","sseq":1,"stream":"cmd:01J00000000000000000000001","ts":"2026-07-28T00:00:01.000000Z","type":"approval.requested","v":1}"#,
            "b2d173875a6481a5ad1bddfd6e7fc0f0f585d52950c570b998852c1431fcc346",
        ),
        (
            r#"{"actor":{"id":"u_42","type":"user"},"body":{"approval_id":"apr_1"},"idx":2,"prev":"b2d173875a6481a5ad1bddfd6e7fc0f0f585d52950c570b998852c1431fcc346","sseq":2,"stream":"cmd:01J00000000000000000000001","ts":"2026-07-28T00:00:02.000000Z","type":"approval.granted","v":1}"#,
            "666a775f8b2a6517e57a2658fde26a2a1b8ca8257fb4762581862c9711ea6c93",
        ),
    ];

    #[test]
    fn the_published_records_are_canonical_and_have_the_published_hashes() {
        let mut tree = Frontier::new();
        for (record, leaf) in PUBLISHED {
            canonical::read(record.as_bytes()).unwrap();
            let hash = Hash::of_leaf(record.as_bytes());
            assert_eq!(hash.to_string(), leaf);
            tree.push(hash);
        }
        assert_eq!(
            tree.root().to_string(),
            "c4cb4867a1a214f253c95b76ff12e92a3c5055e7b6b95eef532786eaaf79298d"
        );
    }

    #[test]
    fn a_sealed_record_is_the_canonical_form_of_all_its_fields() {
        let actor = Actor {
            kind: ActorKind::Model,
            id: "assistant \"one\"".into(),
            on_behalf_of: Some("planner".into()),
            auth: Some(Auth {
                method: "token".into(),
                key_id: Some("wh_ab".into()),
            }),
        };
        let trace = Trace {
            correlation_id: Some("case-7".into()),
            causation_id: None,
            traceparent: Some("00-11".into()),
        };
        let body = json!({"z": 1, "a": {"text": "库\n"}});
        let draft = Draft::new("cmd:1".into(), "command.accepted", &actor, &trace, &body).unwrap();
        let place = Place {
            idx: 12,
            sseq: 3,
            prev: Hash::of(b"x"),
            ts: Timestamp::from_micros(1),
        };
        let (bytes, leaf) = draft.seal(&place);
        let record = canonical::read(&bytes).unwrap();
        assert_eq!(
            record,
            json!({
                "actor": {
                    "auth": {"key_id": "wh_ab", "method": "token"},
                    "id": "assistant \"one\"", "on_behalf_of": "planner", "type": "model"
                },
                "body": body, "clock": {"source": "system"}, "idx": 12,
                "prev": Hash::of(b"x").to_string(), "sseq": 3, "stream": "cmd:1", "tenant": 0,
                "trace": {"correlation_id": "case-7", "traceparent": "00-11"},
                "ts": "1970-01-01T00:00:00.000001Z", "type": "command.accepted", "v": 1
            })
        );
        assert_eq!(leaf, Hash::of_leaf(&bytes));
    }

    #[test]
    fn the_least_and_the_longest_record_fit_and_a_longer_one_is_refused() {
        let draft = |length: usize| {
            let body = json!({"text": "x".repeat(length)});
            let (actor, trace) = (Actor::system("ledger"), Trace::default());
            Draft::new("key:1".into(), "key.added", &actor, &trace, &body)
        };
        let place = Place {
            idx: u64::MAX,
            sseq: u64::MAX,
            prev: Hash::ZERO,
            ts: Timestamp::from_micros(u64::MAX),
        };
        let longest = (0..RECORD_BYTES_MAX)
            .rev()
            .find_map(|length| draft(length).ok())
            .unwrap();
        assert!(longest.seal(&place).0.len() <= RECORD_BYTES_MAX);
        assert!(matches!(
            draft(RECORD_BYTES_MAX),
            Err(NotCanonical::Long { .. })
        ));
        let least = draft(0)
            .unwrap()
            .seal(&Place {
                idx: 0,
                sseq: 0,
                ..place
            })
            .0;
        canonical::read(&least).unwrap();
    }

    #[test]
    fn a_body_with_a_fraction_is_refused() {
        let (actor, trace) = (Actor::system("ledger"), Trace::default());
        let body = json!({"amount": 1.5});
        let refused = Draft::new("cmd:1".into(), "command.accepted", &actor, &trace, &body);
        assert_eq!(refused, Err(NotCanonical::Number("1.5".into())));
    }
}
