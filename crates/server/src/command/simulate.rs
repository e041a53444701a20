//! New policies, tried on the past: for every command on record, what was asked then and what would be asked now, from
//! the facts that the policies saw.

use serde_json::Value;
use wayhold_model::approval::{Facts, Policies, Requirement};
use wayhold_model::command::CommandId;
use wayhold_store::CommandsError;
use wayhold_store::commands::View;

use super::approvals::{ApprovalError, Approvals};

/// Commands that are read at once: each comes with its arguments.
const BATCH: u32 = 256;

/// Most differences that are told one by one; beyond, they are counted.
const TOLD_MAX: usize = 1_000;

/// What new policies would have changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Simulation {
    /// Commands that were looked at.
    pub commands: u64,
    /// Commands of which more would have been asked.
    pub stricter: u64,
    /// Commands of which less would have been asked.
    pub easier: u64,
    /// Commands of which something else would have been asked, neither more nor less.
    pub other: u64,
    /// Questions that had no answer.
    pub faults: u64,
    /// The first of them.
    pub differences: Vec<Difference>,
}

/// One command of which something else would have been asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The command.
    pub command: CommandId,
    /// Its facts.
    pub facts: Facts,
    /// What was asked, and by which policy.
    pub then: (Option<String>, Requirement),
    /// What would be.
    pub now: (Option<String>, Requirement),
    /// Questions without an answer.
    pub faults: Vec<String>,
}

impl Difference {
    /// `stricter`, `easier` or `other`.
    pub fn direction(&self) -> &'static str {
        match (
            self.now.1.covers(&self.then.1),
            self.then.1.covers(&self.now.1),
        ) {
            (true, false) => "stricter",
            (false, true) => "easier",
            (true, true) | (false, false) => "other",
        }
    }
}

impl Approvals {
    /// Tries policies on every command on record.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn simulate(&self, policies: Policies) -> Result<Simulation, ApprovalError> {
        self.look(move |view| simulate(view, &policies)).await
    }
}

fn simulate(view: &View<'_>, policies: &Policies) -> Result<Simulation, CommandsError> {
    let mut simulation = Simulation::default();
    let mut after = 0;
    loop {
        let rows = view.verdicts(after, BATCH)?;
        let Some((last, _)) = rows.last() else {
            return Ok(simulation);
        };
        after = *last;
        for (_, row) in rows {
            let Some(command) = view.command(row.command)? else {
                continue;
            };
            // What a policy would ask of it now cannot be told.
            if command.new.is_erased() {
                continue;
            }
            let summary: Value = serde_json::from_str(&row.facts).unwrap_or_default();
            let arguments = serde_json::from_str(&command.new.arguments).unwrap_or_default();
            let Some(facts) = Facts::of_summary(&summary, arguments) else {
                continue;
            };
            let verdict = policies.evaluate(&facts);
            let faults = verdict.faults.iter();
            let difference = Difference {
                command: row.command,
                facts,
                then: (row.policy, row.requirement),
                faults: faults
                    .map(|fault| format!("{}: {}", fault.policy, fault.reason))
                    .collect(),
                now: (verdict.policy, verdict.requirement),
            };
            simulation.add(difference);
        }
    }
}

impl Simulation {
    fn add(&mut self, difference: Difference) {
        self.commands += 1;
        self.faults += difference.faults.len() as u64;
        if difference.then.1 == difference.now.1 {
            return;
        }
        *match difference.direction() {
            "stricter" => &mut self.stricter,
            "easier" => &mut self.easier,
            _ => &mut self.other,
        } += 1;
        if self.differences.len() < TOLD_MAX {
            self.differences.push(difference);
        }
    }
}
