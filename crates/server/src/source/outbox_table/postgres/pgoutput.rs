//! The messages of PostgreSQL's `pgoutput`, version 1, as far as rows that are put in need them. Pure.
//!
//! Format: PostgreSQL's manual, "Logical Replication Message Formats". Numbers are big-endian.

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message<'m> {
    /// A transaction begins; its rows follow.
    Begin,
    /// It ends: where the log goes on after it.
    Commit {
        /// The place in the log.
        end: u64,
    },
    /// What the columns of a table are called, before its first row.
    Relation {
        /// Its number in what follows.
        id: u32,
        /// Its schema.
        schema: &'m str,
        /// Its name.
        name: &'m str,
        /// Names of its columns.
        columns: Vec<&'m str>,
    },
    /// A row was put in.
    Insert {
        /// The table.
        id: u32,
        /// A text, or `None` for `NULL`, for each column.
        values: Vec<Option<&'m str>>,
    },
    /// A row was changed.
    Update {
        /// The table.
        id: u32,
    },
    /// Whatever else there is: rows that were deleted, types, origins.
    Other,
}

/// Bytes that are no message of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl<'m> Message<'m> {
    /// Reads one message.
    pub(super) fn parse(bytes: &'m [u8]) -> Result<Self, Malformed> {
        let mut reader = Bytes(bytes);
        Ok(match reader.byte()? {
            b'B' => Self::Begin,
            b'C' => {
                // Flags, and where the commit itself lies.
                reader.take(1 + 8)?;
                Self::Commit { end: reader.u64()? }
            }
            b'R' => reader.relation()?,
            b'I' => {
                let id = reader.u32()?;
                match reader.byte()? {
                    b'N' => Self::Insert {
                        id,
                        values: reader.values()?,
                    },
                    _ => return Err(Malformed),
                }
            }
            b'U' => Self::Update { id: reader.u32()? },
            _ => Self::Other,
        })
    }
}

struct Bytes<'m>(&'m [u8]);

impl<'m> Bytes<'m> {
    fn take(&mut self, count: usize) -> Result<&'m [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.take(1)?.first().copied().ok_or(Malformed)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A text that ends with a NUL.
    fn text(&mut self) -> Result<&'m str, Malformed> {
        let end = memchr::memchr(0, self.0).ok_or(Malformed)?;
        let text = self.take(end)?;
        self.take(1)?;
        std::str::from_utf8(text).map_err(|_| Malformed)
    }

    fn relation(&mut self) -> Result<Message<'m>, Malformed> {
        let id = self.u32()?;
        let (schema, name) = (self.text()?, self.text()?);
        let _identity = self.byte()?;
        let count = self.u16()?;
        let column = |_| {
            // Whether it is of the key, then its name, its type and the type's modifier.
            self.take(1)?;
            let column = self.text()?;
            self.take(4 + 4)?;
            Ok(column)
        };
        let columns = (0..count).map(column).collect::<Result<_, _>>()?;
        Ok(Message::Relation {
            id,
            schema,
            name,
            columns,
        })
    }

    fn values(&mut self) -> Result<Vec<Option<&'m str>>, Malformed> {
        let count = self.u16()?;
        let value = |_| match self.byte()? {
            b'n' => Ok(None),
            b't' => {
                let length = self.u32()?;
                let bytes = self.take(usize::try_from(length).map_err(|_| Malformed)?)?;
                std::str::from_utf8(bytes).map(Some).map_err(|_| Malformed)
            }
            // Unchanged or binary: a row that is put in is whole, and nobody asked for binary.
            _ => Err(Malformed),
        };
        (0..count).map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn relation() -> Vec<u8> {
        let mut bytes = vec![b'R', 0, 0, 0, 9];
        bytes.extend_from_slice(b"public\0outboxevent\0d");
        bytes.extend_from_slice(&[0, 2]);
        for name in ["id", "payload"] {
            bytes.push(0);
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(&[0; 9]);
        }
        bytes
    }

    #[test]
    fn messages_of_the_manual_are_read() {
        let bytes = relation();
        assert_eq!(
            Message::parse(&bytes),
            Ok(Message::Relation {
                id: 9,
                schema: "public",
                name: "outboxevent",
                columns: vec!["id", "payload"],
            })
        );
        let mut insert = vec![b'I', 0, 0, 0, 9, b'N', 0, 3, b'n', b't', 0, 0, 0, 2];
        insert.extend_from_slice("é".as_bytes());
        insert.extend_from_slice(&[b't', 0, 0, 0, 0]);
        let values = vec![None, Some("é"), Some("")];
        assert_eq!(
            Message::parse(&insert),
            Ok(Message::Insert { id: 9, values })
        );
        let mut commit = vec![b'C', 0];
        commit.extend_from_slice(&7_u64.to_be_bytes());
        commit.extend_from_slice(&8_u64.to_be_bytes());
        commit.extend_from_slice(&[0; 8]);
        assert_eq!(Message::parse(&commit), Ok(Message::Commit { end: 8 }));
        assert_eq!(Message::parse(b"D...."), Ok(Message::Other));
        assert_eq!(Message::parse(b""), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _either = Message::parse(&bytes);
        }

        #[test]
        fn a_message_that_is_cut_off_is_no_message(cut in 1_usize..47) {
            let whole = relation();
            let cut = cut.min(whole.len() - 1);
            prop_assert_eq!(Message::parse(&whole[..cut]), Err(Malformed));
        }
    }
}
