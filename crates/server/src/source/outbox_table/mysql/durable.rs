//! When what is read is certainly on the server's disk. With a binary log InnoDB shows a transaction only
//! after that is so. Without one it shows the transaction first and syncs its log afterwards, and a crash in
//! between undoes what others have seen. Then the log's two ends are compared: how far it was written after
//! the rows were read, and how far it is synced.

use std::time::Duration;

use sqlx::MySqlConnection;

use super::super::port::{Finding, Trouble};
use super::trouble;

/// How often to look whether the log has been synced. The server does so once a second of its own accord, and
/// with each commit.
const LOOK: Duration = Duration::from_millis(5);

/// The server's error number of a statement that the user may not run.
const ACCESS_DENIED: &str = "42000";

/// MariaDB's names and MySQL's for the same two numbers.
const ENDS: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_lsn_current', 'Innodb_lsn_flushed', \
                    'Innodb_redo_log_current_lsn', 'Innodb_redo_log_flushed_to_disk_lsn')";

/// Syncs the log at once, and tells no replica of it.
const SYNC: &str = "FLUSH LOCAL ENGINE LOGS";

/// How this server keeps its promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// What is seen is durable.
    Given,
    /// The log is to be compared; whether this user may have it synced is found out.
    Compared { may_sync: bool },
}

/// The log's ends, in bytes since ever.
struct Ends {
    written: u64,
    synced: u64,
}

impl Durability {
    /// What this server does.
    pub(super) async fn of(connection: &mut MySqlConnection) -> Result<Self, Trouble> {
        let binary: i64 = sqlx::query_scalar("SELECT CAST(@@log_bin AS SIGNED)")
            .fetch_one(connection)
            .await
            .map_err(trouble)?;
        Ok(match binary {
            0 => Self::Compared { may_sync: true },
            _ => Self::Given,
        })
    }

    /// Waits until everything that could be seen before this call is on the server's disk.
    pub(super) async fn wait(&mut self, connection: &mut MySqlConnection) -> Result<(), Trouble> {
        let Self::Compared { may_sync } = self else {
            return Ok(());
        };
        let Some(ends) = ends(connection).await? else {
            return Ok(());
        };
        let (target, mut synced) = (ends.written, ends.synced);
        while synced < target {
            if *may_sync {
                *may_sync = sync(connection).await?;
            } else {
                tokio::time::sleep(LOOK).await;
            }
            let Some(ends) = self::ends(connection).await? else {
                return Ok(());
            };
            synced = ends.synced;
        }
        Ok(())
    }

    /// What an operator should know of it.
    pub(super) async fn findings(
        mut self,
        connection: &mut MySqlConnection,
    ) -> Result<Vec<Finding>, Trouble> {
        let advice = |problem: &str, remedy: String| Finding {
            problem: problem.to_owned(),
            remedy: Some(remedy),
            advice: true,
        };
        let mut findings = Vec::new();
        let level = "SELECT CAST(@@innodb_flush_log_at_trx_commit AS SIGNED), @@read_only";
        let (level, read_only): (i64, i64) = sqlx::query_as(level)
            .fetch_one(&mut *connection)
            .await
            .map_err(trouble)?;
        if level != 1 {
            findings.push(advice(
                "the server answers a commit before it is on disk, so a crash may undo one whose event is \
                 delivered",
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1".to_owned(),
            ));
        }
        if read_only != 0 {
            findings.push(Finding {
                problem: "the server takes no changes: is it a replica?".to_owned(),
                remedy: Some("url: name the primary".to_owned()),
                advice: false,
            });
        }
        if let Self::Compared { may_sync } = &mut self {
            *may_sync = sync(connection).await?;
            if !*may_sync {
                let user: String = sqlx::query_scalar("SELECT CURRENT_USER()")
                    .fetch_one(&mut *connection)
                    .await
                    .map_err(trouble)?;
                findings.push(advice(
                    "without a binary log a row may have to wait up to a second until it is certainly on \
                     disk; a user with RELOAD has that done at once",
                    format!("GRANT RELOAD ON *.* TO {}", quoted_user(&user)),
                ));
            }
        }
        Ok(findings)
    }
}

/// `user@host` as a statement has it.
pub(super) fn quoted_user(user: &str) -> String {
    let (name, host) = user.rsplit_once('@').unwrap_or((user, "%"));
    format!(
        "'{}'@'{}'",
        name.replace('\'', "''"),
        host.replace('\'', "''")
    )
}

/// Has the log synced; `false` where this user may not.
async fn sync(connection: &mut MySqlConnection) -> Result<bool, Trouble> {
    match sqlx::raw_sql(SYNC).execute(&mut *connection).await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(said)) if said.code().as_deref() == Some(ACCESS_DENIED) => {
            Ok(false)
        }
        Err(error) => Err(trouble(error)),
    }
}

/// Nothing where the server does not tell.
async fn ends(connection: &mut MySqlConnection) -> Result<Option<Ends>, Trouble> {
    let told: Vec<(String, String)> = sqlx::query_as(ENDS)
        .fetch_all(connection)
        .await
        .map_err(trouble)?;
    let number = |ending: &str| {
        let named = told
            .iter()
            .find(|(name, _)| name.to_ascii_lowercase().ends_with(ending));
        named.and_then(|(_, value)| value.parse().ok())
    };
    let written = number("lsn_current").or_else(|| number("current_lsn"));
    let synced = number("lsn_flushed").or_else(|| number("flushed_to_disk_lsn"));
    Ok(written
        .zip(synced)
        .map(|(written, synced)| Ends { written, synced }))
}
