//! What can be wrong: something handed in, which names its field, or the database.

use std::fmt;

/// A value that no row can be made of. It names the field and what was expected of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    field: String,
    expected: String,
}

impl Invalid {
    pub(crate) fn new(field: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            expected: expected.into(),
        }
    }

    /// The field: of an event (`type`, `aggregateid`, `data`, an attribute) or of a table (`table`, a
    /// column).
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What was expected of it, in words.
    pub fn expected(&self) -> &str {
        &self.expected
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}", self.field, self.expected)
    }
}

impl std::error::Error for Invalid {}

/// Why an event was not inserted; `E` is the error of the database's library. Roll the transaction
/// back: after an error of the database PostgreSQL would refuse to commit it anyway.
#[derive(Debug)]
#[non_exhaustive]
pub enum InsertError<E> {
    /// The event does not fit the table. Nothing was sent to the database.
    Event(Invalid),
    /// The database said no, or could not be asked.
    Database(E),
}

impl<E> From<Invalid> for InsertError<E> {
    fn from(invalid: Invalid) -> Self {
        Self::Event(invalid)
    }
}

impl<E: fmt::Display> fmt::Display for InsertError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(invalid) => write!(f, "the event does not fit the outbox table: {invalid}"),
            Self::Database(error) => write!(f, "the outbox table did not take the event: {error}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for InsertError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Event(invalid) => Some(invalid),
            Self::Database(error) => Some(error),
        }
    }
}
