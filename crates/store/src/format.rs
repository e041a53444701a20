//! Versions of the store's SQLite files that change over their lifetime: what kind a file is, which version
//! of the format it has, and how an older one becomes the newest. (Segments and index files are written once
//! and say their version themselves.)
//!
//! A file of an older version is brought up to date when it is opened, in one transaction with its version, so
//! that a crash leaves the one or the other. A newer one is never touched.

use std::path::Path;
use std::time::Duration;

use rusqlite::backup::Backup;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::connection::{self, Access, ConnectionError, Profile};

/// A kind of file and its versions. Version 1 is the first; the newest is one above the number of upgrades.
#[derive(Debug)]
pub(crate) struct Format {
    /// Tells the kind from other SQLite files; kept as SQLite's `application_id`.
    pub(crate) application_id: i64,
    /// What brings version `n + 1` to `n + 2`, for `n` from 0.
    pub(crate) upgrades: &'static [Upgrade],
}

/// What brings a file from one version to the next, within the transaction of all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Upgrade {
    /// SQL alone.
    Statements(&'static str),
    /// What SQL alone cannot say.
    Code(fn(&Transaction<'_>) -> rusqlite::Result<()>),
}

impl Upgrade {
    fn run(self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        match self {
            Self::Statements(text) => transaction.execute_batch(text),
            Self::Code(code) => code(transaction),
        }
    }
}

impl Format {
    /// The newest version, which new files have; kept as SQLite's `user_version`.
    pub(crate) fn newest(&self) -> u32 {
        1 + u32::try_from(self.upgrades.len()).unwrap_or(u32::MAX - 1)
    }

    /// Writes kind and version into a new file.
    pub(crate) fn stamp(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        transaction.pragma_update(None, "application_id", self.application_id)?;
        transaction.pragma_update(None, "user_version", self.newest())
    }

    /// Opens a file of a stopped store without changing it; also its version. One of an older version is brought
    /// up to date in a copy in memory.
    ///
    /// # Errors
    /// As of `of`, or it cannot be read.
    pub(crate) fn examine(
        &self,
        path: &Path,
        profile: Profile,
    ) -> Result<(Connection, u32), ConnectionError> {
        let connection = connection::open(path, Access::Examine, profile, None)?;
        let found = self.of(&connection)?;
        if found == self.newest() {
            return Ok((connection, found));
        }
        let mut copy = Connection::open_in_memory()?;
        Backup::new(&connection, &mut copy)?.run_to_completion(i32::MAX, Duration::ZERO, None)?;
        self.upgrade(&mut copy)?;
        Ok((copy, found))
    }

    /// The version of a file of this kind.
    ///
    /// # Errors
    /// It is of another kind, or newer than this binary.
    pub(crate) fn of(&self, connection: &Connection) -> Result<u32, ConnectionError> {
        let pragma =
            |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let unexpected = |name, expected: String, found: i64| ConnectionError::Setting {
            name,
            expected,
            found: found.to_string(),
        };
        let kind = pragma("application_id")?;
        if kind != self.application_id {
            let expected = self.application_id.to_string();
            return Err(unexpected("application_id", expected, kind));
        }
        let (version, known) = (pragma("user_version")?, self.newest());
        match u32::try_from(version) {
            Ok(found) if found > known => Err(ConnectionError::Newer { found, known }),
            Ok(found) if found > 0 => Ok(found),
            _ => Err(unexpected("user_version", format!("1 to {known}"), version)),
        }
    }

    /// Brings a file of an older version up to date; the caller syncs it.
    ///
    /// # Errors
    /// As of `of`, or the file takes no change; it is as it was.
    pub(crate) fn upgrade(&self, connection: &mut Connection) -> Result<(), ConnectionError> {
        let found = self.of(connection)?;
        if found == self.newest() {
            return Ok(());
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for step in self.upgrades.iter().skip(found as usize - 1) {
            step.run(&transaction)?;
        }
        transaction.pragma_update(None, "user_version", self.newest())?;
        Ok(transaction.commit()?)
    }
}

#[cfg(test)]
mod tests {
    use super::Upgrade::{Code, Statements};
    use super::*;

    /// Three versions of a file with one table.
    const FORMATS: [Format; 3] = [
        format(&[]),
        format(&[Statements(
            "ALTER TABLE t ADD COLUMN b INTEGER NOT NULL DEFAULT 7",
        )]),
        format(&[
            Statements("ALTER TABLE t ADD COLUMN b INTEGER NOT NULL DEFAULT 7"),
            Code(|file| file.execute_batch("UPDATE t SET b = b * 2")),
        ]),
    ];

    const fn format(upgrades: &'static [Upgrade]) -> Format {
        Format {
            application_id: 0x5748_0001,
            upgrades,
        }
    }

    fn first_version() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        let transaction = connection.transaction().unwrap();
        transaction
            .execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (1)")
            .unwrap();
        FORMATS[0].stamp(&transaction).unwrap();
        transaction.commit().unwrap();
        connection
    }

    #[test]
    fn an_older_file_goes_through_every_version_once() {
        let mut connection = first_version();
        for _ in 0..2 {
            FORMATS[2].upgrade(&mut connection).unwrap();
            let b: i64 = connection
                .query_row("SELECT b FROM t", [], |row| row.get(0))
                .unwrap();
            assert_eq!((b, FORMATS[2].of(&connection).unwrap()), (14, 3));
        }
        let mut connection = first_version();
        FORMATS[1].upgrade(&mut connection).unwrap();
        FORMATS[2].upgrade(&mut connection).unwrap();
        assert_eq!(FORMATS[2].of(&connection).unwrap(), 3);
    }

    #[test]
    fn a_newer_file_is_refused_and_left_as_it_is() {
        let mut connection = first_version();
        FORMATS[2].upgrade(&mut connection).unwrap();
        let refused = FORMATS[1].upgrade(&mut connection).unwrap_err();
        assert!(
            matches!(refused, ConnectionError::Newer { found: 3, known: 2 }),
            "{refused}"
        );
        assert_eq!(FORMATS[2].of(&connection).unwrap(), 3);
    }

    #[test]
    fn an_upgrade_that_fails_leaves_the_older_version() {
        let mut connection = first_version();
        let broken = format(&[
            Statements("ALTER TABLE t ADD COLUMN b INTEGER"),
            Statements("INSERT INTO nowhere VALUES (1)"),
        ]);
        broken.upgrade(&mut connection).unwrap_err();
        assert_eq!(broken.of(&connection).unwrap(), 1);
        FORMATS[2].upgrade(&mut connection).unwrap();
    }

    #[test]
    fn an_older_file_is_read_as_if_it_were_new_and_stays_as_it_is() {
        const PROFILE: Profile = Profile {
            page_size: 4096,
            free_pages: connection::FreePages::Keep,
            cache_kib: 64,
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mut file = connection::open(&path, Access::Create, PROFILE, None).unwrap();
        let transaction = file.transaction().unwrap();
        transaction
            .execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (1)")
            .unwrap();
        FORMATS[0].stamp(&transaction).unwrap();
        transaction.commit().unwrap();
        drop(file);
        let before =
            [&path, &folder.path().join("a.db-wal")].map(|path| std::fs::read(path).unwrap());
        let (examined, found) = FORMATS[2].examine(&path, PROFILE).unwrap();
        let b: i64 = examined
            .query_row("SELECT b FROM t", [], |row| row.get(0))
            .unwrap();
        assert_eq!((b, found), (14, 1));
        drop(examined);
        let after =
            [&path, &folder.path().join("a.db-wal")].map(|path| std::fs::read(path).unwrap());
        assert!(before == after);
        let refused = FORMATS[0].examine(&path, PROFILE);
        assert_eq!(refused.unwrap().1, 1);
    }

    #[test]
    fn another_kind_of_file_is_told_apart() {
        let connection = Connection::open_in_memory().unwrap();
        assert!(FORMATS[0].of(&connection).is_err());
    }
}
