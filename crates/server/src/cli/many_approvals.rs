//! `wayhold approvals approve|reject --all-of POLICY`: many requests of one policy, listed first with their digests, then
//! decided on as they were seen. Each decision is one of its own, with its own record.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use wayhold_model::approval::Digest;

use super::client::Client;
use super::exit::{Exit, Failure};
use super::output::{Output, cell, items};
use super::paging::follow;
use crate::api::approvals::TOGETHER_MAX;

/// What stands for the default of a command's risk where a policy is named.
const DEFAULT: &str = "default";

/// Most requests that are decided on together: more than a person reads at all.
const MANY_MAX: usize = 1_000;

/// Many requests.
#[derive(Debug, clap::Args)]
pub struct Many {
    /// All that wait for people by this policy; "default" for those that no policy matched.
    #[arg(long, value_name = "POLICY")]
    all_of: Option<String>,
    /// Only those of this kind of commands.
    #[arg(long, requires = "all_of")]
    kind: Option<String>,
    /// Only those to this destination.
    #[arg(long, value_name = "NAME", requires = "all_of")]
    destination: Option<String>,
    /// How many you expect; with any other number nothing is done. Without it they are only listed.
    #[arg(long, value_name = "NUMBER", requires_all = ["all_of", "seen"])]
    expect: Option<usize>,
    /// What the list gave, which stands for the digests of all of them; with others nothing is done.
    #[arg(long, value_name = "SHA256", requires = "expect")]
    seen: Option<String>,
}

impl Many {
    /// Lists them, or decides on them.
    ///
    /// # Errors
    /// No server answers or it refuses; they are others than were seen; or not all of them were decided on.
    pub async fn decide(
        &self,
        client: &mut Client,
        verb: &str,
        comment: Option<&str>,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let waiting = follow(client, "/v1/approvals", &[("state", "pending")], usize::MAX).await?;
        let mut meant: Vec<_> = waiting
            .items
            .into_iter()
            .filter(|one| self.means(one))
            .collect();
        meant.sort_by_key(|one| cell(one, "id"));
        if meant.len() > MANY_MAX {
            let message = format!(
                "{} requests are meant; at most {MANY_MAX} are decided on together",
                meant.len()
            );
            return Err(Failure::usage(message));
        }
        let seen = stands_for(&meant);
        match (self.expect, &self.seen) {
            (Some(expect), Some(was)) if expect == meant.len() && *was == seen => {
                self.decide_on(client, verb, (&meant, comment), output)
                    .await
            }
            (Some(_), _) => Err(Failure::usage(
                "nothing was done: they are not those that you saw; look at the list again",
            )),
            (None, _) => list(&meant, &seen, output),
        }
    }

    fn means(&self, request: &Value) -> bool {
        let is = |name: &str, wanted: Option<&str>| {
            wanted.is_none_or(|wanted| request.get(name).and_then(Value::as_str) == Some(wanted))
        };
        let policy = self.policy();
        request.get("policy").and_then(Value::as_str) == policy
            && is("kind", self.kind.as_deref())
            && is("destination", self.destination.as_deref())
    }

    fn policy(&self) -> Option<&str> {
        self.all_of.as_deref().filter(|policy| *policy != DEFAULT)
    }

    async fn decide_on(
        &self,
        client: &mut Client,
        verb: &str,
        (meant, comment): (&[Value], Option<&str>),
        output: &mut Output,
    ) -> Result<(), Failure> {
        let mut decided = Vec::new();
        for some in meant.chunks(TOGETHER_MAX) {
            let named = some.iter();
            let named =
                named.map(|one| json!({ "id": cell(one, "id"), "digest": cell(one, "digest") }));
            let body = json!({
                "policy": self.policy(),
                "approvals": named.collect::<Vec<_>>(),
                "comment": comment,
            });
            let answer = client
                .post(&format!("/v1/approvals/{verb}"), Some(&body))
                .await?;
            decided.extend_from_slice(items(&answer));
        }
        output.json(&json!({ "items": decided, "next": null }));
        let (counts, refused) = counted(&decided);
        for (state, count) in &counts {
            output.line(format!("{count} {state}"));
        }
        match refused {
            0 => Ok(()),
            refused => Err(Failure::new(
                Exit::Failed,
                format!(
                    "{refused} were not decided on; why is on record, and --json tells of each"
                ),
            )),
        }
    }
}

/// How many stand where, and how many were refused.
fn counted(decided: &[Value]) -> (Map<String, Value>, usize) {
    let mut counts = Map::new();
    let mut refused = 0;
    for one in decided {
        let state = match one.get("refused") {
            Some(reason) => {
                refused += 1;
                format!("refused: {}", reason.as_str().unwrap_or_default())
            }
            None => cell(one, "state"),
        };
        let before = counts.get(&state).and_then(Value::as_u64).unwrap_or(0);
        counts.insert(state, json!(before + 1));
    }
    (counts, refused)
}

/// Stands for which requests these are, and for the commands that they are about as they are now.
fn stands_for(requests: &[Value]) -> String {
    let mut hash = Sha256::new();
    for request in requests {
        hash.update(cell(request, "id"));
        hash.update(" ");
        hash.update(cell(request, "digest"));
        hash.update("\n");
    }
    Digest(hash.finalize().into()).to_string()
}

/// Shows them. To have asked for something and only listed is no success.
fn list(meant: &[Value], seen: &str, output: &mut Output) -> Result<(), Failure> {
    output.json(&json!({ "items": meant, "count": meant.len(), "seen": seen, "next": null }));
    let fields = [
        "id",
        "kind",
        "amount",
        "destination",
        "approved",
        "due_at",
        "digest",
    ];
    let rows: Vec<_> = meant
        .iter()
        .map(|one| fields.map(|field| cell(one, field)))
        .collect();
    let heading = [
        "ID",
        "KIND",
        "AMOUNT",
        "DESTINATION",
        "APPROVED",
        "DUE",
        "DIGEST",
    ];
    output.table(heading, &rows);
    match meant.len() {
        0 => Ok(()),
        count => Err(Failure::usage(format!(
            "nothing was decided yet; if these are right, repeat it with --expect {count} --seen {seen}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str, policy: Option<&str>, kind: &str, digest: &str) -> Value {
        json!({ "id": id, "policy": policy, "kind": kind, "destination": "erp", "digest": digest })
    }

    fn many(policy: &str, kind: Option<&str>) -> Many {
        Many {
            all_of: Some(policy.to_owned()),
            kind: kind.map(str::to_owned),
            destination: None,
            expect: None,
            seen: None,
        }
    }

    #[test]
    fn requests_of_one_policy_are_meant_and_no_others() {
        let big = request("a1", Some("big"), "refund", "00");
        let plain = request("a2", None, "refund", "00");
        assert!(many("big", None).means(&big) && !many("big", None).means(&plain));
        assert!(many(DEFAULT, None).means(&plain) && !many(DEFAULT, None).means(&big));
        assert!(many("big", Some("refund")).means(&big));
        assert!(!many("big", Some("po_create")).means(&big));
    }

    #[test]
    fn another_request_or_another_digest_is_not_what_was_seen() {
        let one = request("a1", None, "refund", "00");
        let seen = stands_for(std::slice::from_ref(&one));
        for other in [
            vec![],
            vec![request("a1", None, "refund", "01")],
            vec![request("a2", None, "refund", "00")],
            vec![one.clone(), request("a2", None, "refund", "00")],
        ] {
            assert_ne!(stands_for(&other), seen, "{other:?}");
        }
        assert_eq!(stands_for(&[one]), seen);
    }

    #[test]
    fn what_was_refused_is_told_apart() {
        let decided = [
            json!({ "id": "a1", "state": "consumed", "approved": 1 }),
            json!({ "id": "a2", "state": "pending", "refused": "requester" }),
            json!({ "id": "a3", "state": "consumed", "approved": 1 }),
        ];
        let (counts, refused) = counted(&decided);
        assert_eq!(refused, 1);
        assert_eq!(counts["consumed"], json!(2));
        assert_eq!(counts["refused: requester"], json!(1));
    }
}
