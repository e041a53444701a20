//! A database that this server cannot read.

use futures_util::future::BoxFuture;

use super::port::{Connected, Database, Finding, Trouble};

/// Says so wherever it is asked.
pub(super) struct Unread;

fn finding() -> Finding {
    Finding {
        problem: "this version reads outbox tables in PostgreSQL only".to_owned(),
        remedy: None,
        advice: false,
    }
}

impl Database for Unread {
    fn connect(&self) -> BoxFuture<'_, Result<Connected, Trouble>> {
        Box::pin(async { Err(Trouble::Misfit(vec![finding()])) })
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, Trouble>> {
        Box::pin(async { Ok(vec![finding()]) })
    }
}
