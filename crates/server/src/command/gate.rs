//! The gate that every command goes through: limits first, then policies, and a request for approval where one is
//! needed. What is decided is written in the change that acts upon it, and nothing makes a command ready but a
//! [`Release`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use wayhold_model::Timestamp;
use wayhold_model::approval::{
    Beyond, Binding, DESTINATION_DIGEST, Digest, Facts, Limit, Opened, Policies, Release, Request,
    Requirement, Verdict, Void,
};
use wayhold_model::command::{CommandId, Reversibility, Risk, State};
use wayhold_model::ledger::{Actor, Draft};
use wayhold_store::CommandsError;
use wayhold_store::commands::{
    Change, Command, NewCommand, Payload, RequestRow, Slot, Transition, VerdictRow, View,
};

use super::records::{moved, of_step, record, write};

/// How a command that needs nobody's word becomes ready.
const MADE_READY: Transition<'static> = Transition {
    from: State::Accepted,
    to: State::Ready,
    reason: None,
};

/// What is in force: policies, limits, and what commands are and where they go.
#[derive(Debug)]
pub struct Rulebook {
    /// The policies.
    pub policies: Policies,
    /// What stands for all of them.
    pub policies_digest: Digest,
    /// Limits on what is asked for.
    pub limits: Vec<Limit>,
    /// Whether requests are announced to a destination.
    pub announces: bool,
    /// Risk and reversibility of each kind.
    pub kinds: BTreeMap<String, (Risk, Reversibility)>,
    /// For each destination, what stands for where and how it is reached.
    pub destinations: BTreeMap<String, Digest>,
}

/// The gate; a cheap handle.
#[derive(Clone, Debug)]
pub struct Gate(Arc<ArcSwap<Rulebook>>);

/// A command that was held against limits and policies, before anything was written.
#[derive(Debug)]
pub struct Asked {
    command: CommandId,
    facts: Facts,
    /// What the policies say.
    pub verdict: Verdict,
    opened: Opened,
    /// What is put on record, but for its place in the ledger.
    records: Vec<Draft>,
    /// The record that a new one becomes ready, where it does so at once.
    made_ready: Option<Draft>,
    summary: String,
    book: Arc<Rulebook>,
    now: Timestamp,
}

/// What a command is asked about under.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The command.
    pub command: CommandId,
    /// Its digest.
    pub digest: Digest,
    /// Who may not decide on it beside the principal and whom it acts for: editors.
    pub editors: BTreeSet<String>,
}

impl Gate {
    /// A gate with this rulebook.
    pub fn new(book: Rulebook) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(book)))
    }

    /// Goes by another rulebook from now on. Requests that wait are judged anew before anything is decided on them,
    /// and by [`super::approvals::Approvals::reconsider_all`].
    pub fn follow(&self, book: Rulebook) {
        self.0.store(Arc::new(book));
    }

    /// The rulebook in force.
    pub fn book(&self) -> Arc<Rulebook> {
        self.0.load_full()
    }

    /// Holds a command against what is in force. Nothing is written yet.
    ///
    /// # Errors
    /// No id can be drawn for a request.
    pub fn ask(
        &self,
        facts: Facts,
        subject: Subject,
        now: Timestamp,
    ) -> Result<Asked, CommandsError> {
        let book = self.book();
        let verdict = book.policies.evaluate(&facts);
        Asked::new(book, facts, subject, verdict, now)
    }
}

impl Rulebook {
    /// What stands for all of it that requests rest on.
    pub fn digest(&self) -> Digest {
        let destinations = self.destinations.iter();
        let destinations = destinations.map(|(name, digest)| json!([name, digest.to_string()]));
        let kinds = self.kinds.iter();
        let kinds = kinds
            .map(|(name, (risk, reversibility))| json!([name, risk.name(), reversibility.name()]));
        Digest::of_json(&json!({
            "policies": self.policies_digest.to_string(),
            "destinations": destinations.collect::<Vec<_>>(),
            "kinds": kinds.collect::<Vec<_>>(),
        }))
    }

    /// What approvers are shown of a command beside its arguments, as canonical JSON; and what stands for all of it.
    fn presented(&self, facts: &Facts, digest: &Digest) -> (String, Digest) {
        let shown = facts.summary(self.destinations.get(&facts.destination));
        let all = format!(r#"{{"command_sha256":"{digest}","facts":{shown}}}"#);
        (shown, Digest::of(all.as_bytes()))
    }

    /// The limits that a command is beyond, from what was taken so far.
    fn beyond(
        &self,
        view: &View<'_>,
        facts: &Facts,
        now: Timestamp,
    ) -> Result<Option<(String, Beyond)>, CommandsError> {
        for limit in &self.limits {
            let Some(budget) = limit.budget(facts) else {
                continue;
            };
            let used = view.used(Slot {
                limit: &limit.name,
                budget: &budget,
                slice: limit.first_slice(now),
            })?;
            if let Some(beyond) = limit.refuses(used, facts) {
                return Ok(Some((limit.name.clone(), beyond)));
            }
        }
        Ok(None)
    }

    fn charge(
        &self,
        change: &mut Change<'_>,
        command: CommandId,
        facts: &Facts,
        now: Timestamp,
    ) -> Result<(), CommandsError> {
        for limit in &self.limits {
            let Some(budget) = limit.budget(facts) else {
                continue;
            };
            let slot = Slot {
                limit: &limit.name,
                budget: &budget,
                slice: limit.slice(now),
            };
            let amount = Limit::takes(facts).amount;
            change.charge(command, slot, amount, limit.first_slice(now))?;
        }
        Ok(())
    }
}

impl Asked {
    fn new(
        book: Arc<Rulebook>,
        facts: Facts,
        subject: Subject,
        verdict: Verdict,
        now: Timestamp,
    ) -> Result<Self, CommandsError> {
        let (summary, presented) = book.presented(&facts, &subject.digest);
        let mut excluded = subject.editors;
        excluded.insert(facts.principal.id.clone());
        if !facts.on_behalf_of.is_empty() {
            excluded.insert(facts.on_behalf_of.clone());
        }
        let binding = Binding {
            command: subject.command.to_string(),
            bound: subject.digest,
            presented,
            policies: book.policies_digest,
            excluded,
        };
        // Of those that ask nobody there is no request, and no id.
        let id = match &verdict.requirement {
            Requirement::Auto | Requirement::Deny { .. } => String::new(),
            Requirement::Delayed { .. } | Requirement::Approvers(_) => draw_id(now)?,
        };
        let (opened, records) = Request::open(id, &verdict, binding, now);
        let records = records.iter();
        let records = records
            .map(|one| record(subject.command, one.kind, &one.actor, &one.body))
            .collect::<Result<_, _>>()?;
        let made_ready = match &opened {
            Opened::Ready(_) => Some(of_step(subject.command, MADE_READY, &ourselves())),
            Opened::Denied(_) | Opened::Asked(_) => None,
        };
        Ok(Self {
            command: subject.command,
            facts,
            verdict,
            opened,
            records,
            summary,
            made_ready: made_ready.transpose()?,
            book,
            now,
        })
    }

    /// Keeps a new command where it belongs, with the records of it, of which `accepted` is the first and names what is
    /// `held`: denied beyond a limit or by a policy, ready at once, or pending until its request is decided.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn keep(
        &self,
        change: &mut Change<'_>,
        new: &NewCommand,
        (accepted, held): (&Draft, &[Payload]),
    ) -> Result<State, CommandsError> {
        let beyond = self.book.beyond(change, &self.facts, self.now)?;
        if let (None, Opened::Ready(release), Some(made_ready)) =
            (&beyond, &self.opened, &self.made_ready)
            && release.is_for(&new.id.to_string(), &Digest(new.digest))
        {
            // Nothing is between the two states, so the row is written once.
            change.add_command(new, State::Ready, (None, None))?;
            change.append_first(accepted, held)?;
            self.put_on_record(change)?;
            change.append(made_ready)?;
            self.book.charge(change, new.id, &self.facts, self.now)?;
            return Ok(State::Ready);
        }
        change.add_command(new, State::Accepted, (None, None))?;
        change.append_first(accepted, held)?;
        self.settle(change, State::Accepted, beyond)
    }

    /// Takes a command that stands elsewhere, and whose charges were given back, where it belongs.
    pub(super) fn settle_from(
        &self,
        change: &mut Change<'_>,
        from: State,
    ) -> Result<State, CommandsError> {
        let beyond = self.book.beyond(change, &self.facts, self.now)?;
        self.settle(change, from, beyond)
    }

    fn settle(
        &self,
        change: &mut Change<'_>,
        from: State,
        beyond: Option<(String, Beyond)>,
    ) -> Result<State, CommandsError> {
        if let Some((limit, beyond)) = beyond {
            let body = json!({
                "policy": { "sha256": self.book.policies_digest.to_string() },
                "matched_rule": limit,
                "verdict": "deny",
                "reason_codes": ["limit", beyond.code()],
            });
            let by = Actor::system("limits");
            write(change, self.command, "policy.evaluated", &by, &body)?;
            let reason = format!("limit {limit}: {}", beyond.code());
            step(change, self.command, (from, State::Denied), Some(&reason))?;
            return Ok(State::Denied);
        }
        let state = self.open(change, from)?;
        if state != State::Denied {
            let (command, facts) = (self.command, &self.facts);
            self.book.charge(change, command, facts, self.now)?;
        }
        Ok(state)
    }

    /// The same without limits: for a command that is asked about again.
    pub(super) fn open(
        &self,
        change: &mut Change<'_>,
        from: State,
    ) -> Result<State, CommandsError> {
        self.put_on_record(change)?;
        match &self.opened {
            Opened::Ready(release) => {
                make_ready(change, self.command, from, release)?;
                Ok(State::Ready)
            }
            Opened::Denied(reason) => {
                step(change, self.command, (from, State::Denied), Some(reason))?;
                Ok(State::Denied)
            }
            Opened::Asked(request) => {
                change.add_request(request, &self.book.policies_digest, self.book.announces)?;
                if from != State::PendingApproval {
                    step(change, self.command, (from, State::PendingApproval), None)?;
                }
                Ok(State::PendingApproval)
            }
        }
    }

    /// What the policies found.
    fn put_on_record(&self, change: &mut Change<'_>) -> Result<(), CommandsError> {
        for record in &self.records {
            change.append(record)?;
        }
        change.keep_verdict(&VerdictRow {
            command: self.command,
            policy: self.verdict.policy.clone(),
            requirement: self.verdict.requirement.clone(),
            facts: self.summary.clone(),
        })
    }
}

/// The gate, as records name it.
fn ourselves() -> Actor {
    Actor::system("approvals")
}

/// The id of a request.
fn draw_id(now: Timestamp) -> Result<String, CommandsError> {
    let mut random = [0; 10];
    getrandom::fill(&mut random).map_err(|error| CommandsError::Unfit {
        reason: format!("no id can be drawn: {error}"),
    })?;
    Ok(CommandId::at(now, random).to_string())
}

/// Judges a waiting request anew where policies or what it shows have changed since it was made. Of itself nothing
/// becomes easier. `true` where another request, or a refusal, took its place.
pub(super) fn refresh(
    gate: &Gate,
    change: &mut Change<'_>,
    row: &RequestRow,
    command: &Command,
) -> Result<bool, CommandsError> {
    let book = gate.book();
    let Some(kept) = change.verdict(command.new.id)? else {
        return Ok(false);
    };
    let summary: Value = serde_json::from_str(&kept.facts).unwrap_or_default();
    let arguments = serde_json::from_str(&command.new.arguments).unwrap_or_default();
    let Some(mut facts) = Facts::of_summary(&summary, arguments) else {
        return Err(CommandsError::Unfit {
            reason: format!("the facts of command {} cannot be read", command.new.id),
        });
    };
    if let Some((risk, reversibility)) = book.kinds.get(&facts.kind) {
        (facts.risk, facts.reversibility) = (*risk, *reversibility);
    }
    let digest = Digest(command.new.digest);
    let (shown, presented) = book.presented(&facts, &digest);
    let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
    let changed = presented != row.request.presented;
    if row.policies == book.policies_digest && !changed {
        return Ok(false);
    }
    let verdict = book.policies.evaluate(&facts);
    let Some(verdict) = row.request.reconsider(&verdict, changed) else {
        return Ok(false);
    };
    let why = match (
        changed,
        shown.get(DESTINATION_DIGEST) == summary.get(DESTINATION_DIGEST),
    ) {
        (false, _) => Void::PolicyChanged,
        (true, false) => Void::DestinationChanged,
        (true, true) => Void::FactsChanged,
    };
    void(change, command.new.id, &why)?;
    let subject = Subject {
        command: command.new.id,
        digest,
        editors: row.request.excluded.clone(),
    };
    let asked = Asked::new(book, facts, subject, verdict, change.now())?;
    asked.open(change, State::PendingApproval)?;
    Ok(true)
}

/// Ends whatever request of a command waits, with its record. Whoever cancels, expires or edits a command does this
/// in the same change.
///
/// # Errors
/// The file takes no change.
pub fn void(change: &mut Change<'_>, command: CommandId, why: &Void) -> Result<(), CommandsError> {
    for row in change.requests_of(command)? {
        if let Some(progress) = row.request.void(why) {
            change.keep_request(&progress.request)?;
            for one in &progress.records {
                write(change, command, one.kind, &one.actor, &one.body)?;
            }
        }
    }
    Ok(())
}

/// Why a command may not leave now: it is halted by its principal, kind or destination. `None` where nothing holds it.
///
/// # Errors
/// The file cannot be read.
pub fn may_leave(view: &View<'_>, command: &Command) -> Result<Option<String>, CommandsError> {
    let new = &command.new;
    let halt = view.halted(&new.principal, &new.kind, &new.destination)?;
    Ok(halt.map(|halt| {
        format!(
            "{} {} is halted by {}: {}",
            halt.scope.name(),
            halt.name,
            halt.by,
            halt.reason
        )
    }))
}

/// The one way to ready: with a release for the command as it is now.
pub(super) fn make_ready(
    change: &mut Change<'_>,
    command: CommandId,
    from: State,
    release: &Release,
) -> Result<(), CommandsError> {
    let unfit = |reason: &str| CommandsError::Unfit {
        reason: format!("command {command} {reason}"),
    };
    let row = change.command(command)?;
    let row = row.ok_or_else(|| unfit("is not there"))?;
    if !release.is_for(&command.to_string(), &Digest(row.new.digest)) {
        return Err(unfit("is another one than was approved"));
    }
    step(change, command, (from, State::Ready), None)
}

/// Moves a command that must stand where it is moved from.
pub(super) fn step(
    change: &mut Change<'_>,
    command: CommandId,
    (from, to): (State, State),
    reason: Option<&str>,
) -> Result<(), CommandsError> {
    match moved(
        change,
        command,
        Transition { from, to, reason },
        &ourselves(),
    )? {
        true => Ok(()),
        false => Err(CommandsError::Unfit {
            reason: format!("command {command} is not {}", from.name()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_for_what_is_shown_is_of_its_canonical_form() {
        let digest = Digest([7; 32]);
        let reached = Digest([2; 32]);
        let book = Rulebook {
            policies: Policies::default(),
            policies_digest: Digest([1; 32]),
            limits: Vec::new(),
            announces: false,
            kinds: BTreeMap::new(),
            destinations: BTreeMap::from([("erp".to_owned(), reached)]),
        };
        for (destination, reached) in [("erp", Some(reached)), ("wms", None)] {
            let facts = Facts {
                kind: "po_create".to_owned(),
                arguments: json!({}),
                amount: None,
                principal: Actor::system("reorder"),
                labels: vec!["night".to_owned()],
                on_behalf_of: String::new(),
                model: String::new(),
                risk: Risk::High,
                reversibility: Reversibility::Reversible,
                destination: destination.to_owned(),
            };
            let (shown, presented) = book.presented(&facts, &digest);
            let said: Value = serde_json::from_str(&shown).unwrap();
            let reached = reached.map(|digest| digest.to_string());
            assert_eq!(said[DESTINATION_DIGEST], json!(reached));
            let all = json!({ "facts": said, "command_sha256": digest.to_string() });
            assert_eq!(presented, Digest::of_json(&all), "{destination}");
        }
    }
}
