//! Principals and their roles, as values.

use thiserror::Error;
use wayhold_model::admission::Fill;
use wayhold_model::ledger::{Actor, ActorKind, Auth};
use wayhold_store::catalog::{PrincipalRecord, TokenRecord};

/// What a principal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrincipalKind {
    /// A human being.
    Person,
    /// A program.
    Service,
    /// An AI model.
    Model,
}

impl PrincipalKind {
    /// Name in JSON and in the catalogue.
    pub fn name(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Service => "service",
            Self::Model => "model",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Person, Self::Service, Self::Model]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// What a principal may do. No role contains another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Send events.
    Ingest,
    /// Look at events, status and destinations.
    Read,
    /// Pause and resume destinations; redrive and discard dead letters.
    Operate,
    /// Propose commands.
    Propose,
    /// Approve commands.
    Approve,
    /// Read the audit trail and the ledger.
    Audit,
    /// Make and revoke tokens.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 7] = [
        Self::Ingest,
        Self::Read,
        Self::Operate,
        Self::Propose,
        Self::Approve,
        Self::Audit,
        Self::Admin,
    ];

    /// Name in JSON and in the catalogue.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Propose => "propose",
            Self::Approve => "approve",
            Self::Audit => "audit",
            Self::Admin => "admin",
        }
    }
}

/// Longest name of a principal, role or label, in bytes: they stand in every audit record.
const NAME_BYTES_MAX: usize = 64;

/// Most roles and labels of a principal.
const ROLES_MAX: usize = 32;

/// Somebody who acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Unique name, as the audit trail shows it.
    pub name: String,
    /// What it is.
    pub kind: PrincipalKind,
    /// Roles, and free labels such as `buyer`, which the server itself gives no meaning.
    pub roles: Vec<String>,
    /// At which filling of a limit its events are refused; its token says so.
    pub admit_until: Fill,
}

/// A principal that cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidPrincipal {
    /// The name, a role or a label.
    #[error("{field}: expected 1 to {NAME_BYTES_MAX} letters, digits, '.', '-', '_' or '@'")]
    Name {
        /// Which of them.
        field: &'static str,
    },
    /// None, or too many.
    #[error("roles: expected 1 to {ROLES_MAX} roles or labels")]
    Roles,
    /// These names mean requests without a token.
    #[error("name: \"local\" and \"anonymous\" are taken by requests without a token")]
    Reserved,
}

impl Principal {
    /// A principal from outside.
    ///
    /// # Errors
    /// Names what does not hold.
    pub fn new(
        name: &str,
        kind: PrincipalKind,
        roles: &[String],
    ) -> Result<Self, InvalidPrincipal> {
        if !is_name(name) {
            return Err(InvalidPrincipal::Name { field: "name" });
        }
        if [LOCAL, ANONYMOUS].contains(&name) {
            return Err(InvalidPrincipal::Reserved);
        }
        if !(1..=ROLES_MAX).contains(&roles.len()) {
            return Err(InvalidPrincipal::Roles);
        }
        if !roles.iter().all(|role| is_name(role)) {
            return Err(InvalidPrincipal::Name { field: "roles" });
        }
        Ok(Self {
            name: name.to_owned(),
            kind,
            roles: roles.to_vec(),
            admit_until: Fill::FULL,
        })
    }

    /// Whoever uses a loopback or Unix listener while no token exists.
    pub(super) fn local() -> Self {
        Self::everything(LOCAL)
    }

    /// Whoever asks a server that was told to ask nobody.
    pub(super) fn anonymous() -> Self {
        Self::everything(ANONYMOUS)
    }

    fn everything(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind: PrincipalKind::Person,
            roles: Role::ALL.map(|role| role.name().to_owned()).to_vec(),
            admit_until: Fill::FULL,
        }
    }

    /// Whether it has the role.
    pub fn has(&self, role: Role) -> bool {
        self.roles.iter().any(|name| name == role.name())
    }

    /// As records of the ledger name it.
    pub fn actor(&self) -> Actor {
        let kind = match self.kind {
            PrincipalKind::Person => ActorKind::Person,
            PrincipalKind::Service => ActorKind::Service,
            PrincipalKind::Model => ActorKind::Model,
        };
        Actor {
            kind,
            id: self.name.clone(),
            on_behalf_of: None,
            auth: Some(Auth {
                method: match self.name.as_str() {
                    LOCAL | ANONYMOUS => "none".to_owned(),
                    _ => "token".to_owned(),
                },
                key_id: None,
            }),
        }
    }

    /// The principal of a token.
    pub(super) fn of_token(token: TokenRecord) -> Self {
        let record = token.principal;
        Self {
            admit_until: token.admit_until.unwrap_or(Fill::FULL),
            // A kind that this version does not know acts like a program.
            kind: PrincipalKind::from_name(&record.kind).unwrap_or(PrincipalKind::Service),
            name: record.name,
            roles: record.roles,
        }
    }

    pub(super) fn to_record(&self) -> PrincipalRecord {
        PrincipalRecord {
            name: self.name.clone(),
            kind: self.kind.name().to_owned(),
            roles: self.roles.clone(),
        }
    }
}

const LOCAL: &str = "local";
const ANONYMOUS: &str = "anonymous";

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'@'))
}
