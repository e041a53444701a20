//! What the catalogue holds, as values.

use wayhold_model::admission::Fill;
use wayhold_model::{DestinationId, Generation, LaneId, Timestamp};

/// Whether deliveries to a destination start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunState {
    /// They do.
    Running,
    /// An operator stopped them for a while.
    Paused,
    /// An operator stopped them for good; what is pending is held.
    Disabled,
    /// The destination left the configuration; what is pending is held.
    Retired,
}

impl RunState {
    /// Name in JSON and in the catalogue.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
            Self::Retired => "retired",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Running, Self::Paused, Self::Disabled, Self::Retired]
            .into_iter()
            .find(|state| state.name() == name)
    }
}

/// A destination that was ever configured. Numbers are never reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationRecord {
    /// What events carry as their obligation.
    pub id: DestinationId,
    /// Its own lane.
    pub lane: LaneId,
    /// Name in the configuration.
    pub name: String,
    /// Counts from 1: how often the name came into the configuration.
    pub incarnation: u32,
    /// Whether deliveries start.
    pub state: RunState,
    /// Why, where somebody said so.
    pub reason: Option<String>,
    /// Who set the state; `None` where the configuration did.
    pub by: Option<String>,
    /// Since when.
    pub since: Timestamp,
}

/// One version of the shard map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationRecord {
    /// Its number.
    pub generation: Generation,
    /// How many shards it has.
    pub shards: u16,
    /// When it was named; it takes events from shortly afterwards.
    pub since: Timestamp,
    /// Whether all its files were made once: then one that is missing was taken away.
    pub made: bool,
}

/// Who may act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrincipalRecord {
    /// Unique name.
    pub name: String,
    /// `person`, `service` or `model`.
    pub kind: String,
    /// Roles and free labels, in the order given.
    pub roles: Vec<String>,
}

/// A token to be stored; its secret never reaches the catalogue.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Public part, by which the token is found and named.
    pub prefix: String,
    /// Keyed hash of the whole token, made with [`super::Catalog::token_key`].
    pub hash: [u8; 32],
    /// To whom it belongs. A name that is new makes a new principal.
    pub principal: PrincipalRecord,
    /// At which filling of limits on the backlog its events are refused; `None`: at the limits.
    pub admit_until: Option<Fill>,
}

/// A stored token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    /// Public part.
    pub prefix: String,
    /// Keyed hash of the whole token.
    pub hash: [u8; 32],
    /// To whom it belongs.
    pub principal: PrincipalRecord,
    /// At which filling of limits on the backlog its events are refused; `None`: at the limits.
    pub admit_until: Option<Fill>,
    /// When it was made.
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: String,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Timestamp>,
}

/// One action of an operator (or of the configuration) in the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Counts up; the cursor of lists.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub by: String,
    /// What, as `noun.verb`.
    pub action: String,
    /// To what.
    pub subject: String,
    /// Why, where somebody said so.
    pub reason: Option<String>,
}
