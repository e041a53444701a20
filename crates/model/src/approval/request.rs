//! A request for approval: from the moment a command needs one until it is used up or void.
//!
//! It is bound to the digest of the command and used once: the decision that completes it also consumes it, and hands
//! out the [`Release`] in the same step. Whoever wants the command (the proposer, the one it acts for, whoever edited
//! it) never decides; neither does anything but a person. What has no effect is a [`Refusal`], and that is a record.
//!
//! ```text
//! pending -> consumed      the quorum is complete, or the undo window passed
//!         -> rejected      a person said no
//!         -> expired       nobody decided in time, not even those it was escalated to
//!         -> cancelled     the command was called back
//!         -> invalidated   command, policy or destination changed; another request takes its place
//! ```

use std::collections::BTreeSet;

use super::Digest;
use super::policy::Verdict;
use super::quorum::{OnExpiry, Quorum};
use super::record::{self, Record};
use super::requirement::Requirement;
use crate::ledger::{Actor, ActorKind};
use crate::time::Timestamp;

/// Longest comment on a decision, in bytes: a paragraph.
pub const COMMENT_BYTES_MAX: usize = 2000;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits.
    Pending,
    /// It made the command ready.
    Consumed,
    /// A person said no.
    Rejected,
    /// Nobody decided in time.
    Expired,
    /// The command was called back.
    Cancelled,
    /// Something that it was bound to changed.
    Invalidated,
}

/// A request. Its requirement never changes: what an approver saw is what is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its id.
    pub id: String,
    /// The command's id.
    pub command: String,
    /// Digest of the command that it is bound to.
    pub bound: Digest,
    /// Digest of the facts that are presented.
    pub presented: Digest,
    /// The policy that asked; `None` for the default of the risk.
    pub policy: Option<String>,
    /// What is needed: time or people.
    pub requirement: Requirement,
    /// Names that may not decide.
    pub excluded: BTreeSet<String>,
    /// Who said yes so far.
    pub grants: Vec<Grant>,
    /// Where it stands.
    pub state: State,
    /// When it was made.
    pub requested_at: Timestamp,
    /// When the undo window or the wait ends.
    pub due_at: Timestamp,
    /// Whether it already went to those whom expiry asks.
    pub escalated: bool,
}

/// A yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The person's name.
    pub who: String,
    /// Their labels at that time.
    pub labels: Vec<String>,
    /// When.
    pub at: Timestamp,
    /// What they said.
    pub comment: String,
}

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The command's id.
    pub command: String,
    /// Its digest.
    pub bound: Digest,
    /// Digest of the facts that are presented.
    pub presented: Digest,
    /// Digest of the policies that were asked.
    pub policies: Digest,
    /// Names that may not decide: proposer, whom it acts for, editors. Empty ones are left out.
    pub excluded: BTreeSet<String>,
}

/// Who decides, and how they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approver {
    /// Name and kind.
    pub actor: Actor,
    /// Roles and labels.
    pub labels: Vec<String>,
    /// Through which face, such as `api`.
    pub channel: &'static str,
}

/// The proof that a command had what its policy requires. It is used up by making the command ready, and nothing
/// outside this module can make one.
#[derive(Debug, PartialEq, Eq)]
pub struct Release {
    command: String,
    bound: Digest,
}

/// What became of the question whether a command may leave.
#[derive(Debug, PartialEq)]
pub enum Opened {
    /// At once.
    Ready(Release),
    /// After this request.
    Asked(Box<Request>),
    /// Never; the reason is for the proposer.
    Denied(String),
}

/// What a decision led to.
#[derive(Debug, PartialEq)]
pub struct Progress {
    /// The request now.
    pub request: Request,
    /// What is to be recorded, in order.
    pub records: Vec<Record>,
    /// Where the decision completed it.
    pub release: Option<Release>,
}

/// What the passing of time led to.
#[derive(Debug, PartialEq)]
pub enum Elapsed {
    /// It is not time yet, or nothing waits any more.
    Nothing,
    /// The undo window passed.
    Released(Progress),
    /// More people were asked, for a while longer.
    Escalated(Progress),
    /// Nobody decided: the command is refused.
    Expired(Progress),
}

/// Why a pending request counts no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Void {
    /// The command was called back.
    Cancelled {
        /// By whom.
        by: Actor,
        /// Why.
        reason: String,
    },
    /// The command was edited.
    Edited {
        /// By whom; from now on a requester.
        by: Actor,
        /// Digest of the command as it is now.
        new: Digest,
    },
    /// The policies ask for more.
    PolicyChanged,
    /// The destination is another one than the approvers saw.
    DestinationChanged,
    /// Something else that was presented changed.
    FactsChanged,
}

/// Why a decision has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is decided or void.
    NotPending(State),
    /// Its time is over.
    Late,
    /// The approver saw another command than the one that is bound.
    OtherDigest,
    /// Only people decide.
    NotAPerson,
    /// Whoever wants the command does not decide on it.
    Requester,
    /// Time is asked for, not people.
    NobodyAsked,
    /// They said yes already.
    AlreadyGranted,
    /// No seat of the quorum is left that their labels fit.
    NoSeat,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Consumed,
        Self::Rejected,
        Self::Expired,
        Self::Cancelled,
        Self::Invalidated,
    ];

    /// Name in JSON and on disk.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Consumed => "consumed",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Invalidated => "invalidated",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl Refusal {
    /// Name in records, answers and metrics.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotPending(_) => "not_pending",
            Self::Late => "late",
            Self::OtherDigest => "other_digest",
            Self::NotAPerson => "not_a_person",
            Self::Requester => "requester",
            Self::NobodyAsked => "nobody_asked",
            Self::AlreadyGranted => "already_granted",
            Self::NoSeat => "no_seat",
        }
    }
}

impl Release {
    /// Whether it is for this command as it is now. Whoever makes a command ready asks this.
    pub fn is_for(&self, command: &str, digest: &Digest) -> bool {
        self.command == command && self.bound == *digest
    }
}

impl Request {
    /// Asks what a verdict requires. `id` is the id of the request, where one is needed. The first record says what
    /// the policies found.
    pub fn open(
        id: String,
        verdict: &Verdict,
        binding: Binding,
        now: Timestamp,
    ) -> (Opened, Vec<Record>) {
        let mut records = vec![record::evaluated(
            verdict,
            &binding.policies,
            &binding.presented,
        )];
        let wait = match &verdict.requirement {
            Requirement::Auto => {
                let release = Release {
                    command: binding.command,
                    bound: binding.bound,
                };
                return (Opened::Ready(release), records);
            }
            Requirement::Deny { reason } => return (Opened::Denied(reason.clone()), records),
            Requirement::Delayed { window } => *window,
            Requirement::Approvers(quorum) => quorum.expires(),
        };
        let request = Self {
            id,
            command: binding.command,
            bound: binding.bound,
            presented: binding.presented,
            policy: verdict.policy.clone(),
            requirement: verdict.requirement.clone(),
            excluded: binding.excluded,
            grants: Vec::new(),
            state: State::Pending,
            requested_at: now,
            due_at: now.after(wait),
            escalated: false,
        };
        records.push(record::requested(&request));
        (Opened::Asked(Box::new(request)), records)
    }

    /// A person says yes to the command whose digest they saw.
    ///
    /// # Errors
    /// Why that has no effect; [`Request::refused`] makes its record.
    pub fn approve(
        &self,
        by: &Approver,
        seen: &Digest,
        comment: &str,
        now: Timestamp,
    ) -> Result<Progress, Refusal> {
        self.may_decide(by, seen, now)?;
        let quorum = self.quorum().ok_or(Refusal::NobodyAsked)?;
        if self.grants.iter().any(|grant| grant.who == by.actor.id) {
            return Err(Refusal::AlreadyGranted);
        }
        let mut request = self.clone();
        request.grants.push(Grant {
            who: by.actor.id.clone(),
            labels: by.labels.clone(),
            at: now,
            comment: comment.to_owned(),
        });
        let seated = request.seated(&quorum);
        if seated == self.seated(&quorum) {
            return Err(Refusal::NoSeat);
        }
        let mut records = vec![record::granted(&request, by, comment)];
        let complete = seated == quorum.seats().len();
        let release = complete.then(|| request.consume(&mut records));
        Ok(Progress {
            request,
            records,
            release,
        })
    }

    /// A person says no to the command whose digest they saw. One is enough, whatever their labels.
    ///
    /// # Errors
    /// Why that has no effect; [`Request::refused`] makes its record.
    pub fn reject(
        &self,
        by: &Approver,
        seen: &Digest,
        comment: &str,
        now: Timestamp,
    ) -> Result<Progress, Refusal> {
        self.may_decide(by, seen, now)?;
        let request = self.in_state(State::Rejected);
        let records = vec![record::denied(&request, by, comment)];
        Ok(Progress {
            request,
            records,
            release: None,
        })
    }

    /// The record of a decision without effect. `decision` is `approve` or `reject`.
    pub fn refused(
        &self,
        decision: &'static str,
        by: &Approver,
        seen: &Digest,
        refusal: Refusal,
    ) -> Record {
        record::refused(self, decision, by, seen, refusal)
    }

    /// What time led to.
    pub fn elapse(&self, now: Timestamp) -> Elapsed {
        if self.state != State::Pending || now < self.due_at {
            return Elapsed::Nothing;
        }
        let mut request = self.clone();
        let mut records = Vec::new();
        let Requirement::Approvers(quorum) = &self.requirement else {
            let release = Some(request.consume(&mut records));
            return Elapsed::Released(Progress {
                request,
                records,
                release,
            });
        };
        let escalate = match quorum.on_expiry() {
            OnExpiry::Escalate { to, wait } if !self.escalated => Some((to, *wait)),
            OnExpiry::Escalate { .. } | OnExpiry::Deny => None,
        };
        let release = None;
        if let Some((to, wait)) = escalate {
            request.escalated = true;
            request.due_at = now.after(wait);
            records.push(record::escalated(&request, to));
            return Elapsed::Escalated(Progress {
                request,
                records,
                release,
            });
        }
        request.state = State::Expired;
        records.push(record::expired(&request));
        Elapsed::Expired(Progress {
            request,
            records,
            release,
        })
    }

    /// Ends a pending request without a decision; `None` where it does not wait any more.
    pub fn void(&self, why: &Void) -> Option<Progress> {
        if self.state != State::Pending {
            return None;
        }
        let request = self.in_state(match why {
            Void::Cancelled { .. } => State::Cancelled,
            Void::Edited { .. }
            | Void::PolicyChanged
            | Void::DestinationChanged
            | Void::FactsChanged => State::Invalidated,
        });
        let records = vec![record::void(self, why)];
        Some(Progress {
            request,
            records,
            release: None,
        })
    }

    /// What must be asked instead, after policies were loaded anew and say this of the command. Of itself nothing
    /// becomes easier: what is asked then is what was asked and what is required now. `None` where what was asked is
    /// enough, and the destination (`moved`) is the one that was presented.
    pub fn reconsider(&self, verdict: &Verdict, moved: bool) -> Option<Verdict> {
        let enough = self.requirement.covers(&verdict.requirement);
        if self.state != State::Pending || (enough && !moved) {
            return None;
        }
        Some(Verdict {
            requirement: self.requirement.and(&verdict.requirement),
            policy: verdict.policy.clone(),
            reasons: verdict.reasons.clone(),
            faults: verdict.faults.clone(),
        })
    }

    /// The seats that count now: escalation opens them to more people. `None` where time is asked for.
    pub fn quorum(&self) -> Option<Quorum> {
        let Requirement::Approvers(quorum) = &self.requirement else {
            return None;
        };
        match quorum.on_expiry() {
            OnExpiry::Escalate { to, .. } if self.escalated => Some(quorum.opened_to(to)),
            OnExpiry::Escalate { .. } | OnExpiry::Deny => Some(quorum.clone()),
        }
    }

    /// How many seats are taken.
    pub fn seats_taken(&self) -> usize {
        self.quorum().map_or(0, |quorum| self.seated(&quorum))
    }

    fn seated(&self, quorum: &Quorum) -> usize {
        quorum.seated(self.grants.iter().map(|grant| grant.labels.as_slice()))
    }

    fn may_decide(&self, by: &Approver, seen: &Digest, now: Timestamp) -> Result<(), Refusal> {
        if self.state != State::Pending {
            return Err(Refusal::NotPending(self.state));
        }
        if by.actor.kind != ActorKind::Person {
            return Err(Refusal::NotAPerson);
        }
        if self.excluded.contains(&by.actor.id) {
            return Err(Refusal::Requester);
        }
        if *seen != self.bound {
            return Err(Refusal::OtherDigest);
        }
        if now >= self.due_at {
            return Err(Refusal::Late);
        }
        Ok(())
    }

    fn consume(&mut self, records: &mut Vec<Record>) -> Release {
        self.state = State::Consumed;
        records.push(record::consumed(self));
        Release {
            command: self.command.clone(),
            bound: self.bound,
        }
    }

    fn in_state(&self, state: State) -> Self {
        Self {
            state,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests;
