//! What a kind of command may cost to be wrong about, as its configuration says.

/// How much harm a wrong command of its kind may do. Without a policy that matches it decides who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Risk {
    /// Goes at once.
    Low,
    /// Goes after a while in which it can be cancelled.
    Medium,
    /// Needs a person.
    High,
    /// Needs two people.
    Critical,
}

impl Risk {
    /// Every one, the least first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Critical];

    /// Its name in configuration, JSON and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// Whether what a command did can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reversibility {
    /// It can be made as if it had never been.
    Reversible,
    /// Another command makes up for it.
    Compensatable,
    /// It cannot, so it never goes without a person.
    Irreversible,
}

impl Reversibility {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Reversible, Self::Compensatable, Self::Irreversible];

    /// Its name in configuration, JSON and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reversible => "reversible",
            Self::Compensatable => "compensatable",
            Self::Irreversible => "irreversible",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}
