//! Which answers count as delivered.

use wayhold_model::{FailureClass, OutcomeKind};

/// The statuses that an API confirms with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Success {
    /// All of 200 to 299.
    #[default]
    Any2xx,
    /// These and no others.
    Listed(Box<[u16]>),
}

/// Most listed statuses: an API documents a handful.
pub(super) const LISTED_MAX: usize = 20;

/// What may be listed. From 500 on a receiver says that it failed, and nothing makes that a success.
pub(super) const LISTED: std::ops::RangeInclusive<u16> = 200..=499;

impl Success {
    /// What an answer with this status says, where the list decides it; `None` where a status means what it
    /// means everywhere.
    pub(crate) fn meaning_of(&self, status: u16) -> Option<(OutcomeKind, FailureClass)> {
        let usual = (200..=299).contains(&status);
        let confirms = match self {
            Self::Any2xx => usual,
            Self::Listed(listed) => listed.contains(&status),
        };
        match (confirms, usual) {
            (true, _) => Some((OutcomeKind::Delivered, FailureClass::Unclassified)),
            // The receiver says yes to something that the operator did not expect: a person has to look.
            (false, true) => Some((OutcomeKind::Refused, FailureClass::Protocol)),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_stands_instead_of_the_default() {
        let delivered = Some((OutcomeKind::Delivered, FailureClass::Unclassified));
        let unexpected = Some((OutcomeKind::Refused, FailureClass::Protocol));
        let listed = Success::Listed([200, 201, 409].into());
        for (status, by_default, by_list) in [
            (200, delivered, delivered),
            (202, delivered, unexpected),
            (299, delivered, unexpected),
            (304, None, None),
            (409, None, delivered),
            (500, None, None),
        ] {
            assert_eq!(Success::Any2xx.meaning_of(status), by_default, "{status}");
            assert_eq!(listed.meaning_of(status), by_list, "{status}");
        }
    }
}
