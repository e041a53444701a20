//! The name of a command: a UUID, so that whoever proposes may know it before the answer came, and version 7, so
//! that ids ascend with time and lie close together on the disk.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use uuid::Uuid;

use crate::Timestamp;

/// Names one command for good: in the ledger, as the id of its event, and as the `Idempotency-Key` of every
/// request that is made for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(Uuid);

/// A text that names no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected the id of a command, a UUID such as 0191e0a4-5c1e-7d3b-9c4f-2f6f0a7b8c9d")]
pub struct InvalidCommandId;

impl CommandId {
    /// The id of a command that is proposed now, from ten random bytes.
    pub fn at(now: Timestamp, random: [u8; 10]) -> Self {
        let millis = now.as_micros() / 1000;
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// The id that is kept as these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The id of these bytes once they say that they are of version 7, as every id does: for one that follows from
    /// something else.
    pub fn of_version_7(bytes: [u8; 16]) -> Self {
        let builder = uuid::Builder::from_bytes(bytes);
        Self(
            builder
                .with_variant(uuid::Variant::RFC4122)
                .with_version(uuid::Version::SortRand)
                .into_uuid(),
        )
    }

    /// What is kept of it.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }
}

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CommandId {
    type Err = InvalidCommandId;

    /// Only the form that is printed: another spelling of the same id would be another text in the ledger.
    fn from_str(text: &str) -> Result<Self, InvalidCommandId> {
        let id = Uuid::try_parse(text).map_err(|_| InvalidCommandId)?;
        let id = Self(id);
        (id.to_string() == text)
            .then_some(id)
            .ok_or(InvalidCommandId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_ascend_with_time_and_are_read_as_they_are_printed() {
        let at =
            |millis: u64, last| CommandId::at(Timestamp::from_micros(millis * 1000), [last; 10]);
        let (first, second) = (at(1_700_000_000_000, 255), at(1_700_000_000_001, 0));
        assert!(first < second && first.to_bytes() < second.to_bytes());
        assert_eq!(first.to_string().parse(), Ok(first));
        assert_eq!(CommandId::from_bytes(first.to_bytes()), first);
        assert!(first.to_string().starts_with("018bcfe5-6800-7"));
    }

    #[test]
    fn another_spelling_is_refused() {
        let id = CommandId::at(Timestamp::from_micros(1), [171; 10]).to_string();
        for other in [
            id.to_uppercase(),
            id.replace('-', ""),
            format!("{{{id}}}"),
            String::new(),
            "po-1".to_owned(),
        ] {
            assert_eq!(other.parse::<CommandId>(), Err(InvalidCommandId), "{other}");
        }
    }
}
